"""What a sample was drawn from is noted from what the formula was called with."""

from fractions import Fraction

from proofs_check.methods.domain import Noted, argument_names, in_words, joined


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
