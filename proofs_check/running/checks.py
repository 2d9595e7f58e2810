"""The checks of a claim, once every module of ``proofs_check.claims`` has registered its own."""

from __future__ import annotations

from functools import cache

from derivations.language.importing import import_modules
from proofs_check import claims
from proofs_check.registry import Check, registered

__all__ = ["checks_of"]


def checks_of(claim: str) -> list[Check]:
    """The checks of a claim, cheapest method first."""
    _import_claims()
    return registered(claim)


@cache
def _import_claims() -> None:
    import_modules(claims)
