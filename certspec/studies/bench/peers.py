"""Decoding speed of a pair of GGUF files: ours beside llama.cpp, on the same prompts, in one run.

Each engine runs in a process of its own, so that its memory is its own, and they take turns. What
is emitted is compared with the float32 model that the files stand for: our engine over their
dequantised weights, bit for bit."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from certspec.decoding.generation import eos_ids, generate
from certspec.errors import CertspecError, InvalidArgument
from certspec.models.choice import chosen_runners
from certspec.models.cpu.packing import pack_weights
from certspec.models.cpu.runner import CpuRunner
from certspec.models.gguf.model import GgufModel
from certspec.models.llamacpp import LlamaCppRunner
from certspec.models.pairs import load_pair
from certspec.models.runner import ModelRunner
from certspec.studies.bench.spreads import (
    in_turns,
    ratio_spread,
    spread,
    tokens_per_second,
    warmed_up,
)
from certspec.studies.waiting import counted

__all__ = ["LLAMA_CPP_WAYS", "Answer", "Drafting", "measure_peers", "speculate"]

Files = tuple[str, str]


@dataclass(frozen=True)
class Drafting:
    """How llama.cpp drafts: at most ``most`` tokens, and no more once the draft's best token has a
    probability below ``p_min`` (its own setting of that name)."""

    most: int
    p_min: float = 0.0


# 16 tokens and .75 are what its server drafts by
LLAMA_CPP_WAYS: dict[str, Drafting] = {
    "plain": Drafting(0),
    **{f"chain of {most}": Drafting(most) for most in (2, 3, 4, 6)},
    "up to 16, p-min 0.75": Drafting(16, 0.75),
}


@dataclass(frozen=True)
class Answer:
    """New ``tokens``, target passes, and seconds of all cores."""

    tokens: list[int]
    num_passes: int
    cpu_seconds: float


def speculate(
    target: ModelRunner,
    draft: ModelRunner,
    prompt: Sequence[int],
    num_tokens: int,
    eos: frozenset[int],
    way: Drafting,
) -> tuple[list[int], int]:
    """Greedy decoding with a drafted chain, as llama.cpp's examples have it, and nothing besides:
    new tokens, and target passes. ``way.most`` 0: no draft is run."""
    new = [int(target.prefill([prompt])[0].argmax())]
    behind = list(new)  # what the draft has not run yet
    if way.most:
        draft.prefill([prompt])
    num_passes = 1
    while len(new) < num_tokens and new[-1] not in eos:
        most = min(way.most, num_tokens - len(new) - 1)
        proposed = _drafted(draft, behind, most, way.p_min) if most else []
        rows = target.forward(torch.tensor([[new[-1], *proposed]]))[0]
        num_passes += 1
        best = rows.argmax(dim=1).tolist()
        kept = 0
        while kept < len(proposed) and proposed[kept] == best[kept]:
            kept += 1
        target.commit([range(kept + 1)])
        if most:
            has_run = min(kept, max(len(proposed) - 1, 0))
            draft.commit([range(has_run)])
            behind = [*proposed[has_run:kept], best[kept]]
        for token in best[: kept + 1]:
            new.append(token)
            if token in eos:
                break
    return new, num_passes


def _drafted(draft: ModelRunner, behind: Sequence[int], most: int, p_min: float) -> list[int]:
    row = draft.forward(torch.tensor([list(behind)]))[0, -1]
    draft.commit([range(len(behind))])
    proposed: list[int] = []
    while True:
        token = int(row.argmax())
        if p_min and float(1.0 / (row - row[token]).exp().sum()) < p_min:
            return proposed
        proposed.append(token)
        if len(proposed) == most:
            return proposed
        row = draft.forward(torch.tensor([[token]]))[0, -1]


class _Ours:
    """Our engine, over the files as they are."""

    def __init__(self, files: Files) -> None:
        self.pair = load_pair(*files)

    def decode(
        self, prompt: Sequence[int], num_tokens: int, eos: frozenset[int], way: dict[str, Any]
    ) -> Answer:
        began = time.process_time()
        found = generate(
            self.pair, [list(prompt)], max_new_tokens=num_tokens, eos_token_ids=eos, **way
        )
        spent = time.process_time() - began
        return Answer(found.sequences[0], found.metrics["num_target_passes"], spent)

    def along(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[str, bool]:
        """See ``_hash_along``, by the target."""
        with chosen_runners(self.pair) as (target, _, _, _):
            return _hash_along(target, prompt, answer)


class _Dequantised:
    """Our engine over the target's weights in float32, four bytes each."""

    def __init__(self, files: Files) -> None:
        pair = load_pair(*files)
        self._runner = CpuRunner(pack_weights(pair.target.source.weights), pair.num_tokens)

    def along(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[str, bool]:
        return _hash_along(self._runner, prompt, answer)


class _LlamaCpp:
    """llama.cpp, over the same files."""

    def __init__(self, files: Files, num_tokens: int, context: int) -> None:
        self._runners = [LlamaCppRunner(file, num_tokens, context=context) for file in files]

    def decode(
        self, prompt: Sequence[int], num_tokens: int, eos: frozenset[int], way: Drafting
    ) -> Answer:
        target, draft = self._runners
        began = time.process_time()
        with torch.inference_mode():
            tokens, num_passes = speculate(target, draft, prompt, num_tokens, eos, way)
        return Answer(tokens, num_passes, time.process_time() - began)


def _hash_along(
    runner: ModelRunner, prompt: Sequence[int], answer: Sequence[int]
) -> tuple[str, bool]:
    """SHA-256 of the logits that predict each token of the answer, and whether each is the argmax
    of its row."""
    with torch.inference_mode():
        rows = runner.prefill([prompt])
        if len(answer) > 1:
            rows = torch.cat([rows, runner.forward(torch.tensor([list(answer[:-1])]))[0]])
    digest = hashlib.sha256(rows.contiguous().numpy().tobytes())
    return digest.hexdigest(), rows.argmax(dim=1).tolist() == list(answer)


class _Process:
    """An object made and called in a process of its own."""

    def __init__(self, name: str, make: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self._process.start()
        other.close()

    def __call__(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((method, arguments))
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise CertspecError(f"{self._name}: its process ended; what it said is above") from (
                error
            )

    def peak_bytes(self) -> int:
        return int(self("peak_bytes"))

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(pipe: Any, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
    made = make(*arguments)
    while True:
        try:
            method, given = pipe.recv()
        except EOFError:
            return
        pipe.send(_peak_bytes() if method == "peak_bytes" else getattr(made, method)(*given))


def _peak_bytes() -> int:
    """The most memory that this process has held at once, pages of mapped files included."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the parent held when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def _engines(makers: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, _Process]]:
    with ExitStack() as stack:
        found = {}
        for name, (make, *arguments) in makers.items():
            found[name] = _Process(name, make, *arguments)
            stack.callback(found[name].close)
        yield found


def measure_peers(
    pair: Any,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    repeats: int,
    ours: Mapping[str, dict[str, Any]],
    *,
    llama_cpp: Mapping[str, Drafting] | None = None,
    exact: bool = True,
) -> dict[str, Any]:
    """Tokens a second of every way, its ratios to our first way, to llama.cpp plain and to
    llama.cpp at its best, target passes, and the most memory of each engine.

    ``ours``: keywords of ``generate`` by name, the first one without a draft. Ratios are taken
    within a repeat, in which the ways take turns, another one first each time; figures are medians
    with lowest and highest. ``exact``: whether our logits along the output are those of the
    dequantised float32 model, bit for bit (that needs 4 bytes a weight), and the output its greedy
    one. Raises InvalidArgument where a model is no GGUF file on the CPU."""
    files = _files(pair)
    eos, _ = eos_ids(pair, None)
    context = max(map(len, prompts)) + num_tokens + 64
    makers: dict[str, tuple[Any, ...]] = {"certspec": (_Ours, files)}
    ways: dict[str, tuple[str, Any]] = {
        f"certspec {name}": ("certspec", way) for name, way in ours.items()
    }
    if llama_cpp:
        makers["llama.cpp"] = (_LlamaCpp, files, pair.num_tokens, context)
        ways |= {f"llama.cpp {name}": ("llama.cpp", way) for name, way in llama_cpp.items()}
    plain = next(iter(ways))
    with _engines(makers) as engines:
        decoders = {
            name: _decoder(engines[engine], num_tokens, eos, way)
            for name, (engine, way) in ways.items()
        }
        warmed_up(decoders, prompts[0])
        turns = list(in_turns(decoders, prompts, repeats, shifted=True))
        peaks = {name: engine.peak_bytes() for name, engine in engines.items()}
        answers = _answers(turns, plain)
        texts = list(zip(prompts, answers, strict=True))
        hashes = [
            engines["certspec"]("along", *text) for text in counted(texts, "our logits, text")
        ]
    result = _figures(turns, plain, answers) | {"peak_bytes": peaks}
    if exact:
        with _engines({"float32": (_Dequantised, files)}) as engines:
            found = [
                engines["float32"]("along", *text)
                for text in counted(texts, "float32 logits, text")
            ]
            result["peak_bytes"]["certspec, dequantised to float32"] = engines[
                "float32"
            ].peak_bytes()
        result["same_bits_as_float32"] = [a == b for a, b in zip(hashes, found, strict=True)]
        result["greedy_output_of_float32"] = [is_greedy for _, is_greedy in found]
    return result


def _files(pair: Any) -> Files:
    for role in ("target", "draft"):
        model = getattr(pair, role)
        if not isinstance(model, GgufModel):
            raise InvalidArgument(
                f"{role}: expected a GGUF file in float32 on the CPU, got {type(model).__name__}"
            )
    return pair.target.name_or_path, pair.draft.name_or_path


def _decoder(
    engine: _Process, num_tokens: int, eos: frozenset[int], way: Any
) -> Callable[[Sequence[int]], Answer]:
    return lambda prompt: engine("decode", list(prompt), num_tokens, eos, way)


def _answers(turns: Sequence[Any], way: str) -> list[list[int]]:
    return [turn.result.tokens for turn in turns if turn.way == way and turn.repeat == 0]


def _figures(turns: Sequence[Any], plain: str, answers: list[list[int]]) -> dict[str, Any]:
    speeds = tokens_per_second(turns, lambda answer: len(answer.tokens))
    peers = [name for name in speeds if name.startswith("llama.cpp")]
    references = {"our plain": plain}
    if peers:
        best = max(peers, key=lambda name: statistics.median(speeds[name]))
        references |= {"llama.cpp plain": peers[0], "best llama.cpp": best}
    own = {name: [turn.result for turn in turns if turn.way == name] for name in speeds}
    return {
        "references": references,
        "num_tokens": sum(map(len, answers)),
        "tokens_per_second": {name: spread(values) for name, values in speeds.items()},
        "ratios": {
            name: {
                label: ratio_spread(values, speeds[reference])
                for label, reference in references.items()
            }
            for name, values in speeds.items()
        },
        "tokens_per_target_pass": {
            name: sum(len(each.tokens) for each in found) / sum(each.num_passes for each in found)
            for name, found in own.items()
        },
        "cpu_ms_per_token": {
            name: 1e3
            * sum(each.cpu_seconds for each in found)
            / sum(len(each.tokens) for each in found)
            for name, found in own.items()
        },
        "num_prompts_unlike_our_plain": {
            name: sum(
                one != other for one, other in zip(_answers(turns, name), answers, strict=True)
            )
            for name in speeds
        },
        "num_threads": os.cpu_count(),
    }
