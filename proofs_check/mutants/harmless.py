"""Mutants that nothing notices because nothing is wrong with them: the file, a piece of the changed
text, what stands there instead, and why it does no harm."""

from __future__ import annotations

from fnmatch import fnmatch

from proofs_check.mutants.subjects import ROOT, Mutation

__all__ = ["REASONS", "reason_for"]

# (path, or path::line; old text, new text, as globs; the reason)
_GENERATED = "certspec/kernels/generated/"
_ONE_FUNCTION = (
    "a series, or another form, takes over: both sides of the comparison are the same function, as "
    "printed shows on both branches"
)
_SAFE = "the bound moves to its safe side"
_CELLS = "certspec/certificates/drafter_entropy.py"
_GUIDE = "where the search goes on: any multiplier has a bound, and the best met is kept"
_OF_EQUALS = "of two equal numbers it is no matter which is taken"
_MARGINS = "certspec/certificates/margin_bounds.py"
_MASSES = "certspec/certificates/lumped_masses.py"
_LISTED = "certspec/certificates/lumped_rules.py"
_BEST = (
    "a guide: a cell that is left out has a bound above the best value known, and the least bound "
    "that is kept has not"
)
_ENDS = "ends of what an error of 2^-46 or more allows: no logprob is at either"
_JOINS = "a token that lies at the level adds nothing"
_NOTHING = "what is multiplied with it is 0 there"
_SQUARE = "a level beside the mean changes the sum by the square of how far it lies"
_BELOW = "any number below 0 says that there is no token"
_BISECTED = "where a bisection looks next, or begins"
_BOTH = "where both forms have one value: the step of kernel.margins that lists these boundaries"
_SHARED = "threads share rows, or take whole ones: no bit changes (kernels/numba/test_vectors.py)"
_REMAINDER = "r is up to 1e-6 farther from 0: claim kernel.streamed_exp encloses 2^-19 more"
_FORMULAS = "derivations/formulas/"
_ROOM_LEFT = "two bounds that are equal: both have room left"
_PLANNED = "at the end of one plan the next one serves as well"
_LEAST = "no token from the rejected one on lies above a mean that it is part of"
_SEGMENTS, _RANKS = (f"certspec/kernels/triton/{name}.py" for name in ("segments", "ranks"))
_IN_FLOAT32 = "float32 rounds it back"
_FIRST = "the first column's number is 0"
_VANISHES = "at most 2^-100 is added, and the largest exponential is above 1/2"
_NOT_REAL = "one number of scratch more is loaded, of whose columns none is real"
_NO_LOGITS = (
    "a segment without a finite logit has no real column, or a NaN that leaves the row open"
)
_NO_SUCH_CARD = "no card's memory is within a percent of it"
_NOT_NEAR_1 = "no order is within a hundredth of 1"
_OTHER_FORM = "both forms of one function hold around the limit between them"
_ANY_SET = (
    "a token beside the level is pooled or not: in total variation any set of tokens has a bound "
    "(claim variation.single), else it moves the value by the square of how far it lies"
)
_NO_RIVAL_AFTER = "of what is no rival nothing joins, and no rival comes after it"
_NO_INFINITY = "an infinite logit makes a row's sums NaN: no bound is infinite"
REASONS: tuple[tuple[str, str, str, str], ...] = (
    *(
        (_GENERATED + "reverse_margins_python.py", old, new, _BOTH)
        for old, new in (
            ("rest <= alpha?(1.0 + gap)", "(rest < *"),
            ("rest < alpha?gap", "(rest <= *"),
        )
    ),
    *(
        (f"derivations/margins/{file}", old, new, _BOTH)
        for file, old, new in (
            ("margins.py", "2 ? gap >= slack", "(2 ? gap > slack)"),
            ("margins.py", "gap >= corner", "(gap > corner)"),
            ("gate_margins.py", "gap <= slack", "(gap < slack)"),
            ("gate_margins.py", "2 ? gap <= 1 + slack", "(2 ? gap < *"),
            ("gate_margins.py", "gap ? (1 + alpha) <= 1", "(gap * < 1)"),
            ("radius_margins.py", "gap ? (1 + alpha) <= 1", "(gap * < 1)"),
            ("projection_margins.py", "gap ? (1 + alpha) >= *", "(gap * > *"),
            ("upper_bounds.py", "rest ? (whole + 1) <= *", "(rest * < *"),
        )
    ),
    *(
        (_FORMULAS + file, old, new, _JOINS)
        for file, old, new in (
            ("levels.py", "value ? count > total", "(value * >= total)"),
            ("lumped.py", "prob ? count < mass ? copies", "(prob * <= *"),
            ("projections.py", "base_probs?i? ?? len(pool) > product", "(* >= product)"),
            ("projections.py", "base_probs?i? ?? len(pool) < product", "(* <= product)"),
            ("renyi.py", "prob > power_mean*", "(prob >= *"),
            ("renyi.py", "prob < power_mean*", "(prob <= *"),
            ("renyi.py", "prob ? len(pooled) < *", "(prob * <= *"),
            ("tree.py", "target_probs?i? ? len(pool) < total", "(* <= total)"),
        )
    ),
    *(
        (path, old, new, why)
        for path, old, new, why in (
            ("derivations/*", "1 + * ? 0", "(1 - * ? 0)", "0 is added, of the number's own kind"),
            ("derivations/*", "size + size ? 0", "(size - size ? 0)", "0 is added"),
            ("derivations/*", "target_probs?i? > 0", "(* >= 0)", _NOTHING),
            (_FORMULAS + "lumped.py", "p > 0", "(p >= 0)", _NOTHING),
            (_FORMULAS + "lumped.py", "value > best", "(value >= best)", _OF_EQUALS),
            (_FORMULAS + "drafter.py", "top > tau", "(top >= tau)", "d_bin(tau || tau) is 0"),
            (
                _FORMULAS + "drafter_entropy.py",
                "draft_probs?0? > epsilon",
                "(* >= epsilon)",
                "d_bin(eps || eps) is 0, and the other bound is not negative",
            ),
            (
                _FORMULAS + "drafter_entropy.py",
                "len(others) > 1",
                "(len(others) >= 1)",
                "one token alone does not diverge from itself",
            ),
            (
                _FORMULAS + "projections.py",
                "1 - total",
                "(1 + total)",
                "a pool that lifts has no token without mass; projection.sink notices",
            ),
            (
                _FORMULAS + "robust.py",
                "len(gains) + 1",
                "(len(gains) + 2)",
                "one split more is the last one again",
            ),
            (
                _FORMULAS + "robust.py",
                "k < split",
                "(k <= split)",
                "the largest gain is at its lower end in the best split",
            ),
            (_FORMULAS + "robust.py", "offset > 0", "(offset >= 0)", "one value in both forms"),
            (
                _FORMULAS + "robust.py::raised = *",
                "scale + offset*",
                "*",
                "of a threshold below 0 only the sign counts",
            ),
        )
    ),
    *(
        (_GENERATED + "margins_python.py", old, new, _BOTH)
        for old, new in (
            ("slack <= 2.0?gap", "(slack < *"),
            ("gap >= (1.0 - alpha)/*", "(gap > *"),
            ("gap <= slack", "(gap < *"),
            ("gap <= 0.5 + 0.5?slack", "(gap < *"),
            ("slack >= 1.0", "(slack > 1.0)"),
            ("gap?(1.0 + alpha) <= 1.0", "(gap * < 1.0)"),
        )
    ),
    *(
        (f"certspec/kernels/triton/rules.py::{line}", old, new, why)
        for line, old, new, why in (
            ("weights = *", "*", "(weight?None, :? - 0.0 *", "0 is added"),
            ("if FREE *", "FREE ?* 0", "*", "a free slot is the last of 16 or of 32"),
            ("tree = tl.load(*", "parameters + *", "(parameters - *", "the first column"),
            ("gate = tl.load(*", "1.0", "(1.0000*)", "it becomes an integer"),
            ("shown = *", "slot < TOP", "*", "gates and trees of a table end before its last rank"),
            ("tau_low -= *", "tau > *", "*", "-inf less inf is -inf"),
            ("close = *", "(weight + slack)* >= *", "(* > *", _ROOM_LEFT),
            ("(weight - slack)*", "* <= *", "(* < *", _ROOM_LEFT),
            ("deep = *", "num_columns > RANKS", "*", "a search where all tokens are known"),
            ("deep = *", "tau_high >= 0.0", "*", "at 0 nothing is rejected: no search finds it"),
            ("if tl.max(deep*", "* > 0", "*", "a search that no rule asks for"),
            ("if own_cut < *", "own_cut < *", "*", "a search that the rule does not ask for"),
            ("cut = (top_logit *", "tau > 0.0", "*", "the next line replaces the logarithm of 0"),
            ("cut = (top_logit *", "1.0", "*", "the next line replaces its logarithm"),
            ("clear = over_weight *", "* > tau_high", "(* >= *", _ROOM_LEFT),
            ("clear = clear *", "* < tau_low", "(* <= *", _ROOM_LEFT),
            ("before = *", "*", "(* <= tl.minimum(*", _LEAST),
            ("before = *", "tl.minimum(*", "tl.maximum(*", _LEAST),
            ("in_single = *", "* > mean_with", "*", _JOINS),
            ("(slot?None, :? == 0) *", "* < mean_tree", "*", _JOINS),
            ("mean_tree = *", "1.0", "(1.0000*)", _SQUARE),
            ("size = *", "1.0", "(1.0000*)", "two plain numbers are float32's: it is 1"),
            ("lone = *", "1.0", "(1.0000*)", "two plain numbers are float32's: it is 1"),
            ("value = _pool_value(*", "mass > 0.0", "*", "no pool's mass is below 1"),
            ("value = _pool_value(*", "1.0", "*", "no pool's mass is below 1"),
            ("smallest = *", "2.0", "*", "the likeliest is pooled, and no weight is above its 1"),
            ("draft_below = *", "*", "(* - tl.zeros(*", "0 is taken off"),
            ("draft_close = (draft_weight *", "* >= tau_low", "(* > *", _ROOM_LEFT),
            ("draft_close = (draft_weight *", "* <= tau_high", "(* < *", _ROOM_LEFT),
            ("certified = kl_upper *", "*", "(* <= *", _ROOM_LEFT),
            ("decided = *", "* >= upper", "(* > *", _ROOM_LEFT),
        )
    ),
    *(
        (f"certspec/kernels/triton/rows.py::{line}", old, new, why)
        for line, old, new, why in (
            ("plan = Plan(*", "num_top <= 16", "*", _PLANNED),
            ("while plan.near *", "* > num_columns", "*", _PLANNED),
            ("parts, added = *", "ranks <= 16", "*", _PLANNED),
            ("parts, added = *", "num_segments >= 512", "*", _PLANNED),
            ("warps = *", "num_rows <= *", "(num_rows < *", _PLANNED),
            ("if num_rows > 128 and *", "num_rows > 128", "*", _PLANNED),
            ("if num_rows > 128 and *", "* <= num_columns", "*", _PLANNED),
            ("return 2e3 *", "2e3", "(2000.00*)", _NO_SUCH_CARD),
            ("return 2e3 *", "* > FAST_BYTES", "*", _NO_SUCH_CARD),
            ("if tl.max(is_open*", "* > 0", "*", "a look at rows none of which is open"),
            ("and num_top <= MAX_TOP", "*", "*", "the torch backend scores them"),
            ("itemsize = *", "max(*", "min(*", "how many columns a thread reads at once"),
            ("prob_error=*", "NORMALISER_ERROR", "(* * 0)", "the first column"),
        )
    ),
    (
        _GENERATED + "drafter_*.py",
        "640.0",
        "(*)",
        "any multiplier of at least 0 has a bound (claim drafter.dual)",
    ),
    (_GENERATED + "drafter_*.py", "tau >= top", "(tau > top)", "d_bin(tau || tau) is 0"),
    (
        _GENERATED + "robust_torch.py",
        "offset + scale >= 0.0",
        "(offset + scale > 0.0)",
        "what is multiplied with it is 0 there",
    ),
    (
        _GENERATED + "pool_numba.py",
        "head < rejected",
        "(head <= rejected)",
        "the rejected token is the least of its pool: never above the mean, it ends the loop",
    ),
    (
        _GENERATED + "pool_numba.py",
        "tail > 1",
        "(tail >= 1)",
        "token 1 is the largest of its pool: never below the mean, it ends the loop",
    ),
    *(
        (f"{_MARGINS}::{line}", old, new, why)
        for line, old, new, why in (
            ("if margin < *", "margin < *", "(margin <= *", "either bound serves there"),
            ("if margin < *", "2.0", "(2.0000*)", "either bound serves there"),
            ("*(1.0 + margin) / 2.0*", "1.0", "(1.0000*)", _BEST),
            ("*(1.0 + margin) / 2.0*", "2.0", "*", _BEST),
            ("parts = *", "1.0", "(1.0000*)", "a cell may be cut anywhere"),
            ("parts = *", "_PARTS + 1", "*", "a cell may be cut into any number of parts"),
            ("reachable = *", "high > margin", "*", _SAFE + ": a cell more"),
            ("kept = *", "bound <= best", "*", "the least is not above it"),
            *(
                ("if best *", old, new, "where the search ends: the level before serves")
                for old, new in (
                    ("best * <= simple", "(best * < simple)"),
                    ("1.0", "(1.0000*)"),
                    ("1.0 - _ROUNDING", "(1.0 + _ROUNDING)"),
                    ("_ROUNDING", "(_ROUNDING *)"),
                    ("len(low) > _MOST_CELLS", "(len(low) >= _MOST_CELLS)"),
                )
            ),
            ("inner = *", "high - gap", "(high + gap)", _BEST),
            ("inner = *", "1.0", "*", _BEST),
            ("return bound, *", "1.0", "(1.0000*)", _BEST),
            ("return bound, *", "1.0 - 1e-9", "(1.0 + 1e-09)", _BEST),
            ("return bound, *", "1e-9", "*", _BEST),
            (
                "high, low = *",
                "1e-306",
                "(5e-307)",
                "where the bisection begins: log b stays within the 706 that claim "
                "kernel.entropy_floor counts",
            ),
            ("most = *", "1.0", "(1.0000*)", _SAFE + ": pairs of more than all mass"),
            ("most = *", "np.nextafter(*", "*", "an ulp, of what a cell's width leaves out 1e10"),
            ("above = *", "own >= most", "*", "the smaller of both is taken"),
            ("above = *", "floor > *", "*", "the slack is far above rounding"),
            ("return mass *", "share < *", "*", "claim kernel.entropy_cells counts both forms"),
            ("if alpha == 1.0 or *", "of_draft.chord_use(*", "*>= 1.0 + slack*", _OF_EQUALS),
            ("if of_draft.chord_use(middle*", "*", "(* < *", _OF_EQUALS),
            ("return value *", "value > *", "(value >= *", "2^-1000 itself is a normal number"),
        )
    ),
    *(
        (f"certspec/kernels/torch/robust.py::{line}", old, new, why)
        for line, old, new, why in (
            (
                "top_logits, top_ids = *",
                "max(num_top, MIN_SETTLING)",
                "min(*",
                "below the ranks that are known a competitor has the weight that is needed",
            ),
            ("ratios = *", "probs > 0", "*", "a token without probability adds 0 to every sum"),
            ("bounds = *", "1.0", "(1.0000*)", _SAFE + ": a wider range of the likeliest token"),
            *(
                (f"{line} = *", old, new, _GUIDE)
                for line, old, new in (
                    ("low, high", "kl - radius", "(kl + radius)"),
                    ("low, high", "2.0", "*"),
                    ("low, high", "mass < slope", "(mass <= slope)"),
                    ("newton", "tilt + 1.0", "(tilt - 1.0)"),
                    ("newton", "tilt + 1.0 - mass / slope", "(tilt + 1.0 + mass / slope)"),
                    ("newton", "1.0", "*"),
                    ("tilt", "newton > low", "(newton >= low)"),
                    ("tilt", "newton < high", "(newton <= high)"),
                    ("tilt", "low + high", "(low - high)"),
                    ("tilt", "2.0", "*"),
                    ("between", "low < target", "(low <= target)"),
                    ("between", "high > target", "(high >= target)"),
                    ("ends", "low >= target", "(low > target)"),
                    ("ends", "ends + rival", "(ends - rival)"),
                    ("members", "1.0", "*"),
                    ("members", "1.0 + pooled.sum(dim=1)", "(1.0 - pooled.sum(dim=1))"),
                    ("members", "1.0 + pooled* - between*", "(1.0 + pooled* + between*"),
                )
            ),
            ("best = *", "certain > 0", "*", "the logarithm of 0 is no bound"),
            ("return torch.minimum(high, *", "torch.minimum(*", "torch.maximum(*", _GUIDE),
            ("return torch.minimum(high, *", "torch.maximum(*", "torch.minimum(*", _GUIDE),
            ("open_pool = *", "rank > 0", "*", "the likeliest, grown, is not below itself"),
            ("open_pool = *", "rival*", "*", "a pool of equals costs 0"),
            ("count, parameters = *", "rule + 1", "(rule + 2)", "only the first is read"),
            ("most = *", "* - *", "(* + *", _SAFE + ": a heavier rest"),
            ("known = *", "0.5", "(0.25)", _SAFE + ": no bound in a box a third of a nat smaller"),
            ("known = *", "0.5", "(0.5000*)", "1e-9 of what roundings may add up to"),
            ("known = *", "error < 0.5", "(error <= 0.5)", "at half of it as just below"),
            ("ceiling = ceiling + *", "1.0", "(1.0000*)", "1e-9 of what roundings may add up to"),
        )
    ),
    (
        "certspec/kernels/torch/rows.py::*?row : row + 1?*",
        "row + 1",
        "(row + 2)",
        "of two rows the first is read",
    ),
    (
        "certspec/kernels/torch/rows.py::one = slice*",
        "rule + 1",
        "(rule + 2)",
        "of two rules the first is read",
    ),
    (
        "certspec/kernels/torch/rows.py",
        "draft.full_span < FARTHEST_SPAN",
        "(* <= *",
        "both bounds hold there",
    ),
    (
        "certspec/kernels/torch/rows.py",
        "count > 256",
        "(count >= 256)",
        "two ways to sort give one order",
    ),
    (
        "certspec/kernels/torch/rows.py",
        "ratio >= FAR_BELOW",
        "(ratio > FAR_BELOW)",
        "two forms of one function",
    ),
    (
        "certspec/kernels/torch/rows.py",
        "first_row + row",
        "(first_row - row)",
        "names a row whose logits are wrong: one that is scored again has none",
    ),
    (
        "certspec/kernels/torch/rows.py",
        "max(1, *",
        "min(1, *",
        "how many rows are scored at once: one",
    ),
    *(
        (f"certspec/kernels/torch/divergences.py::{line}", old, new, why)
        for line, old, new, why in (
            ("one = *", "rule + 1", "(rule + 2)", "of two rules the first is read"),
            ("infinite = *", "order > 1.0", "(order >= 1.0)", _NOT_NEAR_1),
            ("infinite = *", "1.0", "(1.0000*)", _NOT_NEAR_1),
            ("if order > 1.0:", "order > 1.0", "(order >= 1.0)", _NOT_NEAR_1),
            ("if order > 1.0:", "1.0", "(1.0000*)", _NOT_NEAR_1),
            (
                "nothing = *",
                "threshold.upper?0? < 0",
                "(* <= 0)",
                "at 0 every token is near, and the exact decision is that nothing is rejected",
            ),
            ("means = *", "2.0", "(2.0000*)", _ANY_SET),
            ("head = *", "ranks < rank?:, None?", "(* <= *", _LEAST),
            ("head = *", "probs > means", "(* >= *", _JOINS),
            ("joined = *", "rising < *", "(* <= *", _JOINS),
            ("far = *", "spread < -0.5", "(* <= *", _OTHER_FORM),
            ("far = *", "0.5", "*", _OTHER_FORM),
            ("least = *", "1.0", "(1.0000*)", _SAFE + ": more is kept, and at such orders costs"),
        )
    ),
    *(
        (f"certspec/certificates/pools.py::{line}", old, new, why)
        for line, old, new, why in (
            ("if num_top > _FEW:", "num_top > _FEW", "*", "two ways to take the largest"),
            ("rivals = columns < hub", "*", "(columns <= hub)", _LEAST),
            ("logs = xp.log(*", "1.0", "*", _NO_RIVAL_AFTER),
            ("logs, own_log = *", "1.0", "(1.0000*)", _SQUARE),
            ("columns + 1.0", "1.0", "(1.0000*)", _SQUARE),
            ("before = (after *", "1.0", "(1.0000*)", _SQUARE),
            ("return _pool(*", "logs ? before", "(logs ?= before)", _JOINS),
        )
    ),
    *(
        (f"certspec/certificates/reduced.py::{line}", old, new, why)
        for line, old, new, why in (
            ("certified=*", "inner.kl_upper < lower", "(* <= *", _ROOM_LEFT),
            (
                "for count in *",
                "counts < part.shape?1?",
                "(* <= *",
                "a gate as wide as the part rejects nothing: +inf as well",
            ),
            ("step = *", "max(*", "min(*", "how many rows are looked at at once: one"),
            ("own, at = *", "rule + 1", "(rule + 2)", "of two rules the first is read"),
        )
    ),
    *(
        (f"certspec/kernels/reference.py::{line}", old, new, why)
        for line, old, new, why in (
            (
                "if threshold.entropy_scale < *",
                "threshold.entropy_scale < *",
                "(threshold.entropy_scale <= *",
                "inf times a number is no bound",
            ),
            ("lower = *", "row.weights > NEGLIGIBLE", "*", "its error is bounded at 1e-290 too"),
            ("if not weight *", "*", "(weight >= *", _JOINS),
            ("if not weight < *", "*", "(weight <= *", _JOINS),
            ("raised = _pool_sum*", "1 + (size *", "(1 - (size *", _SQUARE),
            ("raised = _pool_sum*", "size + *", "(size - *", _SQUARE),
            ("raised = _pool_sum*", "paid.MEAN_COUNT", "*", _SQUARE),
            ("close = *", "row.weights >= *", "*", "rounding moves it by half of that"),
            ("target_probs > 0*", "target_probs > 0", "*", _NOTHING),
            ("terms = *", "log_ratio < FAR_BELOW", "*", "two forms of one function"),
            ("if draft_span > *", "draft_span > *", "(* >= *", "both bounds hold there"),
            ("*?row : row + 1?*", "row + 1", "(row + 2)", "of two rows the first is read"),
            ("2 ? slope*", "0.5", "(0.5000*)", "1e-7 of what underflow may hide, or less"),
        )
    ),
    *(
        (f"{_MASSES}::{line}", old, new, why)
        for line, old, new, why in (
            ("following = *", "1.0", "*", _BELOW),
            ("means >= following*", "means >= following", "*", _JOINS),
            ("following >= means*", "following >= means", "*", _JOINS),
            ("return np.where(ordered*", "*<= competitor", "*", "a pool of equals costs 0"),
            ("1.0 + np.concatenate(*", "1.0", "(1.0000*)", _SQUARE),
            ("found: Floats = np.where(target_probs*", "target_probs > 0.0", "*", _NOTHING),
            ("between = *", "* <= high", "*", "the greatest tail is looked at as well"),
            ("spread = high *", "smoothing > 0.0", "*", "-log 0 is inf as well"),
            ("signed = np.where(ratios *", "ratios > 0.0", "*", _NOTHING),
            ("can_tie = *", "* >= self.last_prob *", "*", "no error is below 2^-46"),
            ("self.tail = *", "1.0", "(1.0000*)", "an end that no mass has"),
            ("tails = *", "1.0", "(1.0000*)", "an end that no mass has"),
        )
    ),
    *(
        (f"{_LISTED}::{line}", old, new, why)
        for line, old, new, why in (
            ("accepted, rejected = low > *", "low > *", "(low >= *", _ENDS),
            ("accepted, rejected = low > *", "high < *", "(high <= *", _ENDS),
            ("seen_inside = *", "view.draft_tail_high < *", "*", _ENDS),
            (
                "rows.greatest_place?:, gate? *",
                "* < rows.num_columns",
                "*",
                "a place or beyond all",
            ),
            ("below = *", "rows.unlisted_bound < *", "*", _ENDS),
            ("on_top = *", "1.0", "(1.0000*)", "no rule has such a scale"),
            ("and threshold.scale *", "1.0", "(1.0000*)", "no rule has such a scale"),
            ("others = np.where(rows.ranked*", "1.0", "*", _BELOW),
            ("others = np.where(view.inside*", "1.0", "*", _BELOW),
            (
                "missing = *",
                "width - *",
                "(width + *",
                "what is padded beyond the width is cut off",
            ),
            (
                "for count in range(*",
                "width + 1",
                "(width + 2)",
                "more tokens in the tail than there are: +inf, which lowers nothing",
            ),
        )
    ),
    *(
        (f"{_CELLS}::{line}", old, new, why)
        for line, old, new, why in (
            ("v = *", "2.0", "(2.0000*)", _BISECTED),
            ("low, high = 0.0, 0.5", "0.5", "(0.5000*)", _BISECTED),
            (
                "turn = *",
                "1.0",
                "(1.0000*)",
                "a turn beside its place moves the bound by the square of how far",
            ),
            ("return np.where((turn > low) *", "turn > low", "*", "both have one value there"),
            ("return np.where((turn > low) *", "kappa < 1.0", "*", "both have one value there"),
            *(
                ("crossed = *", old, new, "both tangents have one value where they meet")
                for old, new in (
                    ("np.minimum(*", "np.maximum(*"),
                    ("start + rise ? meeting", "(start - *"),
                    ("end + fall ? (width - meeting)", "(end - *"),
                )
            ),
            ("np.minimum(crossed, *", "np.minimum(start, end)", "*", "they meet below both ends"),
            *(
                (line, f"{slope} < 0.0", f"({slope} <= 0.0)", "a level tangent bounds by its value")
                for line in ("(rise < 0.0) & *", "inside = np.where((rise *")
                for slope in ("rise", "fall")
            ),
            ("return np.where(low > *", "low > 0.0", "*", _SAFE + ": no bound of a cell from 0 on"),
            ("return high *", "4.0", "(4.0000*)", "1e-9 of what rounding may move"),
            ("return 1.0", "1.0", "(1.0000*)", _SAFE + ": a share that no token has"),
            ("if math.log(v) *", "*", "(* < log_delta)", _OF_EQUALS),
            ("if ceiling > *", "ceiling > *", "*", _SAFE + ": one more bound"),
            ("return np.where(own < *", "own < *", "*", "the divergence of two equal laws is 0"),
            (
                "((highest?rows? *",
                "_BUCKETS - 1",
                "(_BUCKETS - 2)",
                _SAFE + ": the farthest tokens in a bucket of larger size",
            ),
            (
                "highest = np.where(mass *",
                "mass > 0.0",
                "*",
                _SAFE + ": the largest size, of an atom without mass",
            ),
            ("return np.where(kappa *", "kappa > 0.0", "*", "0 times a logarithm is added"),
            (
                "cells?every_row, lowest? = *",
                "*",
                "np.minimum(*",
                _SAFE + ": the lower of two bounds",
            ),
            ("last = len(*", "len(*) - 1", "(len(*) - 2)", _GUIDE),
            ("first, end = *", "np.maximum(best - 1, 0)", "np.minimum(*", _GUIDE),
            ("first, end = *", "best - 1", "*", _GUIDE),
            ("first, end = *", "best + 1", "*", _GUIDE),
            ("steps = *", "1.0", "*", _GUIDE),
        )
    ),
    (_GENERATED + "*", "* <= 0.5", "(* < 0.5)", _ONE_FUNCTION),
    (_GENERATED + "*", "*abs(*) <= (1.0 / 5.0)", "(*abs(*) < 1.0 / 5.0)", _ONE_FUNCTION),
    (_GENERATED + "*", "*abs(*) <= 0.125", "(*abs(*) < 0.125)", _ONE_FUNCTION),
    (_GENERATED + "*", "change >= -0.5", "(change > -0.5)", _ONE_FUNCTION),
    (_GENERATED + "*", "0.5", "(0.50000000046566*)", _ONE_FUNCTION),  # a factor does not survive
    (
        _GENERATED + "*",
        "0.5",  # where log1p(-x) gives way to log(1 - x): a factor does not survive
        "(0.25)",
        "both sides of the comparison are the same function; a logarithm of up to 3/4, not 1/2, "
        "makes 3.5 for 1.4 of what is rounded under it, and of that there is little",
    ),
    (
        _GENERATED + "drafter_margins_python.py",
        "2.0",  # of the tilt, likewise
        "(*)",
        "both sides of the comparison are the same function; at 1 the logarithm makes 7 for 2.8 of "
        "the 31 u that are rounded under it",
    ),
    (_GENERATED + "*", "tilt <= 2.0", "(tilt < 2.0)", _ONE_FUNCTION),
    (_GENERATED + "*", "normaliser < *", "(normaliser <= *)", "S is what both sides ask for there"),
    (
        "derivations/formulas/single_token.py",
        "target_probs?i? * len(pool) > total",
        "*>= total*",
        "a token that lies at the level adds nothing: w log(w/c) is 0, and the level stays",
    ),
    *(
        (f"derivations/margins/radius_margins.py::{line}", old, new, why)
        for line, old, new, why in (
            ("moved = *", "-share + *", "(-share - *", "smaller steps to the same root"),
            ("if not moved > low:", "moved > low", "(moved >= low)", "steps at the root itself"),
            ("if gap * *", "* >= 1 - ratio", "(* > 1 - ratio)", "both ratios are the same there"),
        )
    ),
    (
        "derivations/margins/gate_margins.py",
        "slack >= 1",
        "(slack > 1)",
        "at t = 1 the smaller of top-m and phi(1) = log 2 is taken, and top-m's s phi(g/s) with "
        "s <= 1 is that",
    ),
    (
        "certspec/kernels/*/rules.py",
        "weight* > NEGLIGIBLE",
        "(weight* >= NEGLIGIBLE)",
        "a weight of exactly 1e-290: its error is bounded there as above it",
    ),
    *(
        (f"certspec/kernels/numba/filter.py::{line}", old, new, why)
        for line, old, new, why in (
            ("*", "FUNCTION_ERROR", "(FUNCTION_ERROR ? ?)", "claim bound.weight has exp's 8 u"),
            (
                "low = min(tau, low) *",
                "THRESHOLD_ROUNDINGS",
                "(THRESHOLD_ROUNDINGS / 2)",
                "of 64 u at most 32 are asked for: 20 that claim bound.threshold adds to an "
                "entropy's part, exp's 8 and four operations; where an offset cancels, the 256 u "
                "of the normaliser pay",
            ),
            (
                "statistics?PROB_BOUND*",
                "WEIGHT_ERROR",
                "(WEIGHT_ERROR / 2)",
                "1e-13 is left, and claim bound.weight counts 8.5e-14 at 745 nats",
            ),
            (
                "or num_columns > *",
                "num_columns > MOST_COLUMNS",
                "(num_columns >= *",
                "rows of just 2^24 columns go to float64",
            ),
        )
    ),
    *(
        (f"certspec/kernels/numba/filter_sums.py::{line}", old, new, why)
        for line, old, new, why in (
            ("highest = *", "value > highest", "(value >= highest)", _OF_EQUALS),
            ("other_highest = *", "other_value > other_highest", "(other_value >= *", _OF_EQUALS),
            (
                "*",
                "bits < LEAST_BITS",
                "(bits <= LEAST_BITS)",
                "a row whose least weight is the least normal one goes to float64",
            ),
            *(
                (
                    f"at?{side}?, *" if side else "at?LEAST? = min(*",
                    "1.0",
                    new,
                    "claim kernel.exp32: j is off by half a step, an eighth of the octave that is "
                    "taken off",
                )
                for side in ("", "OTHER_LEAST")
                for new in ("(0.5)", "(1.0000*)")
            ),
            (
                "if highest > at?MIDDLE? *",
                "*highest > at?*MIDDLE?",
                "(*highest >= *",
                "a move to maxima that the row has already changes nothing",
            ),
            (
                "return _totals(sums, work.totals) *",
                "at?*LEAST? >= -LARGEST",
                "(at?*LEAST? > -LARGEST)",
                "a row with a logit of just -4096 goes to float64",
            ),
            ("sizes + abs(cross) *", "1.0", "(1.0000*)", _SAFE + ": a wider one"),
            ("rest_size = MEASURED_PRODUCTS *", "2.0", "(2.0000*)", _SAFE + ": a wider one"),
            (
                "return divergence < np.inf *",
                "divergence < np.inf",
                "(divergence <= np.inf)",
                "the error of an infinite divergence is infinite, and not below WIDEST",
            ),
        )
    ),
    (
        "certspec/kernels/numba/filter_loop.py::most = *",
        "2??31 - 1",
        "(2 ?? 31 - 2)",
        "where a minimum begins: any number above the bits of all weights",
    ),
    (
        "certspec/kernels/numba/rules.py",
        "CANDIDATE_SLACK",
        "(CANDIDATE_SLACK *)",
        "the threshold and its logarithm are both lowered by it: one alone is far above rounding",
    ),
    (
        "certspec/kernels/*/rules.py",
        "* >= tau - room*",
        "(* > tau - room*)",
        "a weight exactly where doubt ends: rounding moves it by half of that",
    ),
    (
        "certspec/kernels/numba/rules.py",
        "gap >= cut",
        "(gap > cut)",
        "the cut is lowered by far more than rounding: no token that counts lies on it",
    ),
    (
        "certspec/kernels/torch/rules.py",
        "weights > _bounds.raised_mean*",
        "(weights >= *",
        "a token that lies at the level adds nothing: w log(w/c) is 0, and the level stays",
    ),
    (
        "certspec/kernels/torch/rules.py",
        "rising < masses / sizes",
        "(rising <= *",
        "a token that lies at the level adds nothing",
    ),
    *(
        (
            f"certspec/kernels/torch/rules.py::{line}",
            old,
            f"({float(old) * (1 + 2**-30)!r})",
            "a bound of an error, or the size of a pool: its level, and the tokens that join, move "
            "by 1e-9 of the mean, which moves the sum by 1e-18",
        )
        for line, old in (
            ("doubt = *", "2.0"),
            ("weights > _bounds.raised_mean(*", "2.0"),
            ("pool, weights, mass, joined*", "1.0"),
        )
    ),
    *(
        ("certspec/kernels/numba/rules.py", old, new, _OF_EQUALS)
        for old, new in (
            ("gap > below", "(gap >= below)"),
            ("values?child + 1? < values?child?", "(* <= *)"),
        )
    ),
    (
        "certspec/kernels/numba/rules.py",
        "count // 2 - 1",
        "(count // 2 - 0)",
        "a heap sort that begins at a leaf, which has nothing below it",
    ),
    (
        "certspec/kernels/torch/robust.py",
        "torch.minimum(weight, needed)",
        "torch.maximum(*)",
        _SAFE + ": a heavier competitor",
    ),
    (
        "certspec/kernels/torch/robust.py",
        "gap - least",
        "(gap + least)",
        _SAFE + ": a higher ceiling of the entropy raises the threshold",
    ),
    *(
        (f"{_CELLS}::edges = *", old, new, "a cell may be cut anywhere")
        for old, new in (
            ("1.0", "(1.0000000009313226)"),
            ("1.0", "(0.5)"),
            ("_ZOOM_PARTS + 1", "*"),
            ("low?..., None? + (high - low)*", "(low?..., None? - *"),
        )
    ),
    (_CELLS, "fall >= 0.0", "(fall > 0.0)", _SAFE + ": no bound where the slope is exactly 0"),
    (
        "certspec/certificates/radii.py::factor = *",
        "1.0",
        "(1.0000*)",
        _SAFE + ": a larger factor, where it is raised to 1",
    ),
    (
        "certspec/kernels/torch/robust.py",
        "members > 0",
        "(members >= 0)",
        "any levels have a bound, and the best met is kept",
    ),
    (
        _CELLS,
        "high - low",
        "(high + low)",
        _SAFE + ": tangents that are followed farther than to where they meet bound less",
    ),
    (
        "certspec/certificates/margin_bounds.py::if alpha == 1.0 or *",
        "1.0 - slack",
        "(1.0 + slack)",
        "the pair's bound and the chord's touch where they meet: 64 u beside it they differ by the "
        "square of that",
    ),
    (
        "certspec/certificates/margin_bounds.py::if alpha == 1.0 or *",
        "1.0",
        "(1.0000000009313226)",
        "the same beside where they meet, by 1e-18",
    ),
    (
        "certspec/certificates/margin_bounds.py",
        "np.nextafter(*, np.inf)",
        "np.nextafter(*, -np.inf)",
        "an ulp of what a pair may have, far below the 9,000 u that are taken off",
    ),
    (
        "certspec/certificates/tree_widths.py::if not prob *",
        "prob ? len(pooled) < mass",
        "(* <= mass)",
        _JOINS + ", but its mass to what is taken off",
    ),
    *(
        (f"certspec/kernels/numba/rows.py::{line}", old, new, why)
        for line, old, new, why in (
            (
                "_apply_rules(rules, row, *",
                "logits.num_sides > 1",
                "(logits.num_sides >= 1)",
                "what belongs to a draft is not returned where there is none",
            ),
            (
                "entropies = *",
                "len(table.smoothings) + 1",
                "(len(table.smoothings) + 2)",
                "a column that is neither written nor read",
            ),
            ("threads = 1 if *", "rows ? num_columns < SMALL", "(* <= SMALL)", _SHARED),
            ("if rows < 2 *", "rows < 2 ? threads", "(rows <= *", _SHARED),
            ("if rows < 2 *", "num_parts(num_columns) > 1", "(* >= 1)", _SHARED),
            ("if rows < 2 *", "threads > 1", "(threads >= 1)", _SHARED),
        )
    ),
    *(
        (f"certspec/kernels/numba/vectors.py::{line}", old, new, why)
        for line, old, new, why in (
            ("shifted = step(*", "1.0", "(1.0000*)", _REMAINDER),
            ("shifted = step(*", "2.0", "(2.0000*)", _REMAINDER),
            ("while width > 1:", "width > 1", "(width >= 1)", "each lane is met by itself once"),
            (
                "lanes_moved = *",
                "lane + width",
                "(lane - width)",
                "whichever way they turn, the first lane has met every other one",
            ),
        )
    ),
    ("certspec/kernels/torch/robust.py::slope = *", "total - up", "(total + up)", _GUIDE),
    (
        f"{_CELLS}::meeting = *",
        "end - start",
        "(end + start)",
        "where two tangents meet: they bound from any other place, less",
    ),
    (
        "certspec/certificates/lumped_masses.py::return np.clip(low, *",
        "1.0",
        "(*)",
        _SAFE + ": a wider interval, or an end that no mass has",
    ),
    (
        "certspec/kernels/torch/robust.py::size = *",
        "1.0",
        "(1.0000*)",
        "1e-9 of what roundings may add up to",
    ),
    (
        "certspec/kernels/reference.py::2 * slope*",
        "1 - relative",
        "(1 + relative)",
        _SAFE + ": a larger root",
    ),
    ("certspec/kernels/torch/robust.py", "log_levels > found*", "(log_levels >= *", _OF_EQUALS),
    (
        "certspec/kernels/reference.py",
        "scores.kl_upper < scores.certificate_lower",
        "(scores.kl_upper <= *",
        _ROOM_LEFT,
    ),
    (
        "certspec/certificates/margin_bounds.py",
        "outer < low",
        "(outer <= low)",
        "the pair of two equal probabilities costs 0 on both sides",
    ),
    (
        _CELLS,
        "np.maximum(np.log(others), _VANISHING)",
        "np.minimum(*)",
        _SAFE + ": a farther reach takes more off",
    ),
    (
        "certspec/kernels/torch/robust.py::if rows.table.parameters?rule, CAP? *",
        "* >= 0",
        "(* > 0)",
        "the largest weight times growth is 1 at least: no multiple of it underflows",
    ),
    (
        "certspec/certificates/radii.py::draft, *_SMALLEST_NORMAL / (1.0 - rule.t)",
        "1.0",
        "(1.0000*)",
        "a product a little below the normal numbers is a number still",
    ),
    (
        "derivations/formulas/robust.py",
        "mass > 0",
        "*mass >= 0*",
        "at mass 0 both are +inf: no bound",
    ),
    *(
        (f"{_SEGMENTS}::{line}", old, new, why)
        for line, old, new, why in (
            ("addition = *", "* + added - 2", "(* + added - 1)", _SAFE + ": an addition more"),
            ("mean_exponent = *", "1.0", "(1.0000*)", _SAFE),
            ("clamped = *", "127.0", "(127.0000*)", _IN_FLOAT32),
            ("bits = *", "12582912.0", "(12582912.0*)", _IN_FLOAT32),
            ("below_? = *", "* + tl.zeros_like(*", "(* - tl.zeros_like(*", "0 is taken off"),
            ("x_? = tl.where(real*", "200.0", "*", _VANISHES),
            ("sum_t = *", "* > _FARTHEST", "*", "a choice of limit: both paths hold there"),
            ("tl.store(at + MAX_T *", "* num_segments", "*", _FIRST),
            ("if (chunk + 1) * width *", "chunk + 1", "(chunk + 2)", "whole chunks read as masked"),
            ("if (chunk + 1) * width *", "* <= *", "*", "both read a chunk that ends with the row"),
        )
    ),
    *(
        (f"{_RANKS}::{line}", old, new, why)
        for line, old, new, why in (
            ("x_? = tl.where(is_kept*", "2000.0", "*", _VANISHES),
            ("x_? = tl.where(low*", "2000.0", "*", _VANISHES),
            ("low, tl.fma(z*", "200.0", "(200.0000*)", _IN_FLOAT32),
            ("x_d = tl.where(low, tl.fma(*", "200.0", "(200.0000*)", _IN_FLOAT32),
            ("max_t = tl.load(*", "at + *", "*", _FIRST),
            ("tl.store(scalars + _KL, *", "scalars + _KL", "*", _FIRST),
            ("tl.store(error_ptr + _NORMALISER_ERROR, *", "error_ptr + *", "*", _FIRST),
            ("tl.store(error_ptr + _NORMALISER_ERROR, *", "*", "(_NORM* ? 0)", _FIRST),
            ("return ((max_t >= bar_t) *", "max_t > *", "*", _NO_LOGITS),
            ("(max_d >= bar_d) *", "max_d > *", "*", _NO_LOGITS),
            ("listed = tl.load(*", "batch < count", "*", _NOT_REAL),
            ("scratch_ptr + start + BATCH + batch, mask=*", "start *", "*", _NOT_REAL),
            (
                "addition_error = (num_columns // *",
                "* + 2",
                "*",
                "a term meets columns // block + block roundings at most, two fewer than are paid",
            ),
            ("num_kept = CELLS *", "CELLS + 1", "(CELLS + 2)", "both begin a first attempt"),
            ("while (attempt *", "attempt < *", "*", "an attempt more"),
            ("while (attempt *", "num_kept > CELLS", "*", "a bar that is raised where it need not"),
            ("if num_kept <= *", "num_kept <= *", "(* < *", "both read all elements that are kept"),
            ("per_d = *", "1.0", "(1.0000*)", _SAFE + ": it is a factor of errors alone"),
            ("(tail_ct - tail_cd) *", "2.0", "(2.0000*)", _SAFE),
            ("rounding = *", "1.0", "(1.0000*)", _SAFE),
            ("+ (tl.abs(*) + 1.0) *", "1.0", "(1.0000*)", _SAFE),
            ("finite = *", "* < float(*", "(* <= *", _NO_INFINITY),
            ("finite = *", "kl_upper > float(*", "(* >= *", _NO_INFINITY),
            ("if not (finite *", "*", "(* <= *", "errors of exactly 1e-3"),
        )
    ),
)


def reason_for(mutation: Mutation) -> str | None:
    """Why the mutant does no harm; None where nobody has said so."""
    change = mutation.change
    line = (ROOT / mutation.path).read_text("utf-8").splitlines()[change.line - 1].strip()
    return next(
        (
            why
            for path, old, new, why in REASONS
            if fnmatch(mutation.path, path.partition("::")[0])
            and fnmatch(line, path.partition("::")[2] or "*")
            and fnmatch(change.old, old)
            and fnmatch(change.new, new)
        ),
        None,
    )
