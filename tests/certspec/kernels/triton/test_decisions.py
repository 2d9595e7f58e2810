"""What the Triton kernels decide of a row at the edges: judge_row gets a row's summary in which a
token lies just inside or just outside what rounding leaves open, and is held against the rules'
definitions and what the claims count for roundings, written again in plain Python."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from certspec.kernels.rule_table import COLUMNS, FARTHEST_OFFSET
from tests.support.device import DEVICE

pytest.importorskip("triton")
import triton
import triton.language as tl

from certspec.kernels.triton import rules as judging
from certspec.kernels.triton.ranks import DEEP, THRESHOLD, UNDECIDED, Pointers, Ranked, Shape, Sizes
from certspec.kernels.triton.rules import judge_row, rule_parameters
from certspec.kernels.triton.segments import SPREAD

pytestmark = pytest.mark.triton

U = 2.0**-53
ROOM = 8 * U  # what the few roundings of an edge, here and in the kernel, can't exceed
EVENLY = 65 / 64  # the claims raise an error by this for products of errors
GIVEN = (  # in the order of Ranked
    "top",
    "normaliser",
    "relative",
    "entropy_error",
    "mean_gap",
    "kl_upper",
    "kl_lower",
    "draft_logit",
)
LANES, RUN, STEPS, CELLS, BATCH = 2, 2, 2, 2, 2
WIDE, SEGMENTS = 23, 8  # columns that are there, of 32 in segments
ABSENT = -1200.0  # the logit of a token of which nothing is said
TRAP = -4.5  # the gap of what no one may read
SLOTS = 8
_GIVEN, _ROOM = tl.constexpr(len(GIVEN)), tl.constexpr(64)


@triton.jit
def judged(
    given_ptr,
    top_ptr,
    id_ptr,
    target_ptr,
    statistics_ptr,
    rules_ptr,
    certificate_ptr,
    verdict_ptr,
    path_ptr,
    scratch_ptr,
    num_rows,
    num_columns,
    num_segments,
    RULES: tl.constexpr,
    RULE_SLOTS: tl.constexpr,
    RULE_COLUMNS: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    RANKS: tl.constexpr,
):
    """judge_row, each row with rules of its own."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    given = given_ptr + row * _GIVEN
    ids = id_ptr + row * (2 * SLOTS + 1)
    path = 0
    ranks = Ranked(
        path,
        tl.load(given),
        tl.load(given + 1),
        tl.load(given + 2),
        tl.load(given + 3),
        tl.load(given + 4),
        tl.load(given + 5),
        tl.load(given + 6),
        tl.load(given + 7),
        tl.load(top_ptr + row * SLOTS + slot),
        tl.load(ids + slot),
        tl.load(ids + SLOTS + slot),
        tl.load(ids + 2 * SLOTS),
    )
    pointers = Pointers(
        target_ptr,
        target_ptr,
        statistics_ptr,
        rules_ptr,
        certificate_ptr,
        verdict_ptr,
        given_ptr,
        id_ptr,
        path_ptr,
        scratch_ptr,
        given_ptr,
    )
    sizes = Sizes(_ROOM, _ROOM, num_rows, num_columns, num_segments)
    shape: tl.constexpr = Shape(
        RULES, RULE_SLOTS, RULE_COLUMNS, TOP, SLOTS, RANKS, 1, 1, 2, 1, 2, 2, 2, 2, 2, 2
    )
    rules = rule_parameters(rules_ptr + row * RULES * RULE_COLUMNS, shape)
    judge_row(row, rules, ranks, pointers, sizes, shape)


@triton.jit
def weight_errors(gap_ptr, error_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(error_ptr + at, judging._weight_error(tl.load(gap_ptr + at)))


@triton.jit
def parameters_of(
    rules_ptr, out_ptr, RULES: tl.constexpr, RULE_SLOTS: tl.constexpr, RULE_COLUMNS: tl.constexpr
):
    shape: tl.constexpr = Shape(
        RULES, RULE_SLOTS, RULE_COLUMNS, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
    )
    rules = rule_parameters(rules_ptr, shape)
    at = out_ptr + tl.arange(0, RULE_SLOTS)
    tl.store(at, rules.tree.to(tl.float64))
    tl.store(at + RULE_SLOTS, rules.gate.to(tl.float64))
    tl.store(at + 2 * RULE_SLOTS, rules.ratio)
    tl.store(at + 3 * RULE_SLOTS, rules.offset)
    tl.store(at + 4 * RULE_SLOTS, rules.cap)
    tl.store(at + 5 * RULE_SLOTS, rules.entropy_scale)
    tl.store(at + 6 * RULE_SLOTS, rules.strictly.to(tl.float64))


def rule(**numbers: float) -> list[float]:
    """A line of the rule table; without a number, that part is neutral."""
    offset = math.inf if "tree_width" in numbers else FARTHEST_OFFSET
    neutral = {"tree_width": 0, "top_m": 0, "scale": 0, "offset": offset, "cap": math.inf}
    neutral |= {"entropy_scale": math.inf, "strictly_above": 0, "smoothing_index": 0}
    return [float((neutral | numbers)[name]) for name in COLUMNS]


@dataclass
class Row:
    """``gaps`` of the known ranks, whose tokens are the columns 0, 1, ...; ``draft`` is its token's
    gap; ``others`` are gaps of further tokens by column."""

    rule: list[float]
    gaps: tuple[float, ...] = (0.0, -700.0)
    draft: float = 0.0
    draft_id: int = 0
    draft_ids: tuple[int, ...] = ()
    others: dict[int, float] = field(default_factory=dict)
    top: float = 0.0
    normaliser: float = 1.0
    relative: float = 0.0
    entropy_error: float = 0.0
    mean_gap: float = 0.75
    kl_upper: float = math.inf
    kl_lower: float = 0.0

    @property
    def draft_logit(self) -> float:
        return self.top + self.draft


def judge(
    rows: list[Row], *, ranks: int = 4, slots: int = SLOTS, columns: int = WIDE
) -> SimpleNamespace:
    """Certificate, its lower bound, accepted, certified and path of each row; the columns past
    ``columns``, and statistics that are not the target's maxima, hold what no one may read."""
    tops = np.full((len(rows), slots), -np.inf)
    ids = np.full((len(rows), 2 * slots + 1), 99, np.int32)
    target = np.full((len(rows), 64), ABSENT, np.float32)
    for n, row in enumerate(rows):
        logits = [row.top + gap for gap in row.gaps]
        known = logits[:ranks]
        tops[n, : len(known)] = known
        ids[n, :slots] = np.arange(slots)
        ids[n, slots : slots + len(row.draft_ids)] = row.draft_ids
        ids[n, 2 * slots] = row.draft_id
        target[n, : len(logits)] = logits
        for column, gap in row.others.items():
            target[n, column] = row.top + gap
        target[n, columns:] = row.top + TRAP
    chunks = np.where(np.arange(64) < columns, target, -np.inf)[:, : SEGMENTS * RUN * STEPS]
    chunks = chunks.reshape(len(rows), -1, STEPS, LANES, RUN).max(axis=(2, 4))
    statistics = np.zeros((len(rows), 6, SEGMENTS), np.float32)
    statistics += np.array([row.top + TRAP for row in rows])[:, None, None]
    places = chunks.reshape(len(rows), SPREAD.value, -1).transpose(0, 2, 1)
    statistics[:, 0] = places.reshape(len(rows), SEGMENTS)
    given = np.array([[getattr(row, name) for name in GIVEN] for row in rows])
    rules = np.array([row.rule for row in rows])
    found = {
        "certificate": torch.full((2, len(rows)), 7.0, dtype=torch.float64),
        "verdict": torch.full((2, len(rows)), 7, dtype=torch.uint8),
        "path": torch.full((len(rows),), 7, dtype=torch.int32),
        "scratch": torch.full((len(rows) + 1, SEGMENTS + CELLS), -7, dtype=torch.int32),
    }
    found = {name: tensor.to(DEVICE) for name, tensor in found.items()}
    inputs = [torch.from_numpy(x).to(DEVICE) for x in (given, tops, ids, target, statistics, rules)]
    judged[(len(rows),)](
        *inputs,
        *found.values(),
        len(rows),
        columns,
        SEGMENTS,
        RULES=1,
        RULE_SLOTS=1,
        RULE_COLUMNS=len(COLUMNS),
        TOP=slots - 1,
        SLOTS=slots,
        RANKS=ranks,
    )
    host = {name: tensor.cpu().numpy() for name, tensor in found.items()}
    exact, lower = host["certificate"]
    accepted, certified = host["verdict"].astype(bool)
    return SimpleNamespace(
        exact=exact,
        lower=lower,
        accepted=accepted,
        certified=certified,
        path=host["path"],
        scratch=host["scratch"],
    )


def has(path: np.ndarray, reason: Any) -> list[bool]:
    return ((path & reason.value) != 0).tolist()


def weight_error(gap: float) -> float:
    """The claims' (8 + |gap|) u of a weight, evenly, and 4 ulp of its exponential."""
    return EVENLY * (8 + min(-gap, 745.0)) * U + 8 * U


def test_a_weight_errs_by_its_gap_and_its_exponential():
    gaps = torch.tensor([0.0, -1.5, -744.0, -1e6], dtype=torch.float64, device=DEVICE)
    errors = torch.zeros_like(gaps)
    weight_errors[(1,)](gaps, errors, COUNT=4)
    stated = [weight_error(float(gap)) for gap in gaps]
    assert errors.tolist() == pytest.approx(stated, rel=1e-12, abs=0)


def test_the_rules_of_a_table_are_its_lines_and_past_them_all_is_accepted():
    lines = [
        rule(top_m=3, scale=0.5, offset=-0.25, strictly_above=1),
        rule(tree_width=2),
        rule(cap=0.125, entropy_scale=0.75),
        rule(tree_width=7, top_m=7, scale=7, offset=7, cap=7, entropy_scale=7, strictly_above=7),
    ]
    table = torch.tensor(lines, dtype=torch.float64, device=DEVICE)
    found = torch.full((7, 4), 9.0, dtype=torch.float64, device=DEVICE)
    parameters_of[(1,)](table, found, RULES=3, RULE_SLOTS=4, RULE_COLUMNS=len(COLUMNS))
    inf = math.inf
    assert found.T.tolist() == [
        [0, 3, 0.5, -0.25, inf, inf, 1],
        [2, 0, inf, 0, inf, inf, 0],  # an infinite offset is a scale
        [0, 0, 0, FARTHEST_OFFSET, 0.125, 0.75, 0],
        [0, 1, -inf, 0, inf, inf, 0],
    ]


def threshold_at(kind: str, side: str, weight: float, row: Row) -> list[float]:
    """A rule whose threshold's bound on a side is ``weight``."""
    sign = 1 if side == "high" else -1
    lost = 0 if side == "high" else 64 * U
    gap_error = row.entropy_error + row.relative
    if kind == "cap":
        factor = 1 + 4 * U + sign * EVENLY * row.relative - lost
        return rule(cap=weight / row.normaliser / factor)
    if kind == "entropy":
        factor = 1 + 20 * U + sign * EVENLY * gap_error - lost
        return rule(entropy_scale=weight / math.exp(-row.mean_gap) / factor)
    factor = 1 - 6 * U - sign * EVENLY * row.relative - lost
    return rule(scale=1.0, offset=(weight - 1 - 4 * U + lost) / factor / row.normaliser)


def edges(row: Row, kind: str, gap: float) -> list[Row]:
    """The row under rules whose thresholds lie so that the token at ``gap`` is just above what
    rounding leaves open, just inside it from above and from below, and just below it."""
    weight, error = math.exp(gap), weight_error(gap)
    room = ROOM / weight if kind == "offset" else ROOM
    bounds = [
        ("high", 1 - error - room),
        ("high", 1 - error + room),
        ("low", 1 + error - room),
        ("low", 1 + error + room),
    ]
    rules = [threshold_at(kind, side, weight * factor, row) for side, factor in bounds]
    return [replace(row, rule=own) for own in rules]


OPEN = [False, True, True, False]
LOOSE = {"top": 300.0, "normaliser": 2.5, "relative": 1e-6, "entropy_error": 3e-6}
TIGHT = {"top": 300.0, "normaliser": 2.5}


@pytest.mark.parametrize("errors", [LOOSE, TIGHT], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "gap"),
    [("cap", -600.0), ("cap", -30.0), ("entropy", -600.0), ("entropy", -30.0), ("offset", -2.0)],
)
def test_a_row_is_open_where_a_token_is_within_rounding_of_a_threshold(kind, gap, errors):
    ranked = Row([], gaps=(0.0, gap, -1000.0), **errors)
    drafted = Row([], draft=gap, draft_id=9, gaps=(0.0, -1000.0), **errors)
    found = judge(edges(ranked, kind, gap) + edges(drafted, kind, gap))
    assert has(found.path, THRESHOLD) == OPEN + OPEN
    assert found.accepted[[4, 7]].tolist() == [True, False]
    assert found.accepted[:4].all()  # the draft's token is the likeliest


@pytest.mark.parametrize("kind", ["cap", "entropy"])
def test_a_row_is_open_where_a_token_past_the_known_ranks_is_within_rounding(kind):
    gap, errors = -600.0, LOOSE | {"top": 600.125}  # a logit that float32 has to 1e-8
    row = Row([], gaps=(0.0, -1.0, -2.0, -3.0), others={7: gap, 12: -1000.0}, **errors)
    found = judge(edges(row, kind, gap))
    assert has(found.path, THRESHOLD) == OPEN
    assert has(found.path, DEEP) == [False] * 4


def test_the_largest_weight_meets_a_multiple_of_itself_exactly():
    """Whose threshold is the multiple alone; where a cap may be below it, the row is open."""
    times = {"scale": 1.0, "offset": 0.0}
    gaps = (0.0, -1.0, -3.0)
    rows = [
        Row(rule(**times), gaps, **LOOSE),
        Row(rule(**times, strictly_above=1), gaps, **LOOSE),
        Row(rule(**times, strictly_above=1, cap=(1 + 2e-6) / 2.5), gaps, **LOOSE),
        Row(rule(**times, strictly_above=1, cap=(1 + 0.5e-6) / 2.5), gaps, **LOOSE),
    ]
    near = {"normaliser": 1.0, "relative": 100 * U, "mean_gap": 0.0}
    for cap in (1.0, 1 + 80 * U, 1 + 120 * U):
        rows.append(Row(rule(**times, strictly_above=1, cap=cap), gaps, **near))
    found = judge(rows)
    assert has(found.path, THRESHOLD) == [False, False, False, True, True, True, False]
    assert found.accepted.tolist()[:3] == [True, False, False]
    assert (found.exact > 0).tolist()[:3] == [True, False, False]


def leveled(weights: np.ndarray, rejected: int, width: int) -> tuple[float, float, int]:
    """(sum of w log(w/c), mass, size) of the pool that the least divergence moves to one level c:
    the rejected token and those before it that lie above c, or of a tree the likeliest and those
    that lie below."""
    own = weights[0] if width else weights[rejected]
    others = weights[1 : width + 1] if width else weights[:rejected]
    sign = -1 if width else 1
    low, high = 0.0, 1.0
    for _ in range(100):
        c = (low + high) / 2
        moved = np.maximum(sign * (others - c), 0).sum()
        low, high = (c, high) if (moved > sign * (c - own)) == (sign > 0) else (low, c)
    pool = [mpmath.mpf(w) for w in (own, *others[sign * (others - c) > 0])]
    mass, size = sum(pool), len(pool)
    value = sum(w * mpmath.log(w * size / mass) for w in pool)
    return float(value), float(mass), size


def lower_bound(value: float, mass: float, size: int, gap: float, row: Row) -> float:
    """Claim bound.certificate_lower: what the pool's weights, its sum and the normaliser lose."""
    error = weight_error(gap)
    kept = value * (1 - 16 * U - error - size * U) - mass * (40 * U + error + 2 * size * U)
    return max(kept * (1 - 4 * U - EVENLY * row.relative) / row.normaliser, 0.0)


def upper_bound(value: float, mass: float, row: Row) -> float:
    """What the same may add: (n + 14) u, or 64 u, of the value, 1,001 u of the mass."""
    return (value * (1 + row.relative + 64 * U) + mass * 1001 * U) / row.normaliser


GAPS = (0.0, -0.125, -0.375, -2.0, -300.0)
POOLS = [  # a rule, the rank that it rejects first, its width
    (rule(scale=1.0, offset=0.0, strictly_above=1), 0, 0),
    (rule(cap=0.95 / 2.5), 1, 0),
    (rule(cap=0.4 / 2.5), 3, 0),
    (rule(cap=0.1 / 2.5), 4, 0),
    (rule(top_m=2, offset=-FARTHEST_OFFSET), 2, 0),
    *((rule(tree_width=width), 0, width) for width in (1, 2, 4)),
]
ALONE = [n for n, (_, rejected, width) in enumerate(POOLS) if not rejected and not width]


@pytest.mark.parametrize("slots", [8, 16])  # without a free slot for the rejected token, and with
@pytest.mark.parametrize("errors", [LOOSE, TIGHT], ids=["float32", "float64"])
def test_certificates_are_of_leveled_pools_and_their_bounds_pay_for_roundings(slots, errors):
    rows = [Row(rule, GAPS, **errors) for rule, _, _ in POOLS]
    pools = [leveled(np.exp(GAPS), rejected, width) for _, rejected, width in POOLS]
    lowest = [GAPS[width or rejected] for _, rejected, width in POOLS]
    lower = [
        lower_bound(*pool, gap, row) for pool, gap, row in zip(pools, lowest, rows, strict=True)
    ]
    upper = [upper_bound(*pool[:2], row) for pool, row in zip(pools, rows, strict=True)]
    for n, row in enumerate(rows):
        row.kl_lower = upper[n] - ROOM
    above = [replace(row, kl_lower=row.kl_lower + 2 * ROOM) for row in rows]
    found = judge(rows + above, ranks=8, slots=slots)
    exact = [value / errors["normaliser"] for value, _, _ in pools]
    for n in ALONE:  # a pool of one is worth nothing, and so it stays
        exact[n] = lower[n] = 0.0
    assert found.exact == pytest.approx(2 * exact, rel=0, abs=ROOM)
    assert found.lower == pytest.approx(2 * lower, rel=0, abs=ROOM)
    open_ones = [n not in ALONE for n in range(len(rows))] + [False] * len(rows)
    assert has(found.path, UNDECIDED) == open_ones


def test_a_weight_of_exactly_1_has_no_error():
    """The likeliest token's, beside a threshold that is known better than weights are."""
    rows = [
        Row(rule(cap=1 - 12 * U), gaps=(0.0, -50.0)),
        Row(rule(cap=1 - 12 * U), gaps=(0.0, -50.0), draft=-50.0, draft_id=9),
        Row(rule(cap=1 - 12 * U, top_m=1), gaps=(0.0, -50.0)),
    ]
    assert has(judge(rows).path, THRESHOLD) == [False] * 3


@pytest.mark.parametrize("ranks", [7, 8])
def test_every_known_rank_may_be_in_a_pool(ranks):
    gaps = (0.0, *np.linspace(-0.25, -2.0, ranks - 1))
    row = Row(rule(tree_width=ranks - 1), gaps)
    value, _, _ = leveled(np.exp(gaps), 0, ranks - 1)  # with the last
    assert judge([row], ranks=ranks).exact[0] == pytest.approx(value, rel=0, abs=ROOM)


KNOWN = (0.0, -1.0, -1.5, -2.0)


def test_past_the_known_ranks_the_likeliest_rejected_token_is_found_among_what_is_there():
    """Beside columns, statistics and other rows' lists that are not its own."""
    own = rule(cap=math.exp(-4.0) / 2.5)
    rows = [
        Row(own, KNOWN, others={22: -3.0, 9: -5.0}, **LOOSE),  # the maximum of a segment
        Row(own, KNOWN, others={12: -3.0, 9: -5.0}, **LOOSE),  # beside an accepted token
        Row(own, KNOWN, others={22: -3.0, 18: -5.0}, **LOOSE),
    ]
    found = judge(rows)
    value, mass, size = leveled(np.exp([*KNOWN, -3.0, -5.0]), 5, 0)
    assert found.exact == pytest.approx([value / 2.5] * 3, rel=0, abs=ROOM)
    lower = lower_bound(value, mass, size, -5.0, rows[0])
    assert found.lower == pytest.approx([lower] * 3, rel=0, abs=ROOM)
    assert has(found.path, THRESHOLD) == has(found.path, DEEP) == [False] * 3
    rest = [-7] * (SEGMENTS + CELLS - 3)
    lists = [[0, 4, 6, *rest], [0, 1, 4, *rest], [0, 4, 6, *rest], [-7, -7, -7, *rest]]
    assert found.scratch.tolist() == lists


def test_a_token_on_the_rounded_logarithm_of_a_threshold_is_weighed_itself():
    own = rule(cap=math.exp(-3.0) * (1 - 1e-9))
    found = judge([Row(own, KNOWN, others={22: -3.0, 9: -5.0})])
    value, _, _ = leveled(np.exp([*KNOWN, -3.0, -5.0]), 5, 0)
    assert has(found.path, THRESHOLD) == [False]
    assert found.exact == pytest.approx([value], rel=0, abs=ROOM)


def test_where_nothing_is_below_a_threshold_there_is_no_finite_certificate():
    others = dict.fromkeys(range(4, 24), -20.0)
    rows = [Row(rule(cap=cap), KNOWN, others=others) for cap in (0.0, 1e-30)]
    found = judge(rows, columns=24)
    assert found.exact.tolist() == found.lower.tolist() == [math.inf] * 2
    assert has(found.path, THRESHOLD) == [False] * 2
    found = judge([Row(rule(tree_width=width), KNOWN) for width in (3, 4)], columns=4)
    assert np.isinf(found.exact).tolist() == [False, True]  # a tree of all columns


def test_a_pool_that_may_reach_past_the_known_ranks_is_open():
    others = {22: -4.0, 9: -4.75}
    levels = [(0.0, 0.0, 0.0, -1.25), (0.0, 0.0, 0.0, -0.125)]  # three are pooled, and all
    rows = [Row(rule(cap=math.exp(-4.5)), gaps, others=others) for gaps in levels]
    assert has(judge(rows).path, DEEP) == [False, True]
