"""Compiles the kernels of rounds for a Hopper GPU on a machine that has none, and prints their
names. Triton's interpreter takes much that the compiler refuses: a global that is no constexpr, a
branch that gives one name two types. These show in Triton's own language, so a kernel's first
variant alone goes on to machine code; with CERTSPEC_COMPILE_ALL=1 they all do, in three times the
time. Run by test_compiling.py in a process of its own, since Triton must be imported without its
interpreter."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
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


class Lowered(Exception):
    """A kernel is in Triton's language, checked, and is to be compiled no further."""


def compile_further_once() -> None:
    """Make Triton compile the first variant of each kernel to machine code, and of others show that
    its compiler takes them."""
    compile_wholly, add_stages = triton.compiler.compile, CUDABackend.add_stages
    seen: set[str] = set()

    def compile_one(source: Any, *rest: Any, **options: Any) -> Any:
        CUDABackend.add_stages = only_lowered if source.name in seen else add_stages
        seen.add(source.name)
        try:
            return compile_wholly(source, *rest, **options)
        except Lowered:
            return source

    def only_lowered(self: Any, stages: dict[str, Callable[..., Any]], *rest: Any) -> None:
        add_stages(self, stages, *rest)
        lower = stages["ttir"]

        def lower_and_end(*module: Any) -> None:
            lower(*module)
            raise Lowered

        stages["ttir"] = lower_and_end

    triton.compiler.compile = compile_one


def compile_all() -> dict[str, int]:
    """Go through rounds of several trees and rules; how many variants of each kernel that took."""
    compiled: dict[str, set[int]] = {}
    run = JITFunction.run

    def only_compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled.setdefault(self.fn.__name__, set()).add(id(kernel))
        return kernel

    driver.set_active(Hopper())
    if os.environ.get("CERTSPEC_COMPILE_ALL") != "1":
        compile_further_once()
    JITFunction.run = only_compiled
    layers._can_chain = lambda like: True
    if "--scores" not in sys.argv:
        rounds.launch = lambda *_: None
    # wide enough for few_nodes.py
    widths = {"hidden_size": 144, "intermediate_size": 144, "head_dim": 32}
    pair = small_pair(0.1, 6, num_attention_heads=6, num_key_value_heads=2, **widths)
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
