"""Every field of a ``Threshold``, alone and with others, means the same on every path that judges a
token: the backends, lists, the reverse direction and decoding."""

import math

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding.verify import accepts
from certspec.rules import Rule, Threshold
from tests.support.device import DEVICE

RANK_ALONE = -math.inf
CASES = {
    "top_m": Threshold(top_m=2, offset=RANK_ALONE),
    "scale": Threshold(scale=0.5, offset=0.0),
    "scale above 1": Threshold(scale=1.25, offset=-0.25),
    "offset": Threshold(scale=1.0, offset=-0.3),
    "cap": Threshold(cap=0.25),
    "cap 0": Threshold(cap=0.0),
    "entropy_scale": Threshold(entropy_scale=0.5),
    "entropy_scale above 1": Threshold(entropy_scale=1.5),
    "smoothing": Threshold(entropy_scale=0.5, smoothing=0.05),
    "strictly above the best": Threshold(scale=1.0, offset=0.0, strictly_above=True),
    "strictly above cap": Threshold(cap=0.25, strictly_above=True),
    "strictly above cap 0": Threshold(cap=0.0, strictly_above=True),
    "strictly above slack": Threshold(scale=1.0, offset=-0.3, strictly_above=True),
    "a gate with cap": Threshold(top_m=3, cap=0.25),
    "a gate with entropy": Threshold(top_m=1, entropy_scale=0.9),
    "all": Threshold(3, 0.9, -0.05, 0.3, 0.6, 0.01, True),
}


class Given(Rule):
    """A rule of nothing but a threshold, under no name of its own."""

    def __init__(self, threshold):
        object.__setattr__(self, "given", threshold)

    threshold = property(lambda self: self.given)
    label = property(lambda self: "given")
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def rows_of_laws():
    """(22, 4) logits: random laws with clear gaps, a uniform one, and one with two best tokens."""
    rng = np.random.default_rng(0)
    ties = [[0.0] * 4, [1.0, 3.0, 3.0, 0.0]]
    return np.concatenate([rng.normal(size=(20, 4)) * 1.5, ties])


LOGITS = rows_of_laws()


def accepted_by_definition(threshold, logits):
    """(4,) bool of one row, in the words of ``Threshold``; a tie with the threshold decides by
    ``strictly_above`` alone."""
    probs = np.exp(logits - logits.max())
    probs = probs / probs.sum()
    ranks = np.argsort(np.lexsort((np.arange(len(probs)), -logits)))
    parts = [threshold.cap]
    if threshold.offset < math.inf:
        parts.append(threshold.scale * probs.max() + threshold.offset)
    if threshold.entropy_scale < math.inf:
        entropy = -(probs * np.log(probs + threshold.smoothing)).sum()
        parts.append(threshold.entropy_scale * math.exp(-entropy))
    gap = probs - min(parts)
    accepted = np.where(abs(gap) < 1e-12, not threshold.strictly_above, gap > 0)
    return accepted & ((ranks < threshold.top_m) | (threshold.top_m == 0))


def one_hot_drafts():
    """Every row of LOGITS beside a draft of each token: (88, 4) twice, and the tokens."""
    tokens = np.tile(np.arange(4), len(LOGITS))
    return np.repeat(LOGITS, 4, axis=0), np.eye(4)[tokens] * 9.0, tokens


def expected_decisions(threshold):
    return np.concatenate([accepted_by_definition(threshold, row) for row in LOGITS])


RULES = [Given(threshold) for threshold in CASES.values()]
each_case = pytest.mark.parametrize("threshold", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def truths():
    """(cases, 22) exact certificates of the targets."""
    return cs.certify(LOGITS, None, RULES, backend="reference").certificate


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "numba"},
        {"backend": "numba", "precision": "float32"},
        {"backend": "reference"},
        {"backend": "torch"},
        pytest.param({"backend": "triton"}, marks=pytest.mark.triton),
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_every_backend_honours_every_field(options, truths):
    if options["backend"] == "triton":
        pytest.importorskip("triton")
    device = DEVICE if options["backend"] == "triton" else "cpu"
    target, draft, _ = (torch.from_numpy(each).float().to(device) for each in one_hot_drafts())
    found = cs.certify(target, draft, RULES, **options)
    expected = {name: expected_decisions(case).tolist() for name, case in CASES.items()}
    assert dict(zip(CASES, found.accepted.tolist(), strict=True)) == expected
    certificates = torch.as_tensor(found.certificate)[:, ::4].cpu()
    np.testing.assert_allclose(certificates, truths, rtol=1e-5, atol=1e-12)


def test_a_certificate_is_infinite_where_nothing_is_rejected_and_0_where_the_best_is(truths):
    best = np.argmax(LOGITS, axis=1)
    for case, truth in zip(CASES.values(), truths, strict=True):
        rejects = ~expected_decisions(case).reshape(-1, 4)
        assert (np.isposinf(truth) == ~rejects.any(axis=1)).all()
        assert (truth[rejects[np.arange(len(best)), best]] == 0.0).all()


@each_case
def test_lists_honour_every_field(threshold):
    target, draft, _ = one_hot_drafts()
    logprobs = [each - np.logaddexp.reduce(each, axis=1)[:, None] for each in (target, draft)]
    expected = expected_decisions(threshold)
    found = cs.certify(*logprobs, Given(threshold), lumped=True)
    full = cs.certify(target, draft, Given(threshold))
    assert ((found.accepted[0] == expected) | (found.accepted[0] == -1)).all()
    assert (found.certificate_lower <= full.certificate).all()
    known = ~np.isnan(found.certificate)
    np.testing.assert_allclose(found.certificate[known], full.certificate[known], atol=1e-12)


@each_case
def test_the_reverse_direction_honours_every_field(threshold):
    found = cs.reverse_certificate(LOGITS, Given(threshold))
    accepted = expected_decisions(threshold).reshape(-1, 4)
    first = accepted[np.arange(len(LOGITS)), np.argmax(LOGITS, axis=1)]
    assert (np.isposinf(found) == accepted.all(axis=1)).all()
    apart = slice(0, -2)  # the last rows' two best tokens tie
    assert ((found > 0.0) == first)[apart].all()


@each_case
def test_decoding_honours_every_field(threshold):
    target, _, tokens = one_hot_drafts()
    rows = torch.from_numpy(target)
    decided = [
        accepts(Given(threshold), row, token) for row, token in zip(rows, tokens, strict=True)
    ]
    assert decided == expected_decisions(threshold).tolist()


def test_every_field_occurs_in_a_case_with_a_value_that_decides():
    fields = {name: Threshold.__dataclass_fields__[name].default for name in vars(CASES["all"])}
    assert {
        name
        for case in CASES.values()
        for name, neutral in fields.items()
        if getattr(case, name) != neutral
    } == set(fields)
    decided = {name: expected_decisions(case) for name, case in CASES.items()}
    assert (decided["smoothing"] != decided["entropy_scale"]).any()
    assert (decided["strictly above cap"] != decided["cap"]).any()
    assert not decided["strictly above the best"].any()
