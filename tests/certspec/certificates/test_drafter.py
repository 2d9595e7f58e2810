"""Drafter-side and reverse certificates against 50-digit formulas, one-sidedly where they bound, on
the regimes that float64 finds hard; and tree widths, their inverse in the width."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

import certspec as cs
from certspec.certificates import radii
from certspec.certificates.pools import TopProbs, lift_radius, sink_radius
from certspec.certificates.tree_widths import _tree_certificates
from derivations.formulas import drafter, reverse, tree
from derivations.margins import projection_margins, radius_margins
from tests.support.every_rule import EVERY_RULE

MP = mpmath.mp
RULES = {
    "strict": (cs.StrictGreedy(), lambda q: drafter.strict_radius(MP, q[0], q[1])),
    "additive": (cs.Additive(0.3), lambda q: drafter.additive_radius(MP, q[0], q[1], MP.mpf(0.3))),
    "additive 0": (cs.Additive(0.0), lambda q: drafter.strict_radius(MP, q[0], q[1])),
    "multiplicative": (
        cs.Multiplicative(0.1),
        lambda q: drafter.multiplicative_radius(MP, q[0], q[1], MP.mpf(0.1)),
    ),
    "top": (cs.TopM(2), lambda q: drafter.top_radius(MP, q, 2)),
    "gate": (cs.Gated(2, additive=0.6), lambda q: drafter.gate_radius(MP, q, 2, MP.mpf(0.6))),
    "absolute": (cs.Absolute(0.2), lambda q: drafter.absolute_radius(MP, q[0], MP.mpf(0.2))),
    "tree": (cs.Tree(2), lambda q: drafter.tree_radius(MP, q, 2)),
}
LOGITS = {
    "plain": [1.0, 0.5, -0.25, -3.0],
    "near tie": [1.0, 1.0 - 2.0**-20, -2.0, -2.5],
    "exact tie": [0.5, 0.5, 0.5, 0.0],
    "saturated": [40.0, 0.0, -1.0, -2.0],
    "all equal": [0.0, 0.0, 0.0, 0.0],
    "far tail": [0.0, -1.0, -300.0, -301.0],
}


def exact_probs(logits):
    weights = [mpmath.exp(mpmath.mpf(z)) for z in sorted(logits, reverse=True)]
    return [w / mpmath.fsum(weights) for w in weights]


@pytest.mark.parametrize("regime", LOGITS)
@pytest.mark.parametrize("name", RULES)
def test_a_drafter_certificate_agrees_with_the_theorem_and_its_lower_bound_lies_below(name, regime):
    rule, formula = RULES[name]
    logits = np.array(LOGITS[regime])
    with mpmath.workdps(60):
        exact = mpmath.mpf(formula(exact_probs(LOGITS[regime])))
        assert mpmath.mpf(float(cs.drafter_certificate_lower(logits, rule)[0])) <= exact
    found = cs.drafter_certificate(logits, rule)[0]
    assert found == pytest.approx(
        float(exact), rel=2e-9 if regime == "near tie" else 1e-13, abs=3e-16
    )


@pytest.mark.parametrize("name", RULES)
def test_torch_and_top_probabilities_give_the_same_radii(name):
    torch = pytest.importorskip("torch")
    rule = RULES[name][0]
    logits = np.random.default_rng(3).normal(size=(5, 40)) * 2
    found = cs.drafter_certificate(logits, rule)
    from_torch = cs.drafter_certificate(torch.from_numpy(logits), rule)
    assert isinstance(from_torch, torch.Tensor) and from_torch.dtype == torch.float64
    np.testing.assert_allclose(from_torch.numpy(), found, rtol=1e-12)
    probs = np.exp(logits - np.log(np.exp(logits).sum(1, keepdims=True)))
    top = -np.sort(-probs, axis=1)[:, :3]
    exact = cs.drafter_certificate_from_top(top, rule, abs_error=0.0)
    # a bound from below: 1.9e-13 of it are its own rounding
    np.testing.assert_allclose(exact, found, rtol=1e-11, atol=2e-13)
    assert (exact <= found).all()


@pytest.mark.parametrize("name", RULES)
def test_no_target_inside_the_radius_rejects_the_drafts_token(name):
    """The law itself: targets drawn around the draft, judged by the rule's definition through
    ``certify``."""
    rule = RULES[name][0]
    rng = np.random.default_rng(5)
    draft = rng.normal(size=(400, 4)).astype(np.float32)
    target = (
        draft + rng.normal(size=(400, 4)) * rng.choice([0.05, 0.3, 1.0], size=(400, 1))
    ).astype(np.float32)
    scores = cs.certify(target, draft, rule, backend="reference")
    inside = scores.kl_upper < cs.drafter_certificate_lower(draft, rule)
    assert inside.any() and not inside.all()
    assert scores.accepted[0][inside].all()


@pytest.mark.parametrize("rule", [cs.TopM(2), cs.Tree(2), cs.Gated(2, additive=0.6)], ids=str)
def test_ranks_beyond_those_that_a_rule_needs_change_no_radius(rule):
    """They keep their shares, below the level as well as beside it."""
    top = np.array([[0.4, 0.2, 0.15, 0.12, 0.08, 0.05], [0.6, 0.1, 0.1, 0.1, 0.05, 0.05]])
    few, many = (cs.drafter_certificate_from_top(top[:, :count], rule, 9, 0.0) for count in (3, 6))
    np.testing.assert_allclose(few, many, rtol=1e-13)


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
def test_a_hub_without_mass_lifts_to_nothing_and_sinks_what_is_beside_it(xp):
    """Whatever rounding leaves of 1: a tail of 1e-17 is 39 nats away, not the hub."""
    probs, tail = xp.asarray([[0.7, 0.3, 0.0]]), xp.asarray([1e-17])
    with np.errstate(all="ignore"):
        assert lift_radius(xp, probs, tail, 2).item() == math.inf
        assert sink_radius(xp, probs, tail, 2).item() == pytest.approx(-math.log(0.3))


def test_a_masked_runner_up_or_a_small_vocabulary_leaves_nothing_to_reject():
    masked = np.array([0.0, -np.inf, -np.inf])
    for rule in (cs.StrictGreedy(), cs.Additive(0.2), cs.Multiplicative(0.5), cs.Tree(2)):
        assert cs.drafter_certificate(masked, rule)[0] == np.inf
        assert cs.drafter_certificate_lower(masked, rule)[0] == np.inf
    for rule in (cs.Tree(3), cs.TopM(3), cs.Additive(1.0), cs.Absolute(0.0)):
        assert cs.drafter_certificate(np.zeros(3), rule)[0] == np.inf
        assert cs.drafter_certificate_lower(np.zeros(3), rule)[0] == np.inf
    assert cs.drafter_certificate_lower(np.array([0.0, -1.0, -np.inf]), cs.Tree(2))[0] == np.inf
    closed = cs.drafter_certificate(np.array([0.0, -1.0, -np.inf]), cs.TopM(2))[0]
    assert closed == pytest.approx(-math.log(1 / (1 + math.e)))


@pytest.mark.parametrize("gap", [680.0, 744.4, 800.0, 1e5, 1.7e308])
def test_only_masked_tokens_make_a_radius_infinite(gap):
    """A token 800 nats below the first has a probability all the same, which float64 has not."""
    row = np.array([gap, 0.0, -np.inf]) if gap > 1e6 else np.array([0.0, -gap, -np.inf])
    nearest = 1.0 - 2.0**-53  # p1 = tau: the rest is (1 - tau) (gap + log(1 - tau)) away
    found = cs.drafter_certificate(row, cs.Absolute(nearest))[0]
    far = (1 - nearest) * math.log(1 - nearest) + nearest * math.log(nearest)
    assert found == pytest.approx(far + (1 - nearest) * min(gap, 670.0), rel=1e-6)
    for rule in (cs.StrictGreedy(), cs.Additive(0.5), cs.Multiplicative(1e-300), cs.Absolute(0.5)):
        for certificate in (cs.drafter_certificate, cs.drafter_certificate_lower):
            assert 0.0 < certificate(row, rule)[0] <= gap
    for rule in (cs.StrictGreedy(), cs.TopM(1), cs.Tree(1), cs.Absolute(0.5)):
        assert 300.0 < cs.reverse_certificate(row, rule)[0] <= gap / 2.0
    assert cs.drafter_certificate(row, cs.Tree(2))[0] == np.inf


def test_a_draft_that_is_all_at_one_token_may_be_given_by_its_probabilities():
    alone = np.array([1.0, 0.0])
    assert cs.drafter_certificate_from_top(alone, "strict", abs_error=0.0)[0] == np.inf
    assert cs.drafter_certificate_from_top(alone, "strict")[0] == 0.0  # 1 and 0 show no decimal
    assert 10.0 < cs.drafter_certificate_from_top(alone, "strict", abs_error=1e-10)[0] < 12.0


@pytest.mark.parametrize("rule", [*EVERY_RULE, cs.Entropy(1.0, 3.0), cs.Absolute(1.0)], ids=str)
@pytest.mark.parametrize(
    "certificate",
    [cs.drafter_certificate, cs.drafter_certificate_lower, cs.reverse_certificate],
    ids=lambda function: function.__name__,
)
def test_a_row_is_given_the_same_number_in_any_company(certificate, rule):
    """Rows of one possible token beside others once came out as NaN."""
    rows = np.array(
        [
            [0.0, -np.inf, -np.inf, -np.inf],
            [1.0, 0.0, -1.0, -2.0],
            [0.0, 0.0, 0.0, 0.0],
            [0.0, -800.0, -900.0, -1000.0],
            [-np.inf, 3.0, -np.inf, 2.0],
        ]
    )
    alone = np.concatenate([certificate(row, rule) for row in rows])
    assert not np.isnan(alone).any()
    assert np.allclose(certificate(rows, rule), alone, rtol=1e-14, atol=0)


def two_token_divergence(p1, gap):
    """KL(target || draft), the target (p1, 1 - p1), the draft's second logit ``gap`` below."""
    q2 = mpmath.exp(-gap) / (1 + mpmath.exp(-gap))
    return p1 * mpmath.log(p1 / (1 - q2)) + (1 - p1) * mpmath.log((1 - p1) / q2)


@pytest.mark.parametrize("alpha", [1.0, 0.9, 0.1, 1e-100, 1e-280, 1e-300, 5e-324])
def test_a_factor_whose_product_underflows_leaves_the_radius_finite(alpha):
    """Two tokens: the nearest target that rejects has p_1 = alpha p_2."""
    logits = np.array([[0.0, -gap] for gap in (1.0, 30.0, 45.0, 60.0, 100.0, 300.0, 600.0)])
    for kind in (np.asarray, torch.tensor):
        radius = cs.drafter_certificate(kind(logits), cs.Multiplicative(alpha))
        lower = cs.drafter_certificate_lower(kind(logits), cs.Multiplicative(alpha))
        for row, found, bound in zip(logits.tolist(), radius.tolist(), lower.tolist(), strict=True):
            with mpmath.workdps(400):
                exact = two_token_divergence(mpmath.mpf(alpha) / (1 + mpmath.mpf(alpha)), -row[1])
            assert bound <= exact and found <= exact * (1 + 1e-12)
            if alpha * math.exp(row[1]) > 1e-307:
                assert found == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("slack", [5e-324, 0.5, 1 - 2.0**-52, 1 - 2.0**-53])
def test_a_slack_near_1_and_a_second_token_near_0_leave_the_radius_a_number(slack):
    """Two tokens: the nearest target that rejects has p_2 - p_1 = t. It was NaN at -740."""
    logits = np.array([[0.0, -gap] for gap in (1.0, 300.0, 600.0, 680.0, 690.0, 708.0, 740.0)])
    for kind in (np.asarray, torch.tensor):
        radius = cs.drafter_certificate(kind(logits), cs.Additive(slack))
        lower = cs.drafter_certificate_lower(kind(logits), cs.Additive(slack))
        for row, found, bound in zip(logits.tolist(), radius.tolist(), lower.tolist(), strict=True):
            with mpmath.workdps(400):
                exact = two_token_divergence((1 - mpmath.mpf(slack)) / 2, -row[1])
            assert 0.0 < bound <= exact and 0.0 < found <= exact * (1 + 1e-12)
            if row[1] >= -600.0:
                assert found == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("tau", [5e-324, 1e-310, 2.3e-308])
def test_an_absolute_threshold_whose_share_of_the_token_overflows_has_a_finite_radius(tau):
    """The nearest target leaves the token out: -log(1 - q_y), but for tau of it. It was +inf."""
    logits = np.array([[0.0, 0.0, -np.inf], [0.0, -1.0, -3.0], [0.0, -600.0, -np.inf]])
    exact = [
        math.log(2.0),
        math.log((1 + math.exp(-1) + math.exp(-3)) / (math.exp(-1) + math.exp(-3))),
        600.0,
    ]
    for kind in (np.asarray, torch.tensor):
        found = cs.drafter_certificate(kind(logits), cs.Absolute(tau)).tolist()
        assert found == pytest.approx(exact, rel=1e-14)
        alone = kind(np.array([[0.0, -np.inf]]))
        assert cs.drafter_certificate(alone, cs.Absolute(tau)).tolist() == [np.inf]


def test_an_absolute_thresholds_bound_is_that_of_one_token_however_many_are_given():
    probs, tail = np.array([[0.6, 0.3]]), np.array([0.1])
    two, one = (
        radii.absolute_lower(
            radii.Draft(np, TopProbs(kept, rest, None, None), 40, np.array([40])), cs.Absolute(0.2)
        )
        for kept, rest in ((probs, tail), (probs[:, :1], tail + 0.3))
    )
    assert two == pytest.approx(one, rel=1e-14) and one > 0.3


def test_a_draft_of_one_token_is_infinitely_far_from_an_absolute_threshold_below_1():
    torch = pytest.importorskip("torch")
    for alone in (np.array([[0.0, -np.inf]]), torch.tensor([[0.0, -np.inf]])):
        for tau, radius in ((1e-300, np.inf), (0.6, np.inf), (1 - 2.0**-53, np.inf), (1.0, 0.0)):
            assert cs.drafter_certificate(alone, cs.Absolute(tau))[0] == radius


def entropy_rejections(epsilon, delta, count=40_000):
    """Targets of three tokens that the entropy rule rejects at token 1, by its definition."""
    grid = np.random.default_rng(1).dirichlet([0.4, 0.7, 0.7], size=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(grid > 0, grid * np.log(grid), 0).sum(1)
    return grid[grid[:, 0] <= np.minimum(epsilon, delta * np.exp(-entropy))]


@pytest.mark.parametrize(
    "draft", [(0.6, 0.3, 0.1), (0.999, 0.0005, 0.0005), (0.4, 0.35, 0.25), (0.8, 0.15, 0.05)]
)
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.09, 0.3), (0.5, 0.5), (1.0, 0.8), (1.0, 0.3), (1.0, 1.5)]
)
def test_the_entropy_radius_is_below_every_rejecting_target_and_close_to_the_nearest(
    draft, epsilon, delta
):
    rejecting = entropy_rejections(epsilon, delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(rejecting > 0, rejecting * np.log(rejecting / np.array(draft)), 0).sum(1)
    radius = cs.drafter_certificate(np.log(draft), cs.Entropy(epsilon, delta))[0]
    assert radius <= kl.min()
    assert radius >= kl.min() - 0.05  # the sample's own spacing
    listed = cs.drafter_certificate_from_top(
        np.array(draft), cs.Entropy(epsilon, delta), abs_error=0.0
    )
    assert listed[0] == pytest.approx(radius)


def test_smoothing_only_lowers_the_entropy_radius():
    logits = np.array([2.0, 1.0, 0.5, 0.0])
    plain = cs.drafter_certificate(logits, cs.Entropy(0.3, 0.3))[0]
    smoothed = cs.drafter_certificate(logits, cs.Entropy(0.3, 0.3, smoothing=0.01))[0]
    assert 0 < smoothed < plain
    with pytest.raises(cs.InvalidArgument, match="num_tokens"):
        cs.drafter_certificate_from_top(np.array([0.6, 0.3]), cs.Entropy(0.3, 0.3, smoothing=0.01))


REVERSE = {
    "strict": (cs.StrictGreedy(), lambda p: reverse.reverse_single(MP, p, 1)),
    "top": (cs.TopM(2), lambda p: reverse.reverse_single(MP, p, 2)),
    "tree": (cs.Tree(2), lambda p: reverse.reverse_tree(MP, p, 2)),
    "additive": (cs.Additive(0.3), lambda p: by_threshold(p, p[0] - MP.mpf(0.3))),
    "multiplicative": (cs.Multiplicative(0.1), lambda p: by_threshold(p, p[0] * MP.mpf(0.1))),
}


def by_threshold(probs, tau):
    rejected = [i for i, prob in enumerate(probs) if prob < tau]
    return reverse.reverse_of_set(MP, probs, rejected) if rejected else math.inf


@pytest.mark.parametrize("regime", [name for name in LOGITS if name != "all equal"])
@pytest.mark.parametrize("name", REVERSE)
def test_a_reverse_certificate_agrees_with_the_theorem(name, regime):
    rule, formula = REVERSE[name]
    with mpmath.workdps(60):
        exact = float(formula(exact_probs(LOGITS[regime])))
    found = cs.reverse_certificate(np.array(LOGITS[regime]), rule)[0]
    assert found == pytest.approx(exact, rel=2e-9 if regime == "near tie" else 1e-13, abs=3e-16)


def test_no_draft_inside_the_reverse_certificate_is_rejected():
    rng = np.random.default_rng(7)
    target = rng.normal(size=(400, 4))
    draft = target + rng.normal(size=(400, 4)) * rng.choice([0.05, 0.3, 1.0], size=(400, 1))
    own, other = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (draft, target))
    kl = (np.exp(own) * (own - other)).sum(1)
    for rule in cs.default_rules():
        inside = kl < cs.reverse_certificate(target, rule) - 1e-12
        assert inside.any()
        assert cs.certify(target, draft, rule, backend="reference").accepted[0][inside].all(), rule


MARGIN_RULES = {
    "strict": (cs.StrictGreedy(), {}, lambda g: projection_margins.pair_reverse_margin(MP, g)),
    "additive": (
        cs.Additive(0.3),
        {},
        lambda g: projection_margins.slack_reverse_margin(MP, g, MP.mpf(0.3)),
    ),
    "multiplicative": (
        cs.Multiplicative(0.1),
        {},
        lambda g: projection_margins.multiplicative_reverse_margin(MP, g, MP.mpf(0.1)),
    ),
    "top": (cs.TopM(4), {}, lambda g: projection_margins.top_reverse_margin(MP, g, 4)),
    "tree": (cs.Tree(8), {}, lambda g: projection_margins.tree_reverse_margin_top_two(MP, g, 8)),
    "gate last": (
        cs.Gated(3, additive=0.3),
        {"gap": "p1-p(m+1)"},
        lambda g: radius_margins.gate_reverse_margin_last(MP, g, 3, MP.mpf(0.3)),
    ),
    "factor gate last": (
        cs.Gated(3, multiplicative=0.3),
        {"gap": "p1-p(m+1)"},
        lambda g: radius_margins.gate_reverse_factor_last(MP, g, 3, MP.mpf(0.3)),
    ),
    "tree last": (
        cs.Tree(8),
        {"gap": "p1-p(m+1)"},
        lambda g: projection_margins.tree_reverse_margin_last(MP, g, 8),
    ),
}


@pytest.mark.parametrize("name", MARGIN_RULES)
def test_reverse_margin_certificates_agree_with_the_theorems_and_are_inverted(name):
    rule, options, exact = MARGIN_RULES[name]
    for margin in (1e-12, 1e-6, 0.01, 0.3, 0.5, 0.77, 0.999, 1.0):
        found = cs.margin_certificate(rule, margin, reverse=True, **options)
        with mpmath.workdps(50):
            expected = float(exact(MP.mpf(margin)))
        assert found == pytest.approx(expected, rel=1e-12, abs=0), margin
    needed = cs.required_margin(rule, 2.0, reverse=True, **options)
    assert cs.margin_certificate(rule, needed, reverse=True, **options) >= 2.0
    assert cs.margin_certificate(rule, math.nextafter(needed, 0), reverse=True, **options) < 2.0


DRAFT_MARGIN_RULES = {
    "strict": (cs.StrictGreedy(), None, lambda g: projection_margins.pair_reverse_margin(MP, g)),
    "additive": (
        cs.Additive(0.3),
        None,
        lambda g: projection_margins.additive_radius_margin(MP, g, MP.mpf(0.3)),
    ),
    "tree": (
        cs.Tree(3),
        None,
        lambda g: projection_margins.tree_radius_margin(MP, g, 3) if g * 3 < 1 else MP.inf,
    ),
    "top": (
        cs.TopM(4),
        "q1-q2",
        lambda g: projection_margins.tree_reverse_margin_top_two(MP, g, 4),
    ),
    "top last": (
        cs.TopM(4),
        "q1-q(m+1)",
        lambda g: projection_margins.tree_reverse_margin_last(MP, g, 4),
    ),
    "gate": (
        cs.Gated(3, additive=0.3),
        None,
        lambda g: radius_margins.gate_radius_margin(MP, g, 3, MP.mpf(0.3)),
    ),
} | {
    f"multiplicative {alpha!r}": (
        cs.Multiplicative(alpha),
        None,
        lambda g, alpha=alpha: radius_margins.multiplicative_radius_margin(MP, g, MP.mpf(alpha)),
    )
    for alpha in (1e-300, 0.01, 0.1, 0.5, 0.999, 1 - 1e-9, 1 - 2.0**-53, 1.0)
}


@pytest.mark.parametrize("name", DRAFT_MARGIN_RULES)
def test_drafter_margin_certificates_agree_with_the_theorems(name):
    rule, gap, exact = DRAFT_MARGIN_RULES[name]
    for margin in (1e-12, 1e-6, 0.01, 0.2, 0.3, 0.6, 0.77, 0.999, 1.0):
        with mpmath.workdps(70):
            expected = float(exact(MP.mpf(margin)))
        found = cs.drafter_margin_certificate(rule, margin, gap)
        assert found == pytest.approx(expected, rel=1e-12, abs=0), margin
    at_zero = cs.drafter_margin_certificate(rule, 0.0, gap)
    assert at_zero > 0.0 if isinstance(rule, cs.Additive) else at_zero == 0.0


@pytest.mark.parametrize(
    "rule",
    [
        cs.StrictGreedy(),
        cs.Additive(0.3),
        cs.Multiplicative(0.1),
        cs.TopM(2),
        cs.Gated(2, multiplicative=0.4),
        cs.Tree(2),
    ],
)
def test_no_draft_has_a_radius_below_that_of_its_margin(rule):
    logits = np.random.default_rng(8).normal(size=(400, 6)) * np.array(
        [[1.0], [3.0], [0.1], [8.0]] * 100
    )
    probs = -np.sort(-np.exp(logits) / np.exp(logits).sum(1, keepdims=True), axis=1)
    gaps = probs[:, 1] - probs[:, 2] if isinstance(rule, cs.Tree) else probs[:, 0] - probs[:, 1]
    bounds = np.array([cs.drafter_margin_certificate(rule, float(gap)) for gap in gaps])
    assert (cs.drafter_certificate(logits, rule) >= bounds * (1 - 1e-9) - 1e-13).all()


@pytest.mark.parametrize("budget", [0.0, 0.01, 0.3, 1.0, 1.5])
def test_the_tree_width_is_the_least_whose_certificate_exceeds_the_budget(budget):
    for margin in (0.2, 0.4, 0.9):
        width = cs.tree_width_for(budget, margin=margin)
        assert cs.margin_certificate(cs.Tree(width), margin) > budget
        assert width == 1 or not cs.margin_certificate(cs.Tree(width - 1), margin) > budget
    probs = [0.4, 0.3, 0.1, 0.1, 0.06, 0.04]
    width = cs.tree_width_for(budget, probabilities=probs, num_tokens=len(probs), abs_error=0.0)
    assert all(float(tree.tree_certificate(MP, probs, m)) <= budget for m in range(1, width))
    assert float(tree.tree_certificate(MP, probs, width)) > budget


@pytest.mark.parametrize("margin", [0.2, 0.9])
def test_a_width_whose_certificate_only_equals_the_budget_does_not_do(margin):
    for width in (1, 3, 4):
        budget = cs.margin_certificate(cs.Tree(width), margin)
        assert cs.tree_width_for(budget, margin=margin) == width + 1
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    for width, budget in enumerate(_tree_certificates(probs), 1):
        found = cs.tree_width_for(budget, probabilities=probs, num_tokens=4, abs_error=0.0)
        assert found == width + 1


def test_widths_of_a_margin_are_looked_for_up_to_2_to_the_40():
    budget = cs.margin_certificate(cs.Tree(2**39), 0.9)
    assert 2**39 < cs.tree_width_for(budget, margin=0.9) <= 2**40
    with pytest.raises(cs.InvalidArgument, match=r"no width up to 2\^40"):
        cs.tree_width_for(cs.margin_certificate(cs.Tree(2**40), 0.9), margin=0.9)


def test_no_width_is_above_a_vocabulary_of_known_size():
    assert cs.tree_width_for(3.0, margin=0.5) > 1000
    assert cs.tree_width_for(3.0, margin=0.5, num_tokens=100) == 100
    assert cs.tree_width_for(3.0, margin=1e-9, num_tokens=3) == 3
    assert cs.tree_width_for(0.3, margin=0.5, num_tokens=100) == 3


def test_a_list_that_sums_to_almost_1_is_not_taken_for_the_whole_vocabulary():
    full = [1 - 6e-7, 5e-7] + [1e-9] * 100
    for budget, probs in ((1.0, [0.9999995]), (3.0, full[:2]), (0.7, [1.0])):
        with pytest.raises(cs.InvalidArgument, match="expected more than"):
            cs.tree_width_for(budget, probabilities=probs)
    assert cs.tree_width_for(1.0, probabilities=full) == 2
    assert cs.tree_width_for(9.0, probabilities=[0.5, 0.5], num_tokens=np.int64(2)) == 2


def test_no_width_is_given_whose_certificate_the_budget_reaches():
    generator = np.random.default_rng(11)
    for _ in range(300):
        probs = generator.dirichlet(np.full(6, generator.choice([0.1, 1.0, 1e4])))
        probs = np.sort(probs / probs.sum())[::-1]
        with mpmath.workdps(60):
            exact = [tree.tree_certificate(MP, list(map(MP.mpf, probs)), m) for m in range(1, 6)]
            budgets = [float(exact[1]), math.nextafter(float(exact[2]), 0.0), float(exact[3]) * 0.9]
            for budget in budgets:
                width = cs.tree_width_for(budget, probabilities=probs, num_tokens=6)
                assert width == 6 or exact[width - 1] > budget


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cs.drafter_certificate(
                np.array([[0.0, 1.0], [np.nan, 0.0]]), cs.StrictGreedy()
            ),
            "nan in row 1",
        ),
        (
            lambda: cs.drafter_certificate(np.array([0.0, np.inf]), cs.StrictGreedy()),
            "inf in row 0",
        ),
        (
            lambda: cs.drafter_certificate(np.array([-np.inf, -np.inf]), cs.StrictGreedy()),
            "-inf in row 0",
        ),
        (lambda: cs.drafter_certificate(np.array([1, 2]), cs.StrictGreedy()), "expected floats"),
        (lambda: cs.drafter_certificate([0.0, 1.0], cs.StrictGreedy()), "got list"),
        (
            lambda: cs.drafter_certificate_from_top(np.array([0.5, 0.3]), cs.Tree(2)),
            "at least 3 columns",
        ),
        (
            lambda: cs.drafter_certificate_from_top(np.array([0.3, 0.5]), cs.StrictGreedy()),
            "largest first",
        ),
        (
            lambda: cs.drafter_certificate_from_top(np.array([1.0 + 5e-10, 0.0]), "strict"),
            r"largest first, of sum at most 1, got 1.0000000005 at column 0 of row 0",
        ),
        (
            lambda: cs.drafter_certificate_from_top(
                np.array([[0.5, 0.2], [0.7, math.nan]]), "strict"
            ),
            "got nan at column 1 of row 1",
        ),
        (
            lambda: cs.drafter_certificate_from_top(
                np.array([[0.5, 0.2], [0.6001, 0.4002]]), "strict"
            ),
            "got a sum of 1.0003 in row 1",
        ),
        *(
            (
                lambda e=error: cs.drafter_certificate_from_top(
                    np.array([0.7, 0.2]), "top:1", None, e
                ),
                "drafter_certificate_from_top: expected abs_error a number of at least 0",
            )
            for error in (-1e-9, 1.0, math.nan, "x", True, [0.1])
        ),
        (
            lambda: cs.tree_width_for(0.1, probabilities=[0.7, 0.2], abs_error=-1.0),
            "tree_width_for: expected abs_error",
        ),
        (
            lambda: cs.tree_width_for(0.1, margin=0.5, abs_error=0.0),
            "abs_error beside probabilities, got 0.0 beside margin",
        ),
        (
            lambda: cs.margin_certificate(cs.Additive(0.3), 0.5, False, reverse=True),
            "only the at-least form",
        ),
        (
            lambda: cs.margin_certificate(cs.Entropy(0.3, 1.5), 0.5, reverse=True),
            "no reverse margin bound",
        ),
        (lambda: cs.drafter_margin_certificate(cs.Tree(2), 0.2, "q1-q2"), "expected one of qm-q"),
        (
            lambda: cs.drafter_margin_certificate(cs.Absolute(0.2), 0.2),
            "no drafter-side margin bound",
        ),
        (lambda: cs.drafter_margin_certificate(cs.StrictGreedy(), math.nan), "got nan"),
        (lambda: cs.tree_width_for(0.1), "exactly one of"),
        (lambda: cs.tree_width_for(-0.1, margin=0.5), "got -0.1"),
        (lambda: cs.tree_width_for(0.1, margin=0.0), r"margin in \(0, 1\]"),
        (lambda: cs.tree_width_for(5.0, probabilities=[0.5, 0.3]), "more than 2 probabilities"),
        (lambda: cs.tree_width_for(0.1, probabilities=[0.0, 0.0]), "more than 2 probabilities"),
        (lambda: cs.tree_width_for(5.0, probabilities=[0.9, 0.3]), "sum at most 1"),
        (lambda: cs.tree_width_for(5.0, probabilities=["a"]), "probabilities as numbers"),
        (lambda: cs.tree_width_for(5.0, probabilities=[0.5, 0.5]), "num_tokens=2 says that there"),
        (
            lambda: cs.tree_width_for(0.1, probabilities=[0.6, 0.2], num_tokens=2),
            "of sum 1 where num_tokens=2",
        ),
        (
            lambda: cs.tree_width_for(0.1, probabilities=[0.5, 0.5], num_tokens=1),
            "at least 2, as many",
        ),
        (lambda: cs.tree_width_for(0.1, probabilities=[]), r"shape \(n,\), got \(0,\)"),
        (lambda: cs.tree_width_for(0.1, probabilities=[[0.5, 0.5]]), r"got \(1, 2\)"),
        (lambda: cs.tree_width_for(0.1, probabilities=[0.9, -0.1]), "a least one of -0.1"),
        *(
            (lambda n=size: cs.tree_width_for(0.1, margin=0.5, num_tokens=n), "num_tokens an int")
            for size in (0, -1, 2.0, "2", True)
        ),
        *(
            (
                lambda n=size: cs.drafter_certificate_from_top(np.array([0.7, 0.3]), "strict", n),
                "num_tokens: expected an integer of at least 2",
            )
            for size in (0, 1, -1, 2.0, "2", True)
        ),
        (
            lambda: cs.drafter_certificate_from_top(np.array([0.7, 0.18]), "tree:2", 2),
            "of sum 1 where num_tokens=2",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(call, message):
    with pytest.raises((cs.InvalidArgument, cs.InvalidLogits), match=message):
        call()


def test_widths_and_radii_grow_together():
    logits = np.random.default_rng(2).normal(size=(20, 30))
    radii = [cs.drafter_certificate(logits, cs.Tree(m)) for m in range(1, 9)]
    assert all((b >= a).all() for a, b in itertools.pairwise(radii))
