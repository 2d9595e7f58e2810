"""The vocabulary of statements: claims, derivations made of checked steps, mutants, and the
registry of all claims.

A claim is a sentence with a formula under test, and a derivation that says why. Its checks stand in
``proofs_check`` under the same id, and never look at the derivation. A mutant is a wrong version of
the formula, such as "log 2 halved", that the same checks have to refute."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy

from derivations.language.importing import import_modules

__all__ = [
    "Claim",
    "Derivation",
    "Formula",
    "Instance",
    "Mutant",
    "Step",
    "WrongArguments",
    "all_claims",
    "call_formula",
    "check_citations",
    "declare",
    "distinct_steps",
    "get_claim",
]

# A formula takes the arithmetic first: ``formula(numbers, ...)`` where numbers supplies log, exp,
# sqrt, cosh, ... (mpmath.mp, sympy, or the interval arithmetic of proofs_check), so that one text
# serves every route of proof.
Formula = Callable[..., Any]
Expected = Literal["verified", "refuted"]
StepKind = Literal["identity", "nonnegative", "cited", "definition", "remark", "prose"]


@dataclass(frozen=True)
class Instance:
    """``claim``'s formula at ``arguments`` is ``says``: what a cited step takes from the claim, to
    be computed.

    Formulas that ask for an order are put in positive letters, or letters beside which another is
    larger."""

    claim: str
    arguments: tuple[Any, ...]
    says: Any

    def holds(self) -> bool:
        """True where SymPy reduces the difference to zero, entry by entry for lists."""
        formula = get_claim(self.claim).formula
        return _agree(call_formula(self.claim, formula, sympy, *self.arguments), self.says)


class WrongArguments(TypeError):
    """A claim's formula was called with more or fewer arguments than it takes."""


def call_formula(claim: str, formula: Formula, numbers: Any, *arguments: Any) -> Any:
    """``formula(numbers, *arguments)``. Raises WrongArguments, which names the claim, where the
    number of arguments is not the formula's."""
    try:
        return formula(numbers, *arguments)
    except TypeError as error:
        taken = inspect.signature(formula)
        try:
            taken.bind(numbers, *arguments)
        except TypeError:
            name = getattr(formula, "__name__", "its formula")
            raise WrongArguments(
                f"claim {claim!r}: expected {len(taken.parameters)} arguments, "
                f"{name}({', '.join(taken.parameters)}), got {1 + len(arguments)}"
            ) from error
        raise


def _agree(found: Any, says: Any) -> bool:
    if isinstance(says, (tuple, list)):
        return len(found) == len(says) and all(map(_agree, found, says))
    return vanishes(sympy.sympify(found) - sympy.sympify(says))


@dataclass(frozen=True)
class Step:
    """One line of a derivation: a sentence, and what stands behind it.

    how = "identity": lhs = rhs, by simplification of the difference to zero; how = "nonnegative":
    lhs >= rhs, by SymPy's assumptions on the simplified or factored difference; how = "cited": an
    instance of the claims in ``cites``, whose own checks prove it; ``instances`` computes what is
    taken from them, and ``read`` says why nothing can be, where so; how = "definition": names,
    premises and the programme to be solved; asserts nothing; how = "remark": meaning or motive, on
    which no later step rests; how = "prose": an argument that nothing but reading confirms.
    ``cites`` may also name claims on which an identity or a sign leans."""

    text: str
    lhs: Any = None
    rhs: Any = sympy.S.Zero
    how: StepKind = "identity"
    cites: tuple[str, ...] = ()
    instances: tuple[Instance, ...] = ()
    read: str = ""

    @property
    def symbolic(self) -> bool:
        """True where SymPy decides the step."""
        return self.how in ("identity", "nonnegative")

    def holds(self) -> bool:
        """True where SymPy confirms the step, or the instances of the claims it names; other kinds
        hold by reading."""
        if self.how == "cited":
            named = all(instance.claim in self.cites for instance in self.instances)
            return (
                bool(self.cites) and named and all(instance.holds() for instance in self.instances)
            )
        if not self.symbolic:
            return True
        difference = sympy.sympify(self.lhs) - sympy.sympify(self.rhs)
        if self.how == "identity":
            return vanishes(difference)
        return any(bool(form.is_nonnegative) for form in _rewritings(difference))


@dataclass(frozen=True)
class Derivation:
    """A proof in steps, to be read from top to bottom."""

    title: str
    steps: tuple[Step, ...]

    def failing_steps(self) -> list[Step]:
        return [step for step in self.steps if not step.holds()]


@dataclass(frozen=True)
class Mutant:
    """A plausible wrong version of a claim's formula; the claim's own checks must refute it."""

    name: str
    formula: Formula


@dataclass(frozen=True)
class Claim:
    """A sentence, a formula, how the two are related, and where they hold.

    ``formula`` is what is under test: the checks receive it as an argument, so that a mutant goes
    through the very same check. A claim that is expected to be refuted may carry ``corrected``, a
    formula that the same checks accept."""

    id: str
    sentence: str
    domain: str
    theory: str
    relation: str
    formula: Formula
    derivation: Derivation
    mutants: tuple[Mutant, ...] = ()
    expected: Expected = "verified"
    corrected: Formula | None = None
    min_methods: int = 2
    statement: Any = None  # the SymPy relation to typeset, where one line says it
    used_by: tuple[str, ...] = field(default=())


_CLAIMS: dict[str, Claim] = {}


def declare(claim: Claim) -> Claim:
    """Enter a claim into the registry; a second claim of the same id is a ValueError."""
    if claim.id in _CLAIMS:
        raise ValueError(
            f"claim {claim.id!r} is declared twice: {_CLAIMS[claim.id].sentence!r}, "
            f"{claim.sentence!r}"
        )
    _CLAIMS[claim.id] = claim
    return claim


def all_claims() -> dict[str, Claim]:
    """Every claim by id, in order of id; imports every module of ``derivations``, each of which
    declares its own. Raises BrokenModule where one can't be imported."""
    import derivations

    import_modules(derivations)
    return dict(sorted(_CLAIMS.items()))


def get_claim(claim_id: str) -> Claim:
    """The claim of that id; KeyError naming it otherwise."""
    return all_claims()[claim_id]


def distinct_steps() -> dict[str, list[tuple[str, Step]]]:
    """Every step of every derivation once, by kind, with the id of the first claim that has it."""
    found: dict[str, list[tuple[str, Step]]] = {}
    seen: set[int] = set()
    for claim in all_claims().values():
        for step in claim.derivation.steps:
            if id(step) not in seen:
                seen.add(id(step))
                found.setdefault(step.how, []).append((claim.id, step))
    return found


def check_citations(claims: dict[str, Claim]) -> None:
    """ValueError where a step cites an unknown claim, a claim expected to be refuted, or, at any
    remove, its own."""
    cited = {
        key: {name for step in claim.derivation.steps for name in step.cites}
        for key, claim in claims.items()
    }
    for key, names in cited.items():
        for name in sorted(names):
            if name not in claims:
                raise ValueError(f"claim {key!r} cites {name!r}: expected the id of a claim")
            if claims[name].expected != "verified":
                raise ValueError(f"claim {key!r} cites {name!r}, which is expected to be refuted")
    for key in claims:
        reached, waiting = set(), list(cited[key])
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting.extend(cited[name])
        if key in reached:
            raise ValueError(f"claim {key!r} cites itself, through {', '.join(sorted(reached))}")


def vanishes(expression: Any) -> bool:
    """True where SymPy reduces the expression to zero by one of a few exact rewritings."""
    return any(form == 0 for form in _rewritings(sympy.sympify(expression)))


def _rewritings(expression: Any) -> Any:
    yield expression
    yield sympy.expand_log(sympy.expand(expression), force=True).expand()
    # ratios of sums inside logarithms have to be brought over one denominator before the logarithm
    # is split
    factored = expression.replace(sympy.log, lambda u: sympy.log(sympy.factor(u)))
    yield sympy.expand_log(factored, force=True).expand()
    yield sympy.numer(sympy.together(expression.replace(sympy.log, _log_of_factors))).expand()
    yield sympy.factor(sympy.together(expression))
    yield sympy.simplify(sympy.expand_log(sympy.simplify(expression), force=True))


_LOG_SIZE = sympy.Function("log_size")  # log|f| of an irreducible factor, as a symbol of its own


def _log_of_factors(argument: Any) -> Any:
    """log u = sum of e log|f| over the irreducible factors f^e of a rational u, wherever u is
    positive."""
    top, bottom = sympy.fraction(sympy.together(argument))
    if not all(part.is_polynomial(*part.free_symbols) for part in (top, bottom)):
        return sympy.log(argument)
    total = sympy.S.Zero
    for part, sign in ((top, 1), (bottom, -1)):
        content, factors = sympy.factor_list(part)
        for number, power in sympy.factorrat(abs(content)).items() if content.is_Rational else ():
            total += sign * power * _LOG_SIZE(number)
        if not content.is_Rational:
            return sympy.log(argument)
        total += sum((sign * power * _LOG_SIZE(factor) for factor, power in factors), sympy.S.Zero)
    return total
