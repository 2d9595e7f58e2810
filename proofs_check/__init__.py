"""Checks of every claim, by its derivation's steps and by routes that do not use them.

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

* ``steps`` (SymPy, exact) replays the derivation: general, and no independent route;
* ``enclosure`` (interval arithmetic over the whole domain) is general and independent;
* ``optimiser`` (mpmath, from the definition, bracketed by a duality gap), ``conic``
  (cvxpy/Clarabel), ``exact-cases`` (rational arithmetic on given targets) and ``search`` are
  samples: each can refute with a point, none proves alone.

A claim comes out VERIFIED when a general method, a method that never looks at the derivation, and
at least ``min_methods`` methods in all agree, and none dissents. Topic modules have the names of
the topics in ``derivations``."""
