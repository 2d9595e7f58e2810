"""Checks of every claim by routes that do not use its derivation.

    python -m proofs_check                    every claim
    python -m proofs_check 'tree.*' --explain statement, derivation, where the kernels use it
    python -m proofs_check --html report.html

A check belongs to one claim and one method::

    @check("strict.closed", method="optimiser")
    def strict_against_definition(formula, effort):
        return compare_cases("optimiser", cases, formula_value=..., effort=effort)   # an Evidence

It takes the formula under test as an argument. The runner hands it the claim's own formula first,
then each of the claim's mutants, which the same checks must refute. ``effort`` says how many digits
and cases, and whether --thorough.

What a method may conclude:

* ``algebra`` (SymPy, exact) and ``enclosure`` (interval arithmetic over the whole domain) prove;
* ``optimiser`` (mpmath, from the definition, bracketed by a duality gap), ``conic``
  (cvxpy/Clarabel), ``exact-cases``
  (rational arithmetic on given targets) and ``search`` are witnesses: each can refute with a point,
  none proves alone.

A claim comes out VERIFIED when at least one proving method and at least ``min_methods`` methods in
all agree, and none dissents. Topic modules have the names of the topics in ``derivations``; the
framework is in ``outcome``, ``registry``, ``runner``, ``routes``, ``optimise``, ``targets``,
``enclosure``, ``branches``, ``slopes``, ``algebra``, ``cases`` and ``numbers``."""
