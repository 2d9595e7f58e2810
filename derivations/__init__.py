"""Symbolic statements and derivations, and the printers that turn them into source text.

A topic module (``formulas.strict``, ``formulas.caps``, ``margins.tree_margins``, ...) holds, in
this order, formulas, the derivation as a list of ``Step``, and the claims::

    declare(Claim(
        id="caps.log2", sentence="...", domain="...", theory="A4", relation="<=",
        formula=log_two_cap,  # formula(numbers, ...): numbers supplies log, sqrt, ...
        derivation=CAPS, mutants=(Mutant("log 2 halved", half_cap),),
    ))

``formula`` is written once and evaluated in three arithmetics: SymPy (``formula(sympy, ...)``),
mpmath and intervals. So it uses ``numbers.log`` and plain operators, and compares only with values
that its arguments can be compared with.

A derivation's step is checked by SymPy (an identity or a sign), or cites a claim that proves it. A
definition or a remark asserts nothing. What is left is prose, which ``python -m derivations
--steps`` prints. README.md beside this file says what to read first; how to add a claim stands in
``proofs_check/README.md``."""
