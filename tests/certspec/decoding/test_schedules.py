"""A rule may change from prompt to prompt and from position to position; a switch holds at the very
next position."""

import pytest

import certspec as cs
from certspec.decoding import Between, TreeShape
from certspec.models.trees import chain

THINK, END = 10, 11


def near_tie(best, second):
    return [2.0 if token == best else 1.9 if token == second else -4.0 for token in range(12)]


def test_a_rule_switches_inside_a_block_at_the_next_position(scripted):
    """Everywhere the target's argmax is 3 (near-tie with 4) and the draft says 4, but for the two
    think tokens."""
    plan = [3, THINK, 3, 3, END, 3, 3]

    def target(context):
        token = plan[min(len(context) - 1, len(plan) - 1)]
        return near_tie(token, 4)

    def draft(context):
        token = plan[min(len(context) - 1, len(plan) - 1)]
        return near_tie(4 if token == 3 else token, 0)

    schedule = Between(THINK, END, inside=cs.Additive(0.3), outside=cs.StrictGreedy())
    result = scripted(target, draft, rule=schedule, topology=chain(6), max_new_tokens=7)
    assert result.tokens == [3, THINK, 4, 4, END, 3, 3]
    inside = [step.rule == "additive:0.3" for step in result.steps]
    assert inside == [False, False, True, True, True, False, False]
    # one block held the think token, two relaxed tokens, the end token, and a strict rejection
    assert [step.round for step in result.steps[1:6]] == [1] * 5


def test_on_a_tree_the_strict_positions_are_governed_by_coverage(scripted):
    def target(context):
        return near_tie(THINK if len(context) == 1 else 3, 4)

    def draft(context):
        return near_tie(THINK if len(context) == 1 else 4, 0)

    schedule = Between(THINK, END, inside=cs.TopM(2), outside=cs.StrictGreedy())
    result = scripted(
        target, draft, rule=schedule, topology=TreeShape(2, 2).topology, max_new_tokens=4
    )
    assert [step.rule for step in result.steps[:2]] == ["tree:2", "top:2"]
    assert result.tokens[:2] == [THINK, 4]


def test_each_prompt_may_have_its_own_rule(tiny, prompts):
    rules = [cs.StrictGreedy(), cs.TopM(8), cs.Additive(0.3), cs.StrictGreedy()]
    together = cs.generate(tiny, prompts, rules, max_new_tokens=16)
    alone = [
        cs.generate(tiny, [p], r, max_new_tokens=16).sequences[0]
        for p, r in zip(prompts, rules, strict=True)
    ]
    assert together.sequences == alone
    assert {step.rule for step in together.steps if step.prompt == 1} == {"top:8"}
    with pytest.raises(cs.InvalidArgument, match="got 2 for 4 prompts"):
        cs.generate(tiny, prompts, rules[:2])


def test_a_schedule_of_no_rules_is_refused(tiny):
    with pytest.raises(cs.InvalidArgument, match="expected two different token ids"):
        Between(3, 3, cs.TopM(2), cs.StrictGreedy())
    with pytest.raises(cs.InvalidArgument, match="expected a Rule"):
        cs.generate(tiny, [[1]], Between(3, 4, 5, cs.StrictGreedy()))
    for ids in ((3, 297), (297, 3)):
        with pytest.raises(cs.InvalidArgument, match=r"Between: .* in \[0, 296\], got 297"):
            cs.generate(tiny, [[1]], Between(*ids, cs.TopM(2), cs.StrictGreedy()))
