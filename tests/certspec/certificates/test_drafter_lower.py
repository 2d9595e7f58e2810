"""A hunt for lower bounds above the exact radius: drafts that tie to the last bits, flat pools,
weights that underflow, masks, every format of logits and every rule, judged at 60 digits and
more."""

import math
from collections import Counter
from functools import cache, lru_cache

import mpmath
import numpy as np
import pytest

import certspec as cs
from derivations.formulas import drafter

MP = mpmath.mp


def additive(t):
    return lambda q: (
        drafter.additive_radius(MP, q[0], q[1], MP.mpf(t))
        if t
        else drafter.strict_radius(MP, q[0], q[1])
    )


def multiplicative(alpha):
    return lambda q: drafter.multiplicative_radius(MP, q[0], q[1], MP.mpf(alpha))


def absolute(tau):
    return lambda q: drafter.absolute_radius(MP, q[0], MP.mpf(tau))


def gate(m, other):
    return lambda q: min(drafter.top_radius(MP, q, m), other(q))


RULES = [
    (cs.StrictGreedy(), additive(0.0)),
    *[(cs.Additive(t), additive(t)) for t in (0.0, 2.0**-40, 0.3, 1 - 2.0**-53)],
    *[(cs.Multiplicative(a), multiplicative(a)) for a in (1e-300, 0.1, 1 - 2.0**-53, 1.0)],
    *[(cs.TopM(m), lambda q, m=m: drafter.top_radius(MP, q, m)) for m in (1, 2, 40)],
    *[(cs.Tree(m), lambda q, m=m: drafter.tree_radius(MP, q, m)) for m in (1, 2, 40)],
    *[(cs.Absolute(tau), absolute(tau)) for tau in (1e-9, 0.2, 0.9)],
    (cs.Gated(2, additive=0.6), gate(2, additive(0.6))),
    (cs.Gated(3, multiplicative=0.25), gate(3, multiplicative(0.25))),
]
NEEDED = 42  # of the largest probabilities, by the widest rule


def near_ties():
    for gap in (2.0**-10, 2.0**-20, 2.0**-30, 2.0**-45, 2.0**-52):
        yield np.array([1.0, 1.0 - gap, 1.0 - 2 * gap, -0.3])
        yield np.array([1.0, 1.0 - gap, -30.0, -31.0])
    yield np.array([1.0, np.nextafter(1.0, 0), -750.0, -math.inf])
    yield np.array([0.25, 0.25, 0.25, 0.25])


def flat_pools():
    rng = np.random.default_rng(1)
    for scale in (1e-16, 1e-9, 1e-4, 1.0):
        yield np.round(rng.normal(size=200) * 8) / 8 * scale
    yield np.repeat([0.5, 0.5 - 1e-7, -3.0], [30, 20, 4_000])
    yield np.repeat([0.5, 0.25, -3.0], [1, 300_000 // 8, 224_000])
    yield np.zeros(262_144)


def far_tails():
    for reach in (36.0, 350.0, 708.5, 720.0, 740.0, 743.3, 744.1, 745.5, 760.0, 1500.0):
        yield np.array([0.0, -reach])
        yield np.array([0.0, -reach, -reach - 1, -reach - 2])
        yield np.array([0.0, -0.5, -reach, -reach - 0.25])
        yield np.array([0.0, -reach, -math.inf, -math.inf])
        yield np.array([0.0, -0.01, -math.inf, -math.inf])


def every_format():
    rng = np.random.default_rng(2)
    for _ in range(6):
        row = np.round(rng.normal(size=300) * 3, 2)
        row[1:4] = row[0] = row.max()
        yield row.astype(np.float32)
        yield row.astype(np.float16)
        yield row + rng.choice([0.0, 1e-14, 1e-12], size=300)


def sorted_law(row):
    """The largest probabilities of the row's exact softmax, one after another; equal logits are
    weighed once, and a row is once for all rules."""
    return _sorted_law(tuple(row.tolist()), mpmath.mp.dps)


@lru_cache(maxsize=1)
def _sorted_law(row, digits):
    counts = Counter(float(z) for z in row)
    highest = max(counts)
    weights = {z: mpmath.exp(mpmath.mpf(z) - mpmath.mpf(highest)) for z in counts}
    total = mpmath.fsum(count * weights[z] for z, count in counts.items())
    largest = sorted((float(z) for z in row), reverse=True)[:NEEDED]
    return [weights[z] / total for z in largest]


def assert_below(row, rule, radius):
    found = float(cs.drafter_certificate_lower(row, rule)[0])
    assert not math.isnan(found)
    finite = row[row > -math.inf]
    with mpmath.workdps(60 if float(np.ptp(finite)) < 60 else 800):
        exact = max(
            radius(sorted_law(row)), MP.mpf(0)
        )  # at a tie the formula's own last digit may be negative
        assert found >= 0.0
        assert MP.mpf(found) <= exact, (rule, row[:6], mpmath.nstr(exact, 25))
        return exact, found


@pytest.mark.parametrize("drafts", [near_ties, flat_pools, far_tails, every_format])
def test_no_lower_bound_exceeds_the_exact_radius(drafts):
    for row in drafts():
        for rule, radius in RULES:
            assert_below(row, rule, radius)


def test_the_lower_bound_loses_little():
    rng = np.random.default_rng(3)
    for vocab, loss in ((50, 1e-12), (4096, 2e-12)):
        row = np.round(rng.normal(size=vocab) * 2, 1).astype(np.float32)
        for rule, radius in RULES:
            exact, found = assert_below(row, rule, radius)
            assert exact == found == math.inf or exact - found < loss, rule


def test_a_weight_that_would_lose_digits_lowers_the_radius_itself():
    """exp(-744.1) is 5e-324, .35 nats too likely; at 746 it is 0, and the radius was infinite."""
    for gap in (600.0, 669.0, 671.0, 710.0, 744.1, 746.0, 5000.0):
        row = np.array([0.0, -gap])
        exact, found = assert_below(row, cs.StrictGreedy(), additive(0.0))
        plain = float(cs.drafter_certificate(row, cs.StrictGreedy())[0])
        assert 290.0 < found < plain < exact + 1e-12
        assert plain > exact * (1 - 1e-14) or gap > 670.0


def test_torch_gives_a_bound_as_well():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    row = np.round(rng.normal(size=300) * 8) / 8
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rule, radius in RULES:
            found = cs.drafter_certificate_lower(torch.tensor(row, dtype=dtype), rule)
            assert isinstance(found, torch.Tensor) and found.dtype == torch.float64
            with mpmath.workdps(60):
                assert MP.mpf(float(found[0])) <= max(radius(sorted_law(row)), MP.mpf(0)), rule


ENTROPIES = [
    cs.Entropy(0.09, 0.3),
    cs.Entropy(0.5, 0.5),
    cs.Entropy(1.0, 1e-9),
    cs.Entropy(2.0**-30, 0.9999),
]


@cache
def shares(rule):
    """Shares of y around the last one that the rule rejects when one other token holds the rest."""
    log_delta = mpmath.log(MP.mpf(rule.delta))

    def excess(v):
        return mpmath.log(v) - v * mpmath.log(v) - (1 - v) * mpmath.log(1 - v) - log_delta

    low, high = MP.mpf(0), MP.mpf("0.5")
    for _ in range(240):
        low, high = (
            ((low + high) / 2, high) if excess((low + high) / 2) <= 0 else (low, (low + high) / 2)
        )
    return min(low, MP.mpf(rule.epsilon))


@pytest.mark.parametrize("rule", ENTROPIES)
@pytest.mark.parametrize("gap", [2.0**-20, 0.7, 3.0, 36.0, 700.0, 740.0, 744.1, 760.0])
def test_of_two_tokens_the_entropy_bound_is_below_the_radius_and_near_it(rule, gap):
    """With one other token the search is exact but for rounding: the radius is d_bin at the last
    rejected share."""
    found = float(cs.drafter_certificate_lower(np.array([0.0, -gap]), rule)[0])
    with mpmath.workdps(800):
        share, own = shares(rule), 1 / (1 + mpmath.exp(-MP.mpf(gap)))
        exact = share * mpmath.log(share / own) + (1 - share) * mpmath.log((1 - share) / (1 - own))
        assert MP.mpf(found) <= exact
    assert found >= min(float(exact) * (1 - 1e-9), 300.0) - 1e-11


@pytest.mark.parametrize("rule", ENTROPIES[:3])
def test_no_rejecting_target_lies_below_the_entropy_bound(rule):
    """Targets that reject by definition, the law tilted and y cut to shares that the rule
    rejects."""
    rng = np.random.default_rng(6)
    for size in (3, 40, 3_000):
        row = np.round(rng.normal(size=size) * 2, 2).astype(np.float32)
        found = float(cs.drafter_certificate_lower(row, rule)[0])
        law = np.exp(row.astype(float) - row.max())
        law /= law.sum()
        best = int(law.argmax())
        for power in (1.0, 1.2, 1.7, 2.5, 6.0, 40.0):
            others = law**power
            others[best] = 0.0
            others /= others.sum()
            for share in np.geomspace(1e-7, rule.epsilon, 200):
                target = (1 - share) * others
                target[best] = share
                logs = np.log(target, where=target > 0, out=np.zeros(size))
                if np.log(share) - (target * logs).sum() <= math.log(rule.delta) - 1e-9:
                    assert (target * (logs - np.log(law))).sum() >= found


def test_a_target_of_one_token_is_rejected_where_a_rule_asks_for_all_the_mass_or_more():
    """Ties count as rejections: p = (1, 0) has p1 = exp(-H) = 1."""
    draft = np.log([[0.9, 0.1]])
    for certificate in (cs.drafter_certificate, cs.drafter_certificate_lower):
        found = certificate(draft, cs.Entropy(1.0, 1.0))
        assert found == pytest.approx(-math.log(0.9), abs=1e-9)
        alone = np.array([[0.0, -np.inf]])
        assert certificate(alone, cs.Absolute(1.0)) == 0.0
        assert certificate(alone, cs.Absolute(0.5)) == np.inf
