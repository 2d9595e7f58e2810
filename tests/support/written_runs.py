"""A run of seven steps, in memory and on disk."""

import math

import numpy as np

from certspec.runs.folder import RunFolder
from certspec.runs.schema import COLUMNS, step_schema, step_table
from certspec.runs.table import RunTable


def run_of_seven(**changes):
    """Two sequences of 4 and 3 steps; the draft misses the argmax at steps 1, 3 and 5."""
    columns = {
        "rules": ("strict", "multiplicative:0.4", "tree:2"),
        "prompt": np.array([0, 0, 0, 0, 1, 1, 1]),
        "position": np.array([0, 1, 2, 3, 0, 1, 2]),
        "entropy": np.full(7, 0.5),
        "prob_margin": np.array([0.9, 0.1, 0.8, 0.3, 0.9, 0.2, 0.7]),
        "target_token": np.array([1, 2, 3, 4, 5, 6, 7]),
        "target_top_prob": np.array([0.95, 0.5, 0.9, 0.6, 0.95, 0.6, 0.8]),
        "certificate": np.array(
            [[0.6, 0.01, 0.5, 0.1, 0.6, 0.05, 0.4]] * 2 + [[math.inf] + [0.9] * 6]
        ),
        "certificate_lower": np.array(
            [[0.6, 0.01, 0.5, 0.1, 0.6, 0.05, 0.4]] * 2 + [[math.inf] + [0.9] * 6]
        ),
        "kl": np.array([0.1, 0.2, 0.1, 1.0, 0.1, 0.3, 0.5]),
        "kl_upper": np.array([0.1, 0.2, 0.1, 1.0, 0.1, 0.3, 0.5]),
        "draft_token": np.array([1, 9, 3, 9, 5, 9, 7]),
        "draft_token_prob": np.array([0.95, 0.25, 0.9, 0.1, 0.95, 0.3, 0.8]),
        "accepted": np.array(
            [[1, 0, 1, 0, 1, 0, 1], [1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1]], dtype=bool
        ),
        "certified": np.array([[1, 0, 1, 0, 1, 0, 0]] * 2 + [[1, 1, 1, 0, 1, 1, 1]], dtype=bool),
    }
    return RunTable(**columns | changes)


def write_run(
    folder, target_only=False, rules=("strict", "multiplicative:0.4", "tree:2"), **changes
):
    """A run folder with the seven steps of ``run_of_seven`` as ``certspec score`` would write
    it."""
    run = run_of_seven(**changes)
    run_folder = RunFolder(folder)
    facts = {
        "id": "here/<target>",
        "num_parameters": 3,
        "dtype": "float32",
        "weights_sha256": "0" * 64,
    }
    settings = {
        "certspec": "0",
        "target": facts,
        "draft": None if target_only else facts,
        "tokenizer_sha256": "1" * 64,
        "num_tokens": 10,
        "kernels_sha256": "2" * 64,
        "prompts_sha256": "3" * 64,
        "rules": list(rules),
        "steps": 4,
        "batch_size": 2,
        "limit": None,
        "chat": True,
    }
    run_folder.open(
        settings,
        {"versions": {"python": "3"}, "device_name": "a machine"},
        prompts_path="p",
        notes=[],
    )
    columns = {name: getattr(run, name, None) for name in COLUMNS}
    per_rule = ("certificate", "certificate_lower", "accepted", "certified", "reach")
    columns |= {name: columns[name].T for name in per_rule if columns[name] is not None}
    tops = (
        np.stack([run.target_token, np.full(7, 9)], axis=1),
        np.stack([run.draft_token, np.where(run.draft_differs, run.target_token, 8)], axis=1),
    )
    columns |= {
        "prompt_tokens": np.full(7, 3),
        "target_top_ids": tops[0],
        "draft_top_ids": tops[1],
        "target_top_probs": np.stack(
            [run.target_top_prob, run.target_top_prob - run.prob_margin], axis=1
        ),
        "draft_top_probs": np.stack([np.linspace(0.5, 0.9, 7), np.full(7, 0.05)], axis=1),
        "end": np.array([None, None, None, "eos", None, None, "steps"], dtype=object),
    }
    if target_only:
        about = (
            "kl",
            "kl_upper",
            "draft_token",
            "draft_token_prob",
            "draft_top_ids",
            "accepted",
            "certified",
        )
        about += ("draft_top_probs",)
        columns |= dict.fromkeys(about)
    run_folder.write_part(0, step_table(columns, step_schema(list(rules))))
    return folder
