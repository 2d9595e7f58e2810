"""Where a threshold lies within rounding of a token's probability, every backend gives the answer
of exact arithmetic: which tokens pass, the certificate, and what is certified."""

import mpmath
import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding.verify import accepts
from certspec.kernels.exact_thresholds import first_rejected
from certspec.rules import Rule, Threshold
from tests.support import exact_rows

LOG_2 = 0.6931471805599453  # a little below ln 2
CASES = [  # rule, logits, the first rejected rank
    (cs.presets.sglang_threshold(), [47.0, 0.5], 0),  # p1 < 1 exactly
    (cs.presets.sglang_threshold(), [800.0, 0.0], 0),
    (cs.presets.sglang_threshold(), [1.0, -np.inf], 1),  # p1 = 1: only the masked token
    (cs.Multiplicative(1.0), [0.0, -1e-17], 1),
    (cs.Multiplicative(1.0), [3.0, 3.0, 2.0], 2),
    (cs.Additive(0.25), [0.0, 0.0, LOG_2], 3),  # p1 - 1/4 < 1/4 < the others
    (cs.Additive(0.25), [0.0, 0.0, LOG_2 + 2e-16], 1),
    (cs.Additive(1.0), [50.0, 0.0, -np.inf], 3),
    (cs.Additive(0.5), [0.0, -np.inf], 1),
    (cs.Absolute(1 / 3), [0.0, 0.0, 1e-17], 3),  # the nearest double lies below a third
    (cs.Absolute(0.25), [0.0] * 4, 4),  # equality, in rationals
    (cs.Absolute(0.25), [0.0] * 3 + [-1e-300], 3),
    (cs.Entropy(0.5, 1.0), [0.0, 0.0], 0),  # e^-H = p, and the rule is strict
    (cs.Entropy(1.0, 1.0), [40.0, 0.0], 1),  # e^-H < p1 always, but for equal tokens
    (cs.Entropy(1.0, 0.5, smoothing=0.5), [0.0, 0.0], 0),  # .5 (1/2 + 1/2) = p
    (cs.Gated(2, additive=1.0), [50.0, 0.0, -1.0], 2),
    (cs.Entropy(1.0, 1.0), [0.0, 0.0, -745.0], 2),  # e^-745 / 2 is 0 in float64: 0 log 0
    (cs.Entropy(1.0, 5e-324), [0.0, 0.0, -745.0], 2),
]


@pytest.mark.parametrize(
    ("rule", "logits", "rank"), CASES, ids=[f"{rule}-{row}" for rule, row, _ in CASES]
)
def test_a_token_on_a_threshold_is_decided_exactly(rule, logits, rank, backend):
    row = np.array([logits])
    assert first_rejected(rule, row[0]) == rank
    ranked = np.lexsort((np.arange(row.size), -row[0]))
    for place, token in enumerate(ranked):
        draft = np.where(np.isinf(row), -100.0, row)
        draft[0, token] = draft.max() + 2.0
        found = cs.certify(row, draft, rule, backend=backend)
        assert bool(found.accepted[0, 0]) == (place < rank)
        assert accepts(rule, torch.from_numpy(row[0]), int(token)) == (place < rank)
        assert not found.certified[0, 0] or place < rank
        if rank == 0:
            assert found.certificate[0, 0] == 0.0
        elif rank == row.size:
            assert found.certificate[0, 0] == np.inf
        else:
            same = cs.certify(row, draft, cs.TopM(rank), backend=backend)
            assert found.certificate[0, 0] == same.certificate[0, 0]


@pytest.mark.parametrize(
    ("rule", "logits", "rank"), CASES, ids=[f"{rule}-{row}" for rule, row, _ in CASES]
)
def test_the_reverse_certificate_is_that_of_the_exact_decision(rule, logits, rank):
    row = np.array(logits)
    (value,) = cs.reverse_certificate(row, rule)
    if rank == 0:
        assert value == 0.0
    elif rank == row.size or row[np.argsort(-row)[rank]] == -np.inf:
        assert value == np.inf
    else:
        assert value == cs.reverse_certificate(row, cs.TopM(rank))[0]


def near_thresholds(generator, count):
    """Rows of 2 to 5 tokens, a token of each, and rules within 2 ulp of its probability."""
    for number in range(count):
        logits = generator.normal(size=int(generator.integers(2, 6)))
        probs = exact_rows.probabilities(logits)
        token, top = int(generator.integers(len(logits))), max(probs)
        ulps = 1.0 + 2.0**-52 * float(generator.integers(-2, 3))
        entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs)
        smoothed = -mpmath.fsum(p * mpmath.log(p + mpmath.mpf(1e-5)) for p in probs)
        yield (
            logits,
            token,
            (
                cs.Additive(float(top - probs[token]) * ulps),
                cs.Multiplicative(min(1.0, float(probs[token] / top) * ulps)),
                cs.Absolute(float(probs[token]) * ulps),
                cs.Entropy(1.0, float(probs[token] * mpmath.exp(entropy)) * ulps),
                cs.Entropy(1.0, float(probs[token] * mpmath.exp(smoothed)) * ulps, smoothing=1e-5),
            )[number % 5],
        )


def test_rules_within_two_ulp_of_a_token_get_the_answers_of_fifty_digits(backend):
    for logits, token, rule in near_thresholds(np.random.default_rng(3), 100):
        truth, rejected = exact_rows.rule_truth(rule, logits)
        draft = logits.copy()
        draft[token] = logits.max() + 0.5
        found = cs.certify(logits[None], draft[None], rule, backend=backend)
        assert bool(found.accepted[0, 0]) == (token not in rejected), rule
        certificate, lower = float(found.certificate[0, 0]), float(found.certificate_lower[0, 0])
        assert certificate == pytest.approx(float(truth), rel=1e-12, abs=1e-15), rule
        assert lower <= truth, rule
        # the bound is the exact decision's, no longer that of the doubtful token
        assert lower == pytest.approx(float(truth), rel=1e-9, abs=1e-12), rule


def test_float64_alone_would_have_been_wrong():
    wrong = 0
    for logits, token, rule in near_thresholds(np.random.default_rng(3), 100):
        probs = np.exp(logits - logits.max())
        probs /= probs.sum()
        entropy = -(probs * np.log(probs + rule.threshold.smoothing)).sum()
        tau = rule.threshold.value(probs.max(), entropy)
        passes = probs[token] > tau if rule.threshold.strictly_above else probs[token] >= tau
        wrong += bool(passes) != (first_rejected(rule, logits) > (logits > logits[token]).sum())
    assert wrong > 5


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_the_filter_and_torch_decide_rows_of_few_bits_alike(kind):
    logits = torch.tensor([[40.0, 0.0, 0.0, -1.0], [0.0] * 4, [1.0, 1.0, 1.0, -40.0]])
    target = logits.to(getattr(torch, kind))
    draft = (-target).contiguous()
    for rule in (cs.Absolute(1.0), cs.Absolute(0.25), cs.Absolute(1 / 3), cs.Additive(1.0)):
        found = [
            cs.certify(target, draft, rule, **how)
            for how in (
                {"backend": "numba"},
                {"backend": "numba", "precision": "float32"},
                {"backend": "torch"},
                {"backend": "reference"},
            )
        ]
        for other in found[1:]:
            assert torch.equal(found[0].accepted, other.accepted)
            assert torch.equal(found[0].certified, other.certified)
            assert torch.allclose(found[0].certificate, other.certificate, rtol=1e-6, atol=1e-7)


def test_a_target_alone_and_a_threshold_deep_in_a_row_are_decided_too(backend):
    logits = np.repeat(np.arange(60.0, 0.0, -1.0), 2)[None] / 30.0  # 120 tokens in pairs
    probs = exact_rows.probabilities(logits[0])
    tau = float(probs[100])
    rule = cs.Absolute(tau)
    passes = 102 if probs[100] >= mpmath.mpf(tau) else 100
    alone = cs.certify(logits, None, rule, backend=backend)
    by_rank = cs.certify(logits, None, cs.TopM(passes), backend=backend)
    assert alone.certificate[0, 0] == pytest.approx(by_rank.certificate[0, 0], rel=1e-12)
    assert first_rejected(rule, logits[0]) == passes


def test_a_rule_of_several_parts_rejects_what_lies_below_each_of_them():
    class Both(Rule):
        @property
        def threshold(self):
            return Threshold(scale=0.5, offset=0.0, cap=0.25, entropy_scale=2.0)

    probs = np.array([0.6, 0.28, 0.12])
    # min(.25, .3, 2 e^-H = .80) = .25
    assert first_rejected(Both(), np.log(probs)) == 2


def test_far_logits_of_both_signs_are_decided():
    assert first_rejected(cs.Absolute(1.0), [1e308, -1e308]) == 0
    assert first_rejected(cs.Absolute(0.5), [0.0, -5e-324]) == 1
    assert first_rejected(cs.Absolute(0.5), [1e300, 1e300, -1e300]) == 0
