"""Rows of every regime, scored by the Triton backend in the interpreter and by numba; prints what
differs as JSON. Run as a script in a process of its own, since Triton decides at import whether it
interprets."""

import json
import sys
from dataclasses import replace

import numpy as np
import torch

import certspec as cs
from certspec.kernels.rule_table import rule_table
from certspec.kernels.triton import rows as triton_rows
from proofs_check.hunts.interpreter_reductions import reduce_by_halves
from proofs_check.hunts.soundness import disagreements

VOCAB = 1030  # an odd tail


def rows_of_every_regime() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    rows = (
        torch.randn(9, VOCAB, generator=generator)
        * torch.tensor([0.2, 1, 2, 1, 1, 1, 1, 1, 1])[:, None]
    )
    rows[3, torch.randperm(VOCAB, generator=generator)[:40]] = torch.linspace(
        9, 8, 40
    )  # ranks past the known ones
    rows[4, [3, 7]] = 9.0  # two maxima
    rows[5, 11] = 90.0  # saturated
    rows[6] = 0.5  # all equal: more ties than there are cells
    rows[7, 100:200] = -torch.inf  # masked tokens
    rows[8, [5, 900]] = torch.tensor([12.0, 11.0])
    return rows


def near_a_threshold(target: torch.Tensor, draft: torch.Tensor) -> dict[str, float]:
    """A row whose second token lies a relative 1e-8 above an additive threshold, which float32 sums
    can't tell."""
    top = torch.softmax(target.double(), -1).topk(2).values[0]
    table = rule_table((cs.Additive(float(top[0] - top[1] * (1 - 1e-8))), cs.StrictGreedy()))
    width = target.shape[1]
    plan = triton_rows.plan_for(1, width, target.element_size(), table.num_top)
    fast = triton_rows.launch(
        target, draft, torch.from_numpy(table.parameters.copy()), width, table.num_top, plan
    )
    theirs = cs.certify(target, draft, table.rules, backend="numba")
    return {
        "path": int(fast.path[0]),
        "kl_gap": abs(float(fast.scalars[0, 0] - theirs.kl[0])),
        "kl_excess": float(fast.scalars[0, 1] - fast.scalars[0, 0]),
        "upper_below_kl": bool(fast.scalars[0, 1] < theirs.kl[0]),
        "different": int((fast.verdict[0, :, 0].bool() != theirs.accepted[:, 0]).sum()),
        "certificate_gap": float(
            (fast.certificate[0, :, 0] - theirs.certificate[:, 0]).abs().max()
        ),
        "lower_above": int((fast.certificate[1, :, 0] > theirs.certificate[:, 0]).sum()),
    }


def main(dtype_name: str) -> None:
    dtype = getattr(torch, dtype_name)
    generator = torch.Generator().manual_seed(6)
    target = rows_of_every_regime().to(dtype)
    draft = (target.float() + 0.1 * torch.randn(target.shape, generator=generator)).to(dtype)
    wide = torch.full(
        (len(draft), VOCAB + 34), 77.0, dtype=dtype
    )  # padded columns hold what no one may read
    wide[:, :VOCAB] = draft
    rules = (*cs.default_rules(), cs.Absolute(0.01), cs.Gated(10, additive=0.6))
    table = rule_table(rules)
    plan = triton_rows.plan_for(len(target), VOCAB, target.element_size(), table.num_top)
    fast = triton_rows.launch(
        target, wide, torch.from_numpy(table.parameters.copy()), VOCAB, table.num_top, plan
    )
    blocks = replace(
        plan, parts=32, quads=1, added=2, batch=2, deep_batch=2
    )  # 2 blocks of segments, as of long rows
    again = triton_rows.launch(
        target, wide, torch.from_numpy(table.parameters.copy()), VOCAB, table.num_top, blocks
    )
    ours = cs.certify(target, wide, rules, backend="triton", align=VOCAB)
    theirs = cs.certify(target, wide, rules, backend="numba", align=VOCAB)
    names = (
        "target_token",
        "draft_token",
        "target_top_ids",
        "draft_top_ids",
        "accepted",
        "certified",
    )
    decided = fast.path.numpy() == 0
    finite = np.isfinite(theirs.certificate.numpy())
    gap = np.abs(
        ours.certificate.numpy() - theirs.certificate.numpy(),
        where=finite,
        out=np.zeros(finite.shape),
    )
    report = {
        "different": [
            name for name in names if not torch.equal(getattr(ours, name), getattr(theirs, name))
        ],
        "near_a_threshold": near_a_threshold(target[2:3], draft[2:3]),
        "decided": decided.tolist(),
        "different_in_blocks": [
            name
            for name in ("ids", "verdict", "path")
            if not np.array_equal(
                *(
                    side[..., decided, :] if name == "ids" else side[..., decided]
                    for side in (getattr(fast, name).numpy(), getattr(again, name).numpy())
                )
            )
        ],
        "worst_gap_in_blocks": float((fast.scalars - again.scalars).abs()[decided].max()),
        "worst_certificate_gap": float(gap.max()),
        "upper_below_kl": int((ours.kl_upper < theirs.kl - 1e-13).sum()),
        "lower_above_certificate": int((ours.certificate_lower > theirs.certificate + 1e-13).sum()),
        "fast_certified_beyond_numba": int((fast.verdict[1].bool() & ~theirs.certified).sum()),
        "beyond_stated_errors": disagreements(ours, theirs),
        "largest_stated_errors": [float(ours.entropy_error.max()), float(ours.prob_error.max())],
        "worst_kl_gap": float((ours.kl - theirs.kl).abs().nan_to_num(posinf=0.0).max()),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    reduce_by_halves()
    main(sys.argv[1])
