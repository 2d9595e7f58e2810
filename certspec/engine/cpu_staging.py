"""Moves the slots of an accepted path together in the CPU engine's cache. This module knows the cache's layout only."""

from __future__ import annotations

from numba import njit

from certspec.models.cpu.tiles import BLOCK

__all__ = ["move_slots"]


@njit(error_model="numpy", nogil=True, cache=True)
def move_slots(keys, values, sizes, row, length, path):
    """Slot ``length + path[i]`` -> slot ``length + i`` in every layer and head; ``path`` ascends, so nothing is lost.

    ``sizes``: (layers, cache rows, kv heads, head_dim, slots). Layouts as in cpu_forward.py.
    """
    layers, batch, heads, head_dim, capacity = sizes
    for layer in range(layers):
        for head in range(heads):
            base = ((layer * batch + row) * heads + head) * capacity * head_dim
            for i in range(len(path)):
                source, target = length + path[i], length + i
                if source == target:
                    continue
                key_from = base + (source // BLOCK) * head_dim * BLOCK + source % BLOCK
                key_to = base + (target // BLOCK) * head_dim * BLOCK + target % BLOCK
                for d in range(head_dim):
                    keys[key_to + d * BLOCK] = keys[key_from + d * BLOCK]
                    part = base + (d // BLOCK) * capacity * BLOCK + d % BLOCK
                    values[part + target * BLOCK] = values[part + source * BLOCK]
