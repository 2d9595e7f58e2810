"""What a sample was drawn from is noted from what the formula was called with."""

from fractions import Fraction

from proofs_check.methods.domain import Noted, argument_names, in_words, joined
from proofs_check.running.routes import too_small


def gate(numbers, target_probs, width, slack):
    return len(target_probs)


def test_sizes_and_ranges_are_noted_by_the_formulas_own_names():
    noted = Noted(gate, argument_names(gate))
    for count, width, slack in ((2, 1, Fraction(1, 5)), (64, 16, 0.5), (5, 2, 0.25)):
        assert noted(None, [0.1] * count, width, slack) == count
    assert in_words(noted.domain) == "2 to 64 tokens, width 1 to 16, slack 0.2 to 0.5"


def test_domains_of_several_methods_are_joined():
    assert joined([{"tokens": (2, 5)}, {"tokens": (17, 17), "gap": (0.1, 0.1)}, {}]) == {
        "tokens": (2, 17),
        "gap": (0.1, 0.1),
    }
    assert in_words(joined([{"gap": (0.1, 0.1)}])) == "gap 0.1"


def test_a_claim_whose_samples_are_small_is_told_so():
    small = {"tokens": (2.0, 12.0), "width": (1.0, 4.0)}
    assert too_small("tree.competitors", small) == [
        "sampled to tokens 12 only, not to 64",
        "sampled to width 4 only, not to 16",
    ]
    assert too_small("tree.competitors", {"tokens": (2.0, 64.0), "width": (1.0, 16.0)}) == []
    assert too_small("drafter.entropy.inner", small) == []  # by brute force, as it says


def test_a_claim_whose_samples_keep_from_the_ends_of_a_domain_is_told_so():
    middle = {"gap": (0.1, 0.99), "alpha": (0.01, 0.95)}
    told = ["sampled at gap 0.1 to 0.99 only, not from 0.025 to 0.95"]
    assert too_small("margin.multiplicative", middle) == told
    assert too_small("margin.multiplicative", middle | {"gap": (0.01, 0.95)}) == []
    assert too_small("drafter.margin.chord", middle) == []  # a line in the margin, as it says
