"""No public function answers a bad value with a raw error: each parameter of each gets each of the
values below, and the answer is a CertspecError that names what it got, or a result."""

import inspect
import json

import numpy as np
import pytest
import torch
from transformers import MaxLengthCriteria

import certspec as cs
from certspec.decoding.profiles import DraftingProfile, MonotoneMap

LOGITS = np.log([[0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1]])
LISTS = cs.TargetLists(LOGITS, np.array([4, 4]), 0.0, 4)
DRAFT_LISTS = cs.DraftLists(LOGITS, np.zeros((2, 1), np.int64), np.zeros(2), 0.0, np.ones(2, bool))

BAD = {
    "None": lambda: None,
    "a text": lambda: "nonsense",
    "an empty text": lambda: "",
    "bytes": lambda: b"nonsense",
    "NaN": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "True": lambda: True,
    "10^400": lambda: 10**400,
    "a complex number": lambda: 1 + 2j,
    "an empty list": list,
    "a list of texts": lambda: ["x", "y"],
    "a list of lists": lambda: [[0.5], [0.5, 0.5]],
    "a dictionary": lambda: {"a": 1},
    "an object": object,
    "a generator": lambda: (x for x in (1, 2)),
    "a function": lambda: len,
    "a class": lambda: cs.Tree,
    "a rule": lambda: cs.Tree(2),
    "0-d": lambda: np.array(1.0),
    "no rows": lambda: np.zeros((0, 4)),
    "no columns": lambda: np.zeros((2, 0)),
    "three dimensions": lambda: np.zeros((2, 2, 2)),
    "integers": lambda: np.ones((2, 4), np.int64),
    "bools": lambda: np.ones((2, 4), bool),
    "complex": lambda: np.ones((2, 4), complex),
    "objects": lambda: np.full((2, 4), None),
    "texts": lambda: np.full((2, 4), "x"),
    "records": lambda: np.zeros((2, 4), [("a", float)]),
    "times": lambda: np.zeros((2, 4), "datetime64[s]"),
    "longdouble": lambda: np.ones((2, 4), np.longdouble),
    "NaNs": lambda: np.full((2, 4), np.nan),
    "infinities": lambda: np.full((2, 4), np.inf),
    "other columns": lambda: np.zeros((2, 7)),
    "other rows": lambda: np.zeros((5, 4)),
    "a matrix": lambda: np.ones((2, 4)),
    "a tensor": lambda: torch.ones(2, 4),
    "a 0-d tensor": lambda: torch.tensor(1.0),
    "an integer tensor": lambda: torch.ones(2, 4, dtype=torch.int64),
    "a sparse tensor": lambda: torch.eye(4).to_sparse(),
    "a meta tensor": lambda: torch.ones(2, 4, device="meta"),
    "a float8 tensor": lambda: torch.ones(2, 4).to(torch.float8_e4m3fn),
}


def call(name, **valid):
    return pytest.param(name, valid, id=name)


CALLS = [
    call("certify", target_logits=LOGITS, draft_logits=LOGITS),
    call("certify", target_logits=LOGITS, draft_logits=LOGITS, lumped=True),
    call("certify_hidden", target_hidden=LOGITS, target_head=LOGITS[:, :4]),
    call("drafter_certificate", draft_logits=LOGITS, rule=cs.Additive(0.3)),
    call("drafter_certificate_lower", draft_logits=LOGITS, rule=cs.Entropy(0.09, 0.3)),
    call("drafter_certificate_from_top", draft_top_probs=np.exp(LOGITS), rule=cs.Tree(2)),
    call("drafter_margin_certificate", rule=cs.TopM(2), margin=0.3),
    call("lumped_certificates", target=LISTS, rules=cs.StrictGreedy(), draft=DRAFT_LISTS),
    call("TargetLists", logprobs=LOGITS, num_ranked=np.array([4, 4]), error=0.0),
    call(
        "DraftLists",
        logprobs=LOGITS,
        best_columns=np.zeros((2, 1), np.int64),
        outside_mass=np.zeros(2),
        error=0.0,
        present=np.ones(2, bool),
    ),
    call("margin_certificate", rule=cs.TopM(2), margin=0.3),
    call("required_margin", rule=cs.TopM(2), kl_budget=0.1),
    call("reverse_certificate", target_logits=LOGITS, rule=cs.Additive(0.3)),
    call("rejections_within", certificates=[0.1, 0.3], budget=0.2),
    call("sampling_acceptance", kl=[0.1, 0.3], target_probs=[[0.6, 0.4], [0.5, 0.5]]),
    call("tree_width_for", kl_budget=0.1, margin=0.3),
    call("tree_width_for", kl_budget=0.1, probabilities=[0.6, 0.3, 0.1]),
    call("parse_rule", text="strict"),
    call("Absolute", tau=0.5),
    call("Additive", t=0.5),
    call("Entropy", epsilon=0.1, delta=0.3),
    call("Gated", top_m=3, additive=0.2),
    call("Multiplicative", alpha=0.5),
    call("TopM", m=3),
    call("Tree", m=3),
    call("TreeShape", width=2),
    call("BestFirst", num_nodes=4),
    call("WithinBudget", budget=0.1),
    call("load_profile", path="nowhere.json"),
    call("Between", start=1, end=2, inside="strict", outside=cs.TopM(2)),
    call("Threshold", top_m=2, offset=0.3),
    call("TreeTopology", parents=(-1, 0), ranks=(0, 0)),
]


def raw_errors(function, valid, skipped=()):
    """Where a bad value of a parameter brings out anything but a CertspecError."""
    found = []
    for parameter in inspect.signature(function).parameters:
        for kind, bad in BAD.items():
            if (parameter, kind) in skipped or parameter in skipped:
                continue
            try:
                function(**(valid | {parameter: bad()}))
            except cs.CertspecError as error:
                if not str(error):
                    found.append(f"{parameter}={kind}: an error without a word")
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                found.append(f"{parameter}={kind}: {type(error).__name__}: {error}"[:200])
    return found


@pytest.mark.parametrize("name, valid", CALLS)
@pytest.mark.filterwarnings("error")
def test_a_function_answers_a_bad_value_with_a_certspec_error(name, valid):
    assert raw_errors(getattr(cs, name), valid) == []


def profile():
    return DraftingProfile("none", 1, 0.1, 0.5, (MonotoneMap((0.0,), (0.5,)),), 0.1, 0.1, 1.0)


# what a callback itself raises is its own
OWN_ERRORS = {("on_step", "a function"), ("on_advance", "a function")}


def generate(
    pair,
    prompts,
    rule=None,
    draft_length=2,
    tree=None,
    max_new_tokens=2,
    batch_size=1,
    rules=None,
    eos_token_ids=None,
    chat=None,
    logits_processor=None,
    on_step=None,
    runners=None,
    stop_strings=None,
):
    return cs.generate(**locals())


UP_TO_SIX = (MaxLengthCriteria(6),)


def test_generate_answers_a_bad_value_with_a_certspec_error(tiny):
    valid = {"pair": tiny, "prompts": [[5, 6, 7]]}
    assert raw_errors(generate, valid, OWN_ERRORS) == []


def test_calibrate_answers_a_bad_value_with_a_certspec_error(tiny):
    valid = {"pair": tiny, "prompts": [[5, 6, 7]], "width": 2, "costs": (0.1, 0.1)}
    assert raw_errors(cs.calibrate, valid | {"max_new_tokens": 3}, OWN_ERRORS) == []


def test_adaptive_drafting_answers_a_bad_value_with_a_certspec_error():
    assert raw_errors(cs.Adaptive, {"profile": profile()}) == []


def test_the_transformers_bridge_answers_a_bad_value_with_a_certspec_error(tiny):
    def bridge(
        input_ids,
        logits_processor=None,
        stopping_criteria=UP_TO_SIX,
        draft_model=tiny.draft,
        rule=None,
        draft_length=2,
        tree=None,
        on_step=None,
        attention_mask=None,
        streamer=None,
    ):
        return cs.transformers_generate(tiny.target, **locals())

    valid = {"input_ids": torch.tensor([[5, 6, 7]])}
    assert raw_errors(bridge, valid, OWN_ERRORS | {"tiny"}) == []


def test_a_damaged_profile_is_unreadable_input(tmp_path):
    path = tmp_path / "profile.json"
    profile().save(path)
    content = json.loads(path.read_text())
    odd = [None, "x", [], {}, True, -1, 10**400, float("nan"), [{}], [{"knots": [1], "values": []}]]
    for name in content:
        for value in odd:
            path.write_text(json.dumps(content | {name: value}))
            try:
                assert cs.load_profile(path).width > 0, (name, value)
            except cs.UnreadableInput as error:
                assert "profile.json" in str(error)
    for text in ("", "[" * 100_000, "[]", "null", "\ud83d"):
        path.write_text(text, errors="surrogatepass")
        with pytest.raises(cs.UnreadableInput, match=r"profile\.json"):
            cs.load_profile(path)


def test_load_pair_answers_a_bad_value_with_a_certspec_error(tiny_folders):
    target, draft = tiny_folders
    paths = ("target", "draft", "tokenizer")
    texts = {(name, kind) for name in paths for kind in BAD if "text" in kind}

    def load_pair(target, draft, tokenizer=None, device=None, dtype=None):
        return cs.load_pair(target, draft, tokenizer=tokenizer, device=device, dtype=dtype)

    assert raw_errors(load_pair, {"target": target, "draft": draft}, texts) == []


def test_every_public_function_has_its_row():
    rows = {param.values[0] for param in CALLS}
    elsewhere = {"generate", "calibrate", "Adaptive", "transformers_generate", "load_pair"}
    # what certspec fills in itself, and lists that the row of lumped_certificates is about
    filled = {"Certificates", "DraftingProfile", "Generation", "LumpedCertificates", "Pair"}
    filled |= {"Case", "StepList", "StepRecord"}
    without_parameters = {"Rule", "StrictGreedy", "default_rules"}
    # what a program that extends certspec implements, and a dictionary's type
    without_parameters |= {"DecodingOptions", "DraftPolicy", "ModelRunner", "RuleSchedule"}
    errors = {"CertspecError", "IncompatiblePair", "InvalidArgument", "InvalidLogits"}
    errors |= {"RunMismatch", "UnreadableInput"}
    public = {name for name in cs.__all__ if callable(getattr(cs, name))}
    assert public == rows | elsewhere | filled | without_parameters | errors
