"""``certify(lumped=True)``: lists in any order give what judged lists give, never more than full
rows certify."""

import numpy as np
import pytest

import certspec as cs
from certspec.certificates.lumped import UNKNOWN, DraftLists, TargetLists, lumped_certificates
from certspec.certificates.written import FLOAT32_ERROR

RULES = [
    cs.StrictGreedy(),
    cs.Additive(0.3),
    cs.Multiplicative(0.1),
    cs.TopM(3),
    cs.Tree(2),
    cs.Entropy(0.3, 0.9),
]


def random_rows(rng, rows, vocab, closeness):
    logits = rng.normal(size=(rows, vocab)) * 2.0
    moved = logits + closeness * rng.normal(size=(rows, vocab))
    return [x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (logits, moved)]


def top_lists(target, draft, k, rng=None):
    order = np.argsort(-target, axis=1)[:, :k]
    if rng is not None:
        order = rng.permuted(order, axis=1)
    return np.take_along_axis(target, order, axis=1), np.take_along_axis(draft, order, axis=1)


def test_unsorted_lists_are_judged_as_sorted_ones():
    rng = np.random.default_rng(5)
    target, draft = random_rows(rng, 40, 50, 0.05)
    in_order, shuffled = top_lists(target, draft, 6), top_lists(target, draft, 6, rng)
    first, second = (cs.certify(*lists, RULES, lumped=True) for lists in (in_order, shuffled))
    np.testing.assert_allclose(first.certificate_lower, second.certificate_lower, rtol=1e-12)
    assert (first.certified == second.certified).all() and first.certified.any()


def test_what_lists_certify_the_full_rows_accept_and_no_lower_bound_exceeds_the_full_certificate():
    rng = np.random.default_rng(6)
    certified = 0
    for closeness in (0.02, 0.1, 0.5):
        target, draft = random_rows(rng, 300, 40, closeness)
        full = cs.certify(target, draft, RULES, backend="reference")
        judged = cs.certify(*top_lists(target, draft, 5, rng), RULES, lumped=True)
        assert not (judged.certified & ~full.accepted).any()
        assert (judged.certificate_lower <= full.certificate * (1 + 1e-9) + 1e-15).all()
        assert (judged.kl_lumped <= full.kl + 1e-12).all()
        certified += int(judged.certified.sum())
    assert certified > 300


def test_it_is_the_lumped_certificates_of_the_same_lists():
    rng = np.random.default_rng(7)
    target, draft = top_lists(*random_rows(rng, 10, 30, 0.1), 4)
    error = np.full(10, FLOAT32_ERROR)  # as of a server's
    lists = TargetLists(target, np.full(10, 4), error)
    other = DraftLists(draft, np.full((10, 2), UNKNOWN), np.zeros(10), error, np.ones(10, bool))
    expected, found = (
        lumped_certificates(lists, RULES, other),
        cs.certify(target, draft, RULES, lumped=True),
    )
    np.testing.assert_array_equal(expected.certificate_lower, found.certificate_lower)
    np.testing.assert_array_equal(expected.threshold, found.threshold)


def test_one_row_torch_tensors_padding_and_a_missing_draft_are_taken():
    torch = pytest.importorskip("torch")
    target = torch.log(torch.tensor([0.05, 0.6, 0.3], dtype=torch.float32))
    judged = cs.certify(
        target, torch.log(torch.tensor([0.04, 0.58, 0.31])), cs.StrictGreedy(), lumped=True
    )
    assert judged.certified[0, 0] and judged.accepted[0, 0] == 1
    alone = cs.certify(
        np.array([[np.log(0.6), np.log(0.3), -np.inf]]), None, cs.StrictGreedy(), lumped=True
    )
    assert np.isnan(alone.threshold[0, 0]) and alone.certificate[0, 0] == pytest.approx(
        0.0509, abs=1e-3
    )
    assert "accepted 1, certified 1" in repr(judged) and "accepted" not in repr(alone)


@pytest.mark.parametrize(
    ("target", "draft", "options", "message"),
    [
        ([[-0.1, np.nan]], None, {}, "target_logits: expected no NaN .* in row 0"),
        ([[2.5, 1.0]], None, {}, "target_logits: expected logprobs of at most 0 .* not logits"),
        (
            [[-0.1, -0.2]],
            None,
            {},
            "target_logits: expected probabilities that sum to at most 1, got a sum of 1.72",
        ),
        ([[-np.inf, -np.inf]], None, {}, "target_logits: expected at least one listed token"),
        (
            [[-1.0, -2.0]],
            [[-1.0]],
            {},
            r"draft_logits: expected shape \(1, 2\) like target_logits .* got \(1, 1\)",
        ),
        ([[-1.0, -2.0]], [[-1.0, np.nan]], {}, "draft_logits: expected no NaN"),
        (
            [[-1.0, -2.0]],
            [[-0.1, -0.2]],
            {},
            "draft_logits: expected probabilities that sum to at most 1",
        ),
        ([[-1.0, -2.0]], None, {"backend": "torch"}, "backend: expected None with lumped=True"),
        ([[-1.0, -2.0]], None, {"align": 2}, "align: expected None with lumped=True"),
    ],
)
def test_what_is_no_list_is_refused_by_name_and_row(target, draft, options, message):
    arrays = [None if x is None else np.array(x) for x in (target, draft)]
    with pytest.raises(cs.InvalidArgument, match=message):
        cs.certify(*arrays, cs.StrictGreedy(), lumped=True, **options)


@pytest.mark.parametrize("rule", ["multiplicative:5e-324", "entropy:1,5e-324", "absolute:5e-324"])
def test_a_threshold_that_underflows_may_reject_what_a_list_leaves_out(rule):
    """p = (.5, .5, e^-747 / 2): the last token is rejected; alpha p1 = 0 said that none was."""
    logits = np.array([[0.0, 0.0, -747.0]])
    truth = cs.certify(logits, None, rule).certificate[0, 0]
    assert truth == pytest.approx(np.log(1.5), rel=1e-12)
    for count in (1, 2, 3):
        listed = logits[:, :count] - np.log(2.0)
        assert cs.certify(listed, None, rule, lumped=True).certificate_lower[0, 0] <= truth
        none = cs.certify(listed, None, "absolute:0", lumped=True)
        assert np.isposinf(none.certificate_lower[0, 0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("depth", ["lowest", -1e4, -1001.0])
@pytest.mark.filterwarnings("error")
def test_a_sentinel_of_a_masked_token_is_padding(dtype, depth):
    """The last place of float32's lowest number was the error of the whole row: certificates were
    NaN, a tree's +inf."""
    lowest = np.finfo(dtype).min if depth == "lowest" else depth
    rules = "strict additive:0.3 top:2 tree:1 entropy:0.09,0.3 absolute:0.2"
    target = np.log([[0.5, 0.3, 0.19, 1.0]])
    target[0, 3] = lowest
    padded = target.copy()
    padded[0, 3] = -np.inf
    draft = target - 0.01
    for sides in ((target, draft), (target, padded - 0.01), (padded, draft), (target, None)):
        rows = [None if side is None else side.astype(dtype) for side in sides]
        found = cs.certify(*rows, rules, lumped=True)
        wanted = cs.certify(
            padded.astype(dtype),
            None if rows[1] is None else (padded - 0.01).astype(dtype),
            rules,
            lumped=True,
        )
        for name in ("certificate_lower", "kl_lumped_upper", "certified", "entropy_lower"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name), equal_nan=True), name
        assert (found.certificate_lower < 1.0).all()


@pytest.mark.parametrize("error", [-1e-9, 101.0, 1e300, np.inf, np.nan])
def test_an_error_that_leaves_nothing_to_say_is_refused(error):
    for lists in (
        lambda: cs.TargetLists(np.log([[0.7, 0.2]]), np.array([2]), np.array([error])),
        lambda: cs.lumped_certificates(
            cs.TargetLists(np.log([[0.7, 0.2]]), np.array([2]), np.zeros(1)),
            "strict",
            cs.DraftLists(
                np.log([[0.7, 0.2]]),
                np.array([[0]]),
                np.zeros(1),
                np.array([error]),
                np.ones(1) > 0,
            ),
        ),
    ):
        with pytest.raises(cs.InvalidArgument, match="an error of 0 to 100 nats"):
            lists()


WRITERS = {
    "decimals:1": lambda values: np.round(values, 1),
    "decimals:2": lambda values: np.round(values, 2),
    "decimals:4": lambda values: np.round(values, 4),
    "digits:3": np.vectorize(lambda value: float(f"{value:.2e}")),
    "digits:6": np.vectorize(lambda value: float(f"{value:.5e}")),
    "float32 in float64": lambda values: values.astype(np.float32).astype(np.float64),
    "float32 as JSON": np.vectorize(lambda value: float(str(np.float32(value)))),
    "float16 in float64": lambda values: values.astype(np.float16).astype(np.float64),
}


@pytest.mark.parametrize("how", WRITERS)
def test_a_written_list_certifies_what_is_true_of_the_rows_that_were_meant(how):
    rng, said = np.random.default_rng(3), 0
    for _ in range(4):
        target, draft = random_rows(rng, 60, 30, 0.1)
        full = cs.certify(target, draft, RULES)
        lists = [np.minimum(WRITERS[how](each), 0.0) for each in top_lists(target, draft, 5, rng)]
        judged = cs.certify(*lists, RULES, lumped=True)
        assert (judged.certificate_lower <= full.certificate + 1e-12).all()
        assert not (judged.certified & ~full.accepted).any()
        said += int((judged.certificate_lower > 0.5 * full.certificate).sum())
    assert said > 100
