"""The lazy table of public names and the copy of it that type checkers read say the same, and every
name resolves."""

import ast
from pathlib import Path

import certspec as cs


def _names_for_type_checkers():
    tree = ast.parse(Path(cs.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {(node.module, alias.asname) for node in block.body for alias in node.names}


def test_type_checkers_and_the_lazy_table_know_the_same_names_in_the_same_homes():
    lazy = {(home, name) for home, names in cs._HOMES.items() for name in names}
    assert _names_for_type_checkers() - {("certspec", "presets")} == lazy


def test_every_public_name_resolves():
    assert [name for name in cs.__all__ if getattr(cs, name, None) is None] == []


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    assert not hasattr(cs, "certifi")
