"""Compiles the kernels of rounds for a Hopper GPU on a machine that has none, and prints their
names. Triton's interpreter takes much that the compiler refuses: a global that is no constexpr, a
branch that gives one name two types. Run by test_compiling.py in a process of its own, since Triton
must be imported without its interpreter."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import certspec as cs
from certspec.decoding.cuda_rounds import round_shape
from certspec.decoding.profiles import DraftingProfile, MonotoneMap
from certspec.kernels.rule_table import rule_table
from certspec.models.cuda import layers, rounds
from certspec.models.cuda.runner import CudaRunner
from certspec.models.trees import TreeShape, TreeTopology
from certspec.studies.bench.replay import ReplayedRounds
from tests.support.small_models import small_pair


class Hopper:
    """What a driver says of its card; it launches nothing."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all() -> dict[str, int]:
    """Go through rounds of several trees and rules; how many variants of each kernel that took."""
    compiled: dict[str, set[int]] = {}
    run = JITFunction.run

    def only_compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled.setdefault(self.fn.__name__, set()).add(id(kernel))
        return kernel

    driver.set_active(Hopper())
    JITFunction.run = only_compiled
    layers._can_chain = lambda like: True
    if "--scores" not in sys.argv:
        rounds.launch = lambda *_: None
    pair = small_pair(0.1, 6, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    target, draft = (
        CudaRunner(model, device="cpu", capacity=64) for model in (pair.target, pair.draft)
    )
    for runner in (target, draft):
        runner.prefill([[1, 2, 3], [4]])
    ragged = TreeTopology((-1, -1, 0), (0, 1, 0))
    chances = (MonotoneMap((0.0, 1.0), (0.5, 0.9)),) * 2
    profile = DraftingProfile("made up", 0, 0.1, 0.5, chances, 0.1, 0.1, rate=1.0)
    for shape, rule in (
        (ragged, cs.StrictGreedy()),
        (ragged, cs.Additive(0.02)),
        (TreeShape(1, 2).topology, cs.Additive(0.02)),
        (round_shape(cs.BestFirst(5, depth=2, width=2)), cs.StrictGreedy()),
        (round_shape(cs.WithinBudget(0.08, depth=3, width=2)), cs.StrictGreedy()),
        (round_shape(cs.Adaptive(profile, depth=3, width=2)), cs.StrictGreedy()),
    ):
        strict = rule == cs.StrictGreedy()
        rest = (target, draft, 2, shape, rule_table((rule,)))
        rounds.TreeRounds(*rest, strict=strict).begin()
    ReplayedRounds(*rest, pattern=(1,), strict=True).begin()
    alone = (target, draft, 1, TreeTopology((-1, 0), (0, 0)), rule_table((cs.StrictGreedy(),)))
    rounds.TreeRounds(*alone, strict=True).begin()  # whose second pass is over one node
    return {name: len(kernels) for name, kernels in compiled.items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    began = time.perf_counter()
    for name, count in sorted(compile_all().items()):
        print(name, count)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
