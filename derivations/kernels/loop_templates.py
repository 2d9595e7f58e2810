"""Text of the loops around the printed scalars: pools over weights in descending order. A template
is copied as it stands into the generated file of its topic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LOOPS", "LoopTemplate"]


@dataclass(frozen=True)
class LoopTemplate:
    """A function in the language of one printer, with the claims it rests on and the scalars it
    calls."""

    name: str
    claims: tuple[str, ...]
    calls: tuple[str, ...]
    text: str


_SINGLE = '''def single_token_pool(weights, rejected):
    """(head, mass) of the pool {0..head-1} u {rejected}; weights[:rejected + 1] in \
descending order (theorem A1).

    A token joins while it is certainly above the mean with it: a pool that is too small \
is still valid (Lemma A2)."""
    mass = weights[rejected]
    head = 0
    while head < rejected:
        joined = mass + weights[head]
        if not weights[head] > raised_mean(joined, head + 2.0):
            break
        mass = joined
        head += 1
    return head, mass
'''

_TREE = '''def tree_pool(weights, width):
    """(tail, mass) of the pool {0} u {tail..width}; weights[:width + 1] sorted in descending \
order (theorem A3)."""
    mass = weights[0]
    tail = width + 1
    while tail > 1:
        joined = mass + weights[tail - 1]
        if not weights[tail - 1] < joined / (width + 3.0 - tail):
            break
        mass = joined
        tail -= 1
    return tail, mass
'''

_VALUE = '''def pool_certificate(weights, head, tail, last, mass, weight_error, normaliser, \
normaliser_error):
    """(certificate, a bound below it) of the pool {0..head-1} u {tail..last} with the given \
mass [nats]."""
    size = head + (last - tail) + 1.0
    mean = mass / size
    raised = raised_mean(mass, size)
    value = 0.0
    raised_value = 0.0
    for rank in range(last, tail - 1, -1):
        value += pool_term(weights[rank], mean)
        raised_value += pool_term(weights[rank], raised)
    for rank in range(head - 1, -1, -1):
        value += pool_term(weights[rank], mean)
        raised_value += pool_term(weights[rank], raised)
    lower = certificate_lower(raised_value, mass, size, weight_error, normaliser, normaliser_error)
    return value / normaliser, lower
'''

LOOPS: dict[tuple[str, str], tuple[LoopTemplate, ...]] = {
    ("pool", "numba"): (
        LoopTemplate(
            "single_token_pool", ("single.pool", "single.dual"), ("raised_mean",), _SINGLE
        ),
        LoopTemplate("tree_pool", ("tree.pool",), (), _TREE),
        LoopTemplate(
            "pool_certificate",
            ("single.pool", "tree.pool", "eval.pool", "bound.certificate_lower"),
            ("pool_term", "raised_mean", "certificate_lower"),
            _VALUE,
        ),
    )
}
