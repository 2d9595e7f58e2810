"""A module of the derivations that cannot be imported is a line that names it, not a traceback."""

import pytest

import derivations
import derivations.__main__ as emitting
import proofs_check.__main__ as proving

HEAD = """from derivations.formulas.strict import pair_cost
from derivations.language.claim import Claim, declare
import sympy

def helper(x):
    return pair_cost(sympy, x)

"""
MISSING = "TypeError: pair_cost() missing 1 required positional argument: 'smaller'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{HEAD}COST = (\n    pair_cost(sympy, 1)\n)\n", f"planted_{{}}.py:9, COST: {MISSING}\n"),
        (
            f"{HEAD}declare(\n    Claim(\n        id='x.y', sentence=helper(3)\n    )\n)\n",
            f"planted_{{}}.py:10, claim 'x.y': {MISSING} (planted_{{}}.py:6)\n",
        ),
        (
            f"{HEAD}@helper\ndef cost():\n    pass\n",
            f"planted_{{}}.py:8, cost: {MISSING} (planted_{{}}.py:6)\n",
        ),
        ("x = (\n", "planted_{}.py:1: SyntaxError: '(' was never closed\n"),
        (
            "import nowhere_at_all\n",
            "planted_{}.py:1: ModuleNotFoundError: No module named 'nowhere",
        ),
    ],
    ids=["a definition", "a claim", "a decorator", "syntax", "a package"],
)
def test_a_module_that_can_not_be_imported_is_one_line_with_name_file_and_line(
    text, told, tmp_path, monkeypatch, capsys, request
):
    number = abs(hash(request.node.name))  # a module is imported under a name once
    (tmp_path / f"planted_{number}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(derivations, "__path__", [*derivations.__path__, str(tmp_path)])
    for command in (lambda: proving.main(["--list"]), lambda: emitting.main(["--steps"])):
        assert command() == 2
        printed = capsys.readouterr()
        assert printed.err.startswith(told.replace("{}", str(number))) and not printed.out
