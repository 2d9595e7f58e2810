"""The CPU's float32 filter: what it decides is what float64 decides, its bounds hold, and what it
can't bound it leaves to float64."""

from dataclasses import dataclass, fields

import mpmath
import numba
import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.numba import filter_sums as numba_filter_sums
from certspec.kernels.numba import rows as numba_rows
from certspec.kernels.numba.filter import filter_rows
from certspec.kernels.numba.filter_loop import GROUP
from certspec.kernels.numba.passes import select_top
from certspec.kernels.numba.stream import Logits
from certspec.kernels.rule_table import rule_table
from certspec.rules import default_rules
from proofs_check.hunts.rows import FAMILIES, boundary_drafts, target_rows
from proofs_check.hunts.soundness import count_false_certificates, disagreements

DTYPES = ("float32", "bfloat16", "float16")


def pair_of(rows, columns, dtype="float32", seed=0, noise=0.3):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(rows, columns, generator=generator) * torch.linspace(1.5, 4, rows)[:, None]
    draft = target + torch.randn(rows, columns, generator=generator) * noise
    return target.to(getattr(torch, dtype)), draft.to(getattr(torch, dtype))


def both(target, draft, rules=None):
    filtered = cs.certify(target, draft, rules, precision="float32")
    return filtered, cs.certify(target, draft, rules, backend="reference")


@pytest.mark.parametrize("columns", [1, 2, 63, 64, 65, 511, 512, 513, 4097, 33_001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_width_agree_with_the_reference(columns, dtype):
    filtered, exact = both(*pair_of(5, columns, dtype, seed=columns))
    assert disagreements(filtered, exact) == {}
    assert filtered.path_counts["fast"] >= 4


def test_its_figures_are_within_their_stated_bounds_and_those_are_small():
    target, draft = pair_of(40, 20_000, noise=0.5)
    filtered, exact = both(target, draft)
    assert filtered.path_counts["fast"] == 40
    bound = filtered.kl_upper - filtered.kl
    assert ((filtered.kl - exact.kl).abs() <= bound).all() and bound.max() < 2e-5
    assert ((filtered.entropy - exact.entropy).abs() <= filtered.entropy_error).all()
    assert filtered.entropy_error.max() < 2e-5
    assert filtered.prob_error.max() < 1.6e-6  # 26 units: 7.4 of exp, 17 additions, what log 2 adds


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_adversarial_rows_get_the_verdicts_of_float64(family, dtype):
    generator = np.random.default_rng(FAMILIES.index(family))
    target = target_rows(generator, family, 300, 70)
    draft = boundary_drafts(generator, target)
    target, draft = (torch.from_numpy(side).to(getattr(torch, dtype)) for side in (target, draft))
    rules = [
        *cs.default_rules(),
        cs.Gated(top_m=10, additive=0.6),
        cs.Absolute(0.2),
        cs.Multiplicative(1e-6),
    ]
    filtered = cs.certify(target, draft, rules, precision="float32")
    assert disagreements(filtered, cs.certify(target, draft, rules, backend="torch")) == {}
    assert not (filtered.certified & ~filtered.accepted).any()


def flat_pair(columns, distance, seed=5):
    """A row with its mass on ``columns`` tokens alike, and a draft whose KL is beyond its strict
    certificate, from the target's draft q_1 = q_2, by about ``distance`` nats."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(1, columns, generator=generator).double() * 0.01
    target[0, :2] = torch.tensor([5.0, 4.0])
    draft = target.clone()
    draft[0, :2] = (
        torch.logsumexp(target[0, :2], 0)
        - torch.log(torch.tensor(2.0, dtype=torch.float64))
        + distance
    )
    return target.float(), draft.float()


def test_a_pair_nearer_the_boundary_than_the_first_bounds_is_decided_by_the_narrower_ones():
    target = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    draft = torch.log(torch.tensor([[0.4 + 1e-7, 0.4, 0.2]]))
    filtered, exact = (
        cs.certify(target, draft, cs.StrictGreedy(), precision=each)
        for each in ("float32", "float64")
    )
    assert filtered.path_counts == {"fast": 1, "rigorous": 0} and torch.equal(
        filtered.certified, exact.certified
    )
    assert filtered.kl_upper - filtered.kl <= 1e-11 and filtered.entropy_error[0] <= 1e-11
    assert disagreements(*both(target, draft)) == {}


def test_a_threshold_nearer_a_token_than_the_first_bounds_is_decided_by_the_narrower_ones():
    target = torch.log(
        torch.tensor([[0.6, 0.3, 0.1]])
    )  # additive 0.3: the second token is at the threshold
    scored = cs.certify(target, target, cs.Additive(0.3), precision="float32")
    exact = cs.certify(target, target, cs.Additive(0.3))
    assert torch.equal(scored.accepted, exact.accepted)
    assert torch.allclose(scored.certificate, exact.certificate, rtol=1e-11, atol=0)


@pytest.mark.parametrize("off", [-1e-8, 1e-8])
def test_thresholds_nearer_a_token_than_float32_knows_are_those_of_float64(off):
    """Of every kind of rule: one with no part from the largest token, too."""
    target, draft = (side.numpy() for side in pair_of(10, 400, seed=9))
    for row in range(10):
        z, y = target[row : row + 1], draft[row : row + 1].copy()
        probs = torch.from_numpy(z[0]).double().softmax(0)
        top, token = (float(p) for p in torch.topk(probs, 2).values)
        y[0, int(torch.topk(probs, 2).indices[1])] = y.max() + 1
        entropy = float(-(probs * probs.log()).sum())
        for rule in (
            cs.Absolute(token * (1 + off)),
            cs.Entropy(1.0, token * (1 + off) * np.exp(entropy)),
            cs.Additive(top - token * (1 + off)),
            cs.Multiplicative(token * (1 + off) / top),
        ):
            filtered, exact = both(z, y, rule)
            assert exact.accepted[0, 0] == (off < 0), rule
            assert disagreements(filtered, exact) == {}, rule
            assert filtered.certificate[0, 0] == pytest.approx(exact.certificate[0, 0], rel=1e-5)


def test_a_flat_pair_nearer_the_boundary_than_float32_knows_is_decided_by_sums_in_float64():
    target, draft = flat_pair(60_000, 1e-3)  # 1.6e-9 nats from it
    scored = cs.certify(target, draft, cs.StrictGreedy(), precision="float32")
    assert scored.path_counts == {"fast": 1, "rigorous": 0}
    assert scored.kl_upper - scored.kl <= 1e-10 and scored.entropy_error[0] <= 1e-10
    for distance in (1e-3, -1e-3, 0.01, -0.01):
        assert disagreements(*both(*flat_pair(60_000, distance))) == {}


def test_a_gate_that_asks_for_more_ranks_than_thresholds_do_gets_them():
    target, draft = pair_of(4, 3000)
    filtered, exact = both(target, draft, cs.TopM(45))
    assert disagreements(filtered, exact) == {} and filtered.path_counts["fast"] == 4
    assert filtered.target_top_ids.shape[1] == 46
    assert torch.equal(filtered.target_top_ids, exact.target_top_ids)
    assert torch.allclose(filtered.target_top_probs, exact.target_top_probs, rtol=1e-5, atol=0)


def test_what_no_bound_decides_goes_to_float64():
    target = torch.zeros(1, 4)  # every token is at the threshold
    for sides, rule in (
        (flat_pair(60_000, 0.0), cs.StrictGreedy()),
        ((target, target), cs.Absolute(0.25)),
    ):
        scored = cs.certify(*sides, rule, precision="float32")
        assert scored.path_counts == {"fast": 0, "rigorous": 1}
        assert scored.entropy_error[0] <= 1e-11
        assert disagreements(*both(*sides, rule)) == {}


@dataclass(frozen=True)
class Capped(cs.Rule):
    """Strictly above both the likeliest token and ``cap``: it accepts where that one is not."""

    cap: float

    @property
    def threshold(self):
        return cs.Threshold(scale=1.0, offset=0.0, cap=self.cap, strictly_above=True)


def test_a_cap_within_rounding_of_the_likeliest_tokens_probability_goes_to_float64():
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):  # so short that the float32 rows are known to 1e-12
        target = torch.randn(1, 8, generator=generator)
        with mpmath.workdps(30):
            weights = [mpmath.exp(float(z)) for z in target[0]]
            prob = max(weights) / sum(weights)
            cap = float(np.nextafter(float(prob), 0.0))
            assert cap < prob
        assert bool(cs.certify(target, target / 2, Capped(cap), precision="float32").accepted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [50, 300, 20_001])
def test_the_narrower_bounds_hold_and_are_narrower(columns, dtype):
    target, draft = pair_of(6, columns, dtype, seed=columns)
    kl, kl_errors, entropy, entropy_errors = bounds_of(target, draft, dtype)
    exact = cs.certify(target, draft, cs.StrictGreedy(), backend="reference")
    assert (np.abs(kl - exact.kl.numpy()) <= kl_errors).all()
    assert (np.abs(entropy - exact.entropy.numpy()) <= entropy_errors).all()
    for errors in (kl_errors, entropy_errors):
        assert (
            (errors[1] < errors[0]).all()
            and (errors[2] <= errors[1] * (1 + 1e-6)).all()
            and errors[2].max() < 1e-10
        )


@pytest.mark.parametrize("place", [0, 130, 2600, 19_999])
def test_the_groups_of_the_likeliest_tokens_are_summed_in_float64_wherever_they_are(place):
    target, draft = pair_of(1, 20_001)
    target[:, place], draft[:, 7000] = 20.0, 20.0
    _, kl_errors, _, entropy_errors = bounds_of(target, draft, "float32")
    assert kl_errors[0] > 1e-6 and kl_errors[1] < 1e-8
    assert entropy_errors[0] > 1e-6 and entropy_errors[1] < 1e-8


def bounds_of(target, draft, dtype):
    """KL, its bound, entropy and its bound, each (3, rows): as first computed, narrower, and all in
    float64."""
    rows, columns = target.shape
    sides = tuple(
        each.numpy() if dtype == "float32" else each.view(torch.int16).numpy().view(np.uint16)
        for each in (target, draft)
    )
    numbers = np.empty((3, rows, numba_filter_sums.NUMBERS))
    assert run_both(sides, columns, numba_rows.decoding(dtype), numbers)
    names = (
        numba_filter_sums.KL,
        numba_filter_sums.KL_ERROR,
        numba_filter_sums.ENTROPY,
        numba_filter_sums.ENTROPY_ERROR,
    )
    return [numbers[:, :, name] for name in names]


@numba.njit(error_model="numpy")
def run_both(sides, num_columns, decode, numbers):
    logits, size = Logits(sides, 2, num_columns, decode), min(32, num_columns)
    work = numba_filter_sums.FilterWork(
        np.empty((2, numba_filter_sums.DECODED), np.float32),
        np.empty((2, numba_filter_sums.num_groups(num_columns)), np.float32),
        np.empty(numba_filter_sums.STATE),
        np.empty(4),
    )
    gaps, ids = np.empty(size), np.empty(size, np.int64)
    done = True
    for row in range(sides[0].shape[0]):
        done &= numba_filter_sums.summarise(logits, row, work, numbers[0, row])
        select_top(sides[0], row, num_columns, decode, work.maxima[0], GROUP, gaps, ids)
        for whole in (False, True):
            done &= numba_filter_sums.refine(logits, row, work, ids, whole, numbers[1 + whole, row])
    return done


@pytest.mark.parametrize("peak", [20.0, 80.0, 4000.0, 5000.0])
@pytest.mark.parametrize("place", [0, 511, 512, 39_000, 39_999])
def test_a_maximum_far_above_the_columns_before_it_is_exact_enough(peak, place):
    target, draft = pair_of(2, 40_000)
    target[:, place], draft[:, place - 300] = peak, peak
    assert disagreements(*both(target, draft)) == {}


@pytest.mark.parametrize("shift", [0.0, 50.0, -700.0, 3000.0])
def test_logits_far_from_zero_are_scored(shift):
    target, draft = pair_of(6, 3000)
    filtered, exact = both(target + shift, draft - shift / 2)
    assert disagreements(filtered, exact) == {} and filtered.path_counts["fast"] >= 5


@pytest.mark.parametrize("lowest", [-40.0, -84.0, -86.0, -200.0, -np.inf])
def test_logits_below_the_range_of_float32_exponentials_go_to_float64(lowest):
    target, draft = pair_of(3, 1000)
    target = target.clamp(-1, 1)
    target[1, 77] = draft[1, 77] = lowest
    filtered, exact = both(target, draft)
    assert disagreements(filtered, exact) == {}
    assert filtered.paths.tolist() == [0, int(lowest < -80), 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 300, 999])
@pytest.mark.parametrize("side", [0, 1])
def test_what_defines_no_distribution_is_the_same_error_as_in_float64(bad, column, side):
    sides = [each.numpy() for each in pair_of(4, 1000)]
    sides[side][2, column] = bad
    told = []
    for precision in ("float32", "float64"):
        with pytest.raises(cs.InvalidLogits) as error:
            cs.certify(*sides, precision=precision)
        told.append(str(error.value))
    assert told[0] == told[1] and "row 2" in told[0]


def test_a_row_of_masks_alone_is_the_same_error_as_in_float64():
    target, draft = (each.numpy() for each in pair_of(3, 700))
    target[1] = -np.inf
    with pytest.raises(cs.InvalidLogits, match="target_logits: row 1 is -inf in every column"):
        cs.certify(target, draft, precision="float32")


def test_ties_are_the_lowest_ids_and_worth_nothing():
    logits = np.zeros((1, 300), np.float32)
    logits[0, [77, 200]] = 9.0
    scored = cs.certify(logits, logits + np.float32(0.5), precision="float32")
    assert (
        scored.target_top_ids[0, :4].tolist()
        == scored.draft_top_ids[0, :4].tolist()
        == [77, 200, 0, 1]
    )
    assert scored.at(cs.StrictGreedy()).certificate[0] == 0 and scored.path_counts["fast"] == 1


def test_calls_that_the_filter_does_not_know_are_float64():
    target, draft = pair_of(3, 500)
    for case in (
        cs.certify(target.double(), draft.double(), precision="float32"),
        cs.certify(target, None, precision="float32"),
        cs.certify(target, draft, cs.presets.medusa(), precision="float32"),
    ):
        assert case.path_counts == {"fast": 0, "rigorous": 3}
    assert len(cs.certify(target[:0], draft[:0], precision="float32")) == 0


def test_a_precision_that_a_backend_does_not_have_is_an_error():
    target, draft = pair_of(1, 20)
    with pytest.raises(
        cs.InvalidArgument, match="precision: expected one of float64, float32, got 'half'"
    ):
        cs.certify(target, draft, precision="half")
    with pytest.raises(cs.InvalidArgument, match="expected 'float64' with backend 'torch'"):
        cs.certify(target, draft, backend="torch", precision="float32")
    scored = cs.certify(target, draft, backend="torch", precision="float64")
    assert scored.path_counts["rigorous"] == 1


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    target, draft = pair_of(9, 30_000)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(numba_rows, "num_threads", lambda threads=threads: threads)
        found.append(cs.certify(target, draft, precision="float32"))
    assert torch.equal(found[0].kl_upper, found[1].kl_upper)
    assert torch.equal(found[0].certificate_lower, found[1].certificate_lower)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_adversarial_pair_is_falsely_certified(dtype):
    counts = count_false_certificates(200_000, 48, dtype=dtype, precision="float32", seed=3)
    assert counts["false_certificates"] == counts["false_bounds"] == 0
    assert counts["fast_rows"] > 0 and counts["certified"] > 0


@pytest.mark.parametrize("threads", [2, 5])
def test_rows_are_shared_out_between_threads_and_none_is_done_twice_or_left(monkeypatch, threads):
    target, draft = pair_of(23, 3000, seed=3)
    sides, table = (target.numpy(), draft.numpy()), rule_table(tuple(default_rules()))
    monkeypatch.setattr(numba_rows, "SMALL", 0)
    found = []
    for count in (1, threads):
        monkeypatch.setattr(numba_rows, "num_threads", lambda count=count: count)
        found.append(filter_rows(*sides, "float32", 3000, table, 9))
    for field in fields(found[0][0]):
        one, other = (getattr(scores, field.name) for scores, _ in found)
        np.testing.assert_array_equal(one, other, err_msg=field.name)
    np.testing.assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize(("items", "threads"), [(0, 3), (1, 3), (7, 1), (7, 3), (100, 3)])
def test_items_are_spread_over_threads_in_pieces_and_each_is_done_once(items, threads):
    done = []
    numba_rows.spread(lambda first, stop: done.extend(range(first, stop)), items, threads)
    assert sorted(done) == list(range(items))
