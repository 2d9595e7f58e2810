"""Pools at a geometric mean, row by row, in numpy or torch float64: how near, in KL(moved || base),
lies a law in which a token has risen over others or sunk under them.

A token that rises (the hub) takes those before it along to one common probability. Example: in 0.6,
0.3, 0.1 token 2 reaches token 1 at sqrt(0.6 * 0.3) = 0.424 each; with the 0.1 that keeps its share
that is a sum of 0.949, and the radius is -log 0.949 = 0.0528 nats."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from certspec.errors import InvalidLogits
from certspec.kernels.loading import load_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "FLOAT_KINDS",
    "Array",
    "Pool",
    "TopProbs",
    "array_module",
    "as_rows",
    "is_tensor",
    "kind_of",
    "lift_pool",
    "lift_radius",
    "numbers_or_none",
    "pool_kernels",
    "readable",
    "sink_pool",
    "sink_radius",
    "top_probs",
]

Array = TypeVar("Array", bound="NDArray[Any] | Tensor")  # what comes in comes out

FLOAT_KINDS = ("float64", "float32", "bfloat16", "float16")
_constants = load_kernels("constants")

_FEW = 8  # so many passes of argmax cost less than one argpartition


class TopProbs(NamedTuple):
    """``probs``: (rows, K) largest first; ``tail``: (rows,) the sum of all others; ``weights``:
    (rows, vocab) exp(z - max z) of the others, 0 at the K largest; ``total``: (rows,) their common
    normaliser. Only a masked token has none: weights that would underflow are raised, which lowers
    a radius."""

    probs: Any
    tail: Any
    weights: Any
    total: Any


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")  # a tensor can't exist before torch was imported
    return torch is not None and isinstance(value, torch.Tensor)


def array_module(value: Any, name: str = "") -> ModuleType:
    """numpy or torch, whichever the array belongs to; InvalidLogits for anything else."""
    if is_tensor(value):
        return sys.modules["torch"]
    if isinstance(value, np.ndarray):
        return np
    where = f"{name}: " if name else ""
    raise InvalidLogits(
        f"{where}expected a numpy array or a torch tensor, got {type(value).__name__}"
    )


def readable(name: str, values: Any) -> Any:
    """The array itself, or a plain one in native order (of one memory-mapped, big-endian, reversed,
    or masked without a mask). InvalidLogits, naming the kind, for an array that does not hold its
    numbers: a mask, or a tensor that is sparse, meta, fake, negated lazily or inside vmap."""
    if array_module(values, name) is np:
        if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
            raise InvalidLogits(
                f"{name}: expected a plain array, got one with masked entries; .filled(-inf) masks "
                "tokens"
            )
        plain = np.asarray(values)
        if min(plain.strides, default=0) < 0:
            plain = plain.copy()  # torch takes none, and numpy counts one of length 1 as contiguous
        native = plain.dtype.newbyteorder("=")
        return plain if plain.dtype == native else plain.astype(native)
    kind = _kind_without_numbers(values)
    if kind:
        raise InvalidLogits(f"{name}: expected a tensor that holds its numbers, got {kind}")
    return values


def numbers_or_none(values: Any) -> np.ndarray | None:
    """Real numbers, or arrays or lists of them, as float64; None for what holds none."""
    try:
        found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    return found.astype(np.float64) if found.dtype.kind in "iuf" else None


def _kind_without_numbers(tensor: Any) -> str:
    torch = sys.modules["torch"]
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}; .to_dense() first"
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
        return "a meta tensor"
    if tensor.is_neg() or tensor.is_conj():
        return "a tensor with the negative bit; .resolve_neg() first"
    try:
        tensor.data_ptr()
    except RuntimeError:
        return "one that a transform such as vmap wraps; call certspec outside of it"
    return ""


@cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def kind_of(values: Any) -> str:
    """The dtype's name, the same for numpy and torch: "float32"."""
    return _name_of(values.dtype)


def as_rows(name: str, values: Any) -> tuple[ModuleType, Any]:
    """The array module and a (rows, columns) float64 copy; InvalidLogits naming what it got
    otherwise."""
    values, xp = readable(name, values), array_module(values)
    if kind_of(values) not in FLOAT_KINDS or values.ndim not in (1, 2) or values.shape[-1] == 0:
        raise InvalidLogits(
            f"{name}: expected floats of shape (rows, columns) or (columns,), got {values.dtype} "
            f"{tuple(values.shape)}"
        )
    rows = values[None] if values.ndim == 1 else values
    return xp, (
        np.array(rows, dtype=np.float64, order="C")  # sums in one order, whatever the layout
        if xp is np
        else rows.detach().double().clone(memory_format=xp.contiguous_format)
    )


def top_probs(name: str, logits: Any, num_top: int) -> tuple[ModuleType, TopProbs]:
    """The ``num_top`` (at most vocab) largest probabilities of each row of logits.

    Raises InvalidLogits naming the first row that holds a NaN or +inf or is -inf throughout.
    """
    xp, rows = as_rows(name, logits)
    highest = rows.max(axis=1) if xp is np else xp.amax(rows, 1)
    wrong = ~xp.isfinite(highest)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0][0]) if xp is np else int(wrong.nonzero()[0, 0])
        found = float(highest[row])
        raise InvalidLogits(
            f"{name}: expected a finite maximum in every row, got {found} in row {row}"
        )
    masked = rows == -np.inf
    with np.errstate(over="ignore"):  # a gap of more than 1.8e308
        rows -= highest[:, None]
    xp.clip(rows, -_constants.FARTHEST_PRESENT, 0.0, out=rows)
    weights = np.exp(rows, out=rows) if xp is np else rows.exp_()
    weights[masked] = 0.0
    num_top = min(num_top, weights.shape[1])
    top = _take_largest(weights, num_top) if xp is np else _take_largest_torch(xp, weights, num_top)
    tail = weights.sum(1)
    total = tail + top.sum(1)
    return xp, TopProbs(top / total[:, None], tail / total, weights, total)


def _take_largest(weights: np.ndarray, num_top: int) -> np.ndarray:
    """The largest of each row, in order, each replaced by 0 in ``weights``."""
    if num_top > _FEW:
        cut = weights.shape[1] - num_top
        ids = np.argpartition(weights, cut, axis=1)[:, cut:]
        top = -np.sort(-np.take_along_axis(weights, ids, 1), axis=1)
        np.put_along_axis(weights, ids, 0.0, 1)
        return top
    top = np.empty((len(weights), num_top))
    every_row = np.arange(len(weights))
    for rank in range(num_top):
        ids = weights.argmax(axis=1)
        top[:, rank] = weights[every_row, ids]
        weights[every_row, ids] = 0.0
    return top


def _take_largest_torch(torch: ModuleType, weights: Any, num_top: int) -> Any:
    top, ids = torch.topk(weights, num_top, dim=1)
    weights.scatter_(1, ids, 0.0)
    return top


class Pool(NamedTuple):
    """``joins``: (rows, K) the tokens that move with the hub; ``logs``: (rows, K) their
    log-probabilities, 0 elsewhere; ``own_log``, ``level_log``: (rows, 1) the hub's and their common
    geometric mean's; ``hub``: (rows or 1, K)."""

    joins: Any
    logs: Any
    own_log: Any
    level_log: Any
    hub: Any


def pool_kernels(xp: ModuleType) -> ModuleType:
    """The generated kernels for numpy arrays or torch tensors."""
    return load_kernels("drafter", "torch" if xp.__name__ == "torch" else "numpy")


def lift_radius(xp: ModuleType, sorted_probs: Any, tail: Any, hub: Any) -> Any:
    """The least KL(moved || base) at which token ``hub`` reaches every token before it [nats].

    sorted_probs: (rows, K) largest first; tail: (rows,) mass of the tokens left out; hub: (rows, 1)
    indices below K, or one int. +inf where the hub has no mass. Claim: projection.lift."""
    return _radius(xp, sorted_probs, tail, lift_pool(xp, sorted_probs, hub))


def lift_pool(xp: ModuleType, sorted_probs: Any, hub: Any) -> Pool:
    """The tokens that token ``hub`` meets on its way up; arguments as in ``lift_radius``."""
    columns = _columns(xp, sorted_probs)
    rivals = columns < hub
    own_log = xp.log(xp.where(columns == hub, sorted_probs, 0.0).sum(-1)[:, None])
    logs = xp.log(xp.where(rivals, sorted_probs, 1.0))
    before = (xp.cumsum(logs, -1) - logs + own_log) / (
        columns + 1.0
    )  # mean of the pool as each rival finds it
    return _pool(xp, rivals & (logs > before), logs, own_log, columns == hub)


def sink_radius(xp: ModuleType, sorted_probs: Any, tail: Any, width: int) -> Any:
    """The least KL(moved || base) at which tokens 2..width+1 reach token 1 [nats]; needs width + 1
    <= K.

    Shapes as in ``lift_radius``. Where a rival has no mass the two tie at 0: -log(1 - p1). Claim:
    projection.sink."""
    value = _radius(xp, sorted_probs, tail, sink_pool(xp, sorted_probs, width))
    others = tail + sorted_probs[:, 1:].sum(-1)
    return xp.where(sorted_probs[:, width] > 0.0, value, -xp.log(others))


def sink_pool(xp: ModuleType, sorted_probs: Any, width: int) -> Pool:
    """The tokens that token 1 meets on its way down; arguments as in ``sink_radius``."""
    columns = _columns(xp, sorted_probs)
    rivals = (columns >= 1) & (columns <= width)
    logs, own_log = xp.log(xp.where(rivals, sorted_probs, 1.0)), xp.log(sorted_probs[:, :1])
    after = logs.sum(-1)[:, None] - xp.cumsum(logs, -1)
    before = (after + own_log) / (1.0 + width - xp.where(rivals, columns, width))
    return _pool(xp, rivals & (logs < before), logs, own_log, columns == 0)


def _columns(xp: ModuleType, rows: Any) -> Any:
    if xp.__name__ == "torch":
        return xp.arange(rows.shape[1], device=rows.device)[None, :]
    return xp.arange(rows.shape[1])[None, :]


def _pool(xp: ModuleType, joins: Any, logs: Any, own_log: Any, hub: Any) -> Pool:
    level_log = (xp.where(joins, logs, 0.0).sum(-1) + own_log[:, 0]) / (joins.sum(-1) + 1.0)
    return Pool(joins, logs, own_log, level_log[:, None], hub)


def _radius(xp: ModuleType, probs: Any, tail: Any, pool: Pool) -> Any:
    kernels = pool_kernels(xp)
    own_log, level_log = pool.own_log[:, 0], pool.level_log[:, 0]
    surpluses = xp.where(pool.joins, kernels.surplus(pool.logs - pool.level_log), 0.0).sum(-1)
    surpluses = surpluses + kernels.surplus(own_log - level_log)
    rest = tail + xp.where(pool.joins | pool.hub, 0.0, probs).sum(-1)
    value = kernels.pool_radius(surpluses, xp.exp(level_log), rest, pool.joins.sum(-1) + 1.0)
    return xp.where(own_log > -xp.inf, value, xp.inf)
