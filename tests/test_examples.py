"""The examples of public names run as they stand in the documentation, every public function tells
its arguments and has an example, and what its help names can be had from ``certspec``."""

import doctest
import inspect
import re

import numpy as np
import pytest

import certspec as cs
from certspec.rules import RULE_TYPES

PUBLIC = {name: getattr(cs, name) for name in cs.__all__ if callable(getattr(cs, name))}
FUNCTIONS = [name for name, value in PUBLIC.items() if inspect.isfunction(value)]
WITH_EXAMPLES = [name for name, value in PUBLIC.items() if ">>> " in (value.__doc__ or "")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def no_new_rules():
    known = dict(RULE_TYPES)
    yield
    RULE_TYPES.clear()
    RULE_TYPES.update(known)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_an_example_gives_what_it_says(name, no_new_rules):
    value = PUBLIC[name]
    told = inspect.getdoc(value)
    assert told is not None
    found = doctest.DocTestParser().get_doctest(told, {"__name__": "example"}, name, None, None)
    said: list[str] = []
    with np.printoptions():
        outcome = doctest.DocTestRunner(optionflags=FLAGS).run(found, out=said.append)
    assert outcome.attempted and not outcome.failed, "".join(said)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_an_example_and_tells_each_argument(name):
    told = inspect.getdoc(PUBLIC[name]) or ""
    arguments = list(inspect.signature(PUBLIC[name]).parameters)
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", told, re.M)
    listed = re.findall(r"^    (\w+): ", section[1], re.M) if section else []
    assert listed == arguments
    assert re.search(r"^Example:\n    >>> import|^Example:\n(    >>> from .*\n)?", told, re.M)
    assert name in WITH_EXAMPLES


def named_in_help(value):
    """Capitalised words of a function's annotations and text that are classes of certspec."""
    texts = [inspect.getdoc(value) or "", *map(str, inspect.get_annotations(value).values())]
    words = {word for text in texts for word in re.findall(r"\b[A-Z]\w+\b", text)}
    module = inspect.getmodule(value)
    for word in sorted(words):
        found = vars(module).get(word) or getattr(cs.decoding, word, None)
        if inspect.isclass(found) and found.__module__.startswith("certspec"):
            yield word


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_the_help_of_a_function_names_can_be_had(name):
    assert [word for word in named_in_help(PUBLIC[name]) if word not in cs.__all__] == []


def test_the_help_of_generate_names_what_its_arguments_may_be():
    named = set(named_in_help(cs.generate))
    assert {"DraftPolicy", "RuleSchedule", "StepRecord", "TreeTopology", "Between"} <= named


def test_reprs_are_short(tmp_path):
    pair = cs.load_pair()
    story = cs.generate(pair, ["A fox.", "A bear."], max_new_tokens=4)
    lists = cs.certify(np.log([[0.7, 0.2]]), None, "strict tree:2", lumped=True)
    for value in (pair, story, story.steps, lists):
        assert len(repr(value)) < 160 and "array(" not in repr(value), repr(value)
