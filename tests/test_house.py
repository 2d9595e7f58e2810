"""The rules of ``house.py`` on every file, and each on a breach that is planted."""

import ast

import pytest

from tests import house, rooms
from tests.rooms import PACKAGES, ROOT, Source

SOURCES = rooms.sources()
WRITTEN = [source for source in SOURCES if "generated" not in source.name.split(".")]
ROOMS = sorted({source.room for source in WRITTEN})
RULE_TYPES = [
    node.name
    for node in ast.parse((ROOT / "certspec/rules.py").read_text("utf-8")).body
    if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["Rule"]
]
# Functions that may take more than ten parameters, each with its reason.
LONG: dict[str, str] = dict.fromkeys(
    ["certspec.kernels.triton.ranks._add_six", "certspec.kernels.triton.ranks._add_six_reach_two"],
    "tl.reduce hands over both halves of its six or eight values one by one",
)


@pytest.fixture(scope="module")
def kernel_entries():
    return house.kernel_entries(SOURCES)


def in_room(room):
    return [source for source in WRITTEN if source.room == room]


def test_certspec_has_at_most_16_entries():
    assert len(house.entries(ROOT / "certspec")) <= house.MOST_ENTRIES


@pytest.mark.parametrize("folder", [f.relative_to(ROOT).as_posix() for f in house.folders()])
def test_no_folder_holds_more_than_25_files(folder):
    assert len(house.entries(ROOT / folder)) <= house.MOST_FILES


@pytest.mark.parametrize("room", ROOMS)
def test_no_function_outside_a_kernels_entry_takes_more_than_ten_parameters(room, kernel_entries):
    found = {
        f"{source.name}.{name}": count
        for source in in_room(room)
        for name, count in house.long_signatures(source).items()
        if name not in kernel_entries
    }
    assert {name: count for name, count in found.items() if name not in LONG} == {}


def test_exceptions_from_ten_parameters_are_needed_and_give_a_reason():
    long = {f"{s.name}.{name}" for s in WRITTEN for name in house.long_signatures(s)}
    assert set(LONG) <= long and all(LONG.values())


@pytest.mark.parametrize("room", ROOMS)
def test_only_rules_asks_which_rule_a_rule_is(room):
    asking = [line for source in in_room(room) for line in house.type_questions(source, RULE_TYPES)]
    assert room == "certspec.rules" or asking == []


def test_decoding_probes_no_object_for_what_it_might_have():
    assert [line for source in in_room("certspec.decoding") for line in house.probes(source)] == []


@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_no_file_holds_what_no_file_may_hold(room):
    texts = (
        {
            str(path.relative_to(ROOT)): path.read_text("utf-8")
            for path in ROOT.glob("tests/**/*.py")
        }
        if room == "tests"
        else {source.name: source.text for source in in_room(room)}
    )
    found = {name: house.unwanted(text) for name, text in texts.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # " + "fmt: skip",
        "# " + "fmt: off",
        "x = 1  # " + "noqa: RUF001, E501",
        '"""Holds rules. It knows ' + 'nothing about kernels."""',
        '"""Rules, which know ' + '\nnothing of kernels."""',
    ],
)
def test_what_no_file_may_hold_is_found_where_it_is_planted(text):
    assert len(house.unwanted("\n" + text)) == 1


def test_a_long_signature_is_found_where_it_is_planted():
    ten = ", ".join(f"a{n}" for n in range(10))
    source = Source("m", f"def f({ten}, *, b): ...\ndef g({ten}): ...\ndef h({ten}, **rest): ...")
    assert house.long_signatures(source) == {"f": 11, "h": 11}


def test_an_entry_is_what_is_launched_or_what_no_compiled_function_calls():
    text = """
@triton.jit
def inner(x): ...
@triton.jit
def kernel(x):
    inner(x)
@triton.jit
def reused(x): ...
@triton.jit
def other(x):
    reused(x)
kernel[(3,)](1); other[grid](1); reused[grid](2)
@njit(cache=True)
def whole(x):
    return part(x)
@register_jitable
def part(x): ...
def given(x):
    return part(x)
fast = njit(nogil=True)(given)
def plain(x):
    return whole(x) + compiled(given, x)
"""
    entries = house.kernel_entries([Source("m", text)])
    assert entries == {"kernel", "other", "reused", "whole", "given"}


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(rule, Tree)",
        "isinstance(rule, (rules.Additive, int))",
        "type(rule) is cs.TopM",
        "match rule:\n    case Gated(): ...",
        "issubclass(kind, Tree | StrictGreedy)",
    ],
)
def test_a_question_about_a_rules_type_is_found_where_it_is_planted(text):
    assert house.type_questions(Source("m", text), RULE_TYPES) == ["m:1"] or "match" in text
    assert len(house.type_questions(Source("m", text), RULE_TYPES)) == 1
    assert house.type_questions(Source("m", "isinstance(rule, Rule)"), RULE_TYPES) == []


def test_a_probe_is_found_where_it_is_planted():
    source = Source(
        "m",
        "def __getattr__(name):\n    return getattr(home, name)\n"
        "def f(x):\n    return hasattr(x, 'rounds') and getattr(x, 'rounds', None)",
    )
    assert house.probes(source) == ["m:4", "m:4"]
    assert PACKAGES[1] == "certspec"
