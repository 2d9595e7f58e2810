"""Every field of a ``Threshold``, alone and with others, means the same on every path that judges a
token: the backends, lists, the reverse direction and decoding."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.certificates.acceptance import accepts as accepted_each
from certspec.decoding.verify import accepts
from certspec.kernels.exact_thresholds import first_rejected
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


NOTHING_BELOW = {
    "a slack of 1": Threshold(scale=1.0, offset=-1.0),
    "a slack above the scale": Threshold(scale=0.5, offset=-0.75, strictly_above=True),
    "cap 0": Threshold(cap=0.0, entropy_scale=0.5),
}


@pytest.mark.parametrize("threshold", NOTHING_BELOW.values(), ids=NOTHING_BELOW)
def test_a_threshold_that_no_probability_is_below_is_its_ranks_alone(threshold):
    """Rounding took p1 - 1 for a number above 0 on saturated rows, on another server and in other
    divergences: log 2 where the truth is +inf. At 400 columns most tokens are beyond the ranks that
    are sorted."""
    assert threshold.simplest == Threshold(offset=RANK_ALONE)
    assert replace(threshold, top_m=3).simplest == Threshold(top_m=3, offset=RANK_ALONE)
    heads = [[0.0, -800.0, -np.inf], [0.0, -np.inf, -np.inf], [0.0, -40.0, -1.0], [0.0, 0.0, 0.0]]
    wide = np.concatenate([heads, np.full((4, 397), -900.0)], axis=1)
    gates = [Given(replace(threshold, top_m=gate)) for gate in (0, 500)]
    for rows in (np.array(heads), wide):
        ids = np.arange(rows.shape[1])
        for options in (
            *({"backend": name} for name in ("numba", "torch", "reference")),
            {"precision": "float32"},
            *({"logit_error": error} for error in (0.0, 0.1, 5.0)),
            *({"divergence": name} for name in ("tv", "renyi:0.5", "chi2")),
            {"draft_vocabulary": ids},
        ):
            found = cs.certify(rows, rows, gates, **options)
            assert (found.certificate_lower == np.inf).all(), options
            assert found.accepted.all() and found.certified.all()
        for gate in gates:
            assert (cs.reverse_certificate(rows, gate) == np.inf).all()
            assert accepted_each(gate, torch.from_numpy(rows), torch.tensor([1, 2, 1, 2])).all()
    logprobs = np.array(heads) - np.logaddexp.reduce(heads, axis=1)[:, None]
    assert (cs.certify(logprobs, None, gates[0], lumped=True).certificate_lower == np.inf).all()


def test_a_threshold_that_some_probability_is_below_is_kept():
    for case in CASES.values():
        assert case.simplest == (Threshold(offset=RANK_ALONE) if case == CASES["cap 0"] else case)


@pytest.mark.parametrize("factor", [5e-324, 1e-322, 1e-315, 1e-300])
def test_a_factor_near_the_least_float_is_compared_exactly(factor):
    """exp(-740) has two digits and exp(-746) none; the factors around them are exact."""
    edge = -math.log(factor)
    rows = [[0.0, gap, gap - 1.0] for at in (-0.3, -1e-9, 1e-9, 0.3) for gap in (-edge - at,)]
    rule = cs.Multiplicative(factor)
    first = np.array([first_rejected(rule, row) for row in rows])
    assert set(first) == {1, 2}
    taken = torch.tensor([1] * len(rows))
    found = accepted_each(rule, torch.tensor(rows, dtype=torch.float64), taken)
    assert found.tolist() == (first > 1).tolist()
    # where token 1 is accepted the competitor is a nat farther down
    found = cs.reverse_certificate(np.array(rows), rule)
    gaps = np.where(first == 1, [row[1] for row in rows], [row[2] for row in rows])
    np.testing.assert_allclose(found, np.minimum(-gaps, 670.0) / 2.0 - math.log(2.0), atol=0.4)


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
