"""Symbolic statements and derivations, and the printers that turn them into source text. Runs no
kernel.

A topic module (``strict``, ``single_token``, ``tree``, ``caps``, ...) holds, in this order,
formulas, the derivation as a list of ``Step``, and the claims. To add a claim, declare it there and
register two checks in the module of ``proofs_check`` with the same name::

    declare(Claim(
        id="caps.log2", sentence="...", domain="...", theory="A4", relation="<=",
        formula=log_two_cap,                       # formula(numbers, ...): numbers supplies log, sqrt, ...
        derivation=CAPS, mutants=(Mutant("log 2 halved", half_cap),),
    ))

``formula`` is written once and evaluated in three arithmetics: SymPy (``formula(sympy, ...)``),
mpmath and intervals. So it uses ``numbers.log`` and plain operators, and compares only with values
that its arguments can be compared with.

A derivation's step is checked by SymPy (an identity or a sign), or cites a claim that proves it:
the lemmas of ``lemmas``, ``convexity`` and ``levels`` are there to be cited. A definition or a
remark asserts nothing. What is left is prose, which ``python -m derivations --steps`` prints."""
