"""Prompts sent to live servers, and the logs that come of it: the target's answers, and what a
draft thinks of the same tokens. What was answered before is not asked again.

Example: ``ask_servers(prompts, folder, Address("http://localhost:8000"), None, Question())`` writes
``folder/target.jsonl``, which ``certspec.logs.import_run.import_logs`` makes a run of."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from certspec.errors import InvalidArgument, RunMismatch, UnreadableInput
from certspec.logs.answers import AnswerFile
from certspec.logs.servers import Address, Question, Refused, Server, ServerError
from certspec.runs.folder import RunFolder, require_same
from certspec.runs.writing import write_atomically

__all__ = ["Asked", "ask_servers"]

# So many refusals before the first answer say that it isn't the prompts that a server minds.
_TELLING_REFUSALS = 8

Messages = Sequence[Mapping[str, Any]]


@dataclass
class Asked:
    """What came of asking: the logs, the models' names, how many prompts were answered (by both
    models), how many of them had been before, and why a server refused others."""

    target_log: Path
    draft_log: Path | None
    target_model: str = ""
    draft_model: str | None = None
    num_answered: int = 0
    num_resumed: int = 0
    refused: dict[int, str] = field(default_factory=dict)


def ask_servers(
    prompts: Iterable[Messages],
    folder: Path,
    target: Address,
    draft: Address | None,
    question: Question,
    *,
    settings: Mapping[str, Any] | None = None,
    concurrency: int = 4,
    retries: int = 8,
    on_advance: Callable[[int], None] = lambda num_prompts: None,
) -> Asked:
    """Ask ``target`` about every prompt, and ``draft`` (vLLM) about the target's tokens; keeps the
    answers in ``folder``.

    ``settings``: what else must be equal where a folder is gone on with (the prompts' hash, say).
    At most ``concurrency`` prompts are under way at once; failures are tried again ``retries``
    times, waiting longer each time. Raises ServerError where a server keeps failing, RunMismatch
    where ``folder`` holds answers to another question."""
    if not 1 <= concurrency <= 1024:
        raise InvalidArgument(f"concurrency: expected 1 to 1024, got {concurrency}")
    with RunFolder(folder).locked():
        RunFolder(folder).remove_leftovers()
        asking = _Asking(folder, draft is not None, question, concurrency, on_advance)
        asyncio.run(asking.run(prompts, target, draft, retries, dict(settings or {})))
        return asking.asked


class _Asking:
    def __init__(
        self,
        folder: Path,
        has_draft: bool,
        question: Question,
        concurrency: int,
        on_advance: Callable[[int], None],
    ) -> None:
        self.folder, self.question, self.concurrency = folder, question, concurrency
        self.on_advance = on_advance
        self.answers = AnswerFile(folder / "target.jsonl")
        self.scores = AnswerFile(folder / "draft.jsonl") if has_draft else None
        self.asked = Asked(self.answers.path, None if self.scores is None else self.scores.path)

    async def run(
        self,
        prompts: Iterable[Messages],
        target: Address,
        draft: Address | None,
        retries: int,
        settings: dict[str, Any],
    ) -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(Server(target, retries=retries))
            second = None
            if draft is not None:
                second = await stack.enter_async_context(Server(draft, retries=retries))
                _require_ids(first, second)
            self.asked.target_model = first.model
            self.asked.draft_model = None if second is None else second.model
            self._require_same_question(settings)
            await self._ask_all(iter(enumerate(prompts)), first, second)
        self._close()

    def _require_same_question(self, settings: dict[str, Any]) -> None:
        wanted = {
            **asdict(self.question),
            "target": self.asked.target_model,
            "draft": self.asked.draft_model,
            **settings,
        }
        path = self.folder / "question.json"
        if path.exists():
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UnreadableInput(f"{path}: {error}") from error
            require_same(kept, wanted, self.folder)
        elif len(self.answers):
            raise RunMismatch(f"{self.folder}: holds answers but no question.json")
        else:
            write_atomically(path, json.dumps(wanted, indent=2) + "\n")

    async def _ask_all(
        self, prompts: Iterator[tuple[int, Messages]], target: Server, draft: Server | None
    ) -> None:
        async def work() -> None:
            for number, messages in prompts:  # shared: each prompt goes to one worker
                await self._ask(number, messages, target, draft)
                self.on_advance(1)

        workers = [asyncio.create_task(work()) for _ in range(self.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _ask(
        self, number: int, messages: Messages, target: Server, draft: Server | None
    ) -> None:
        try:
            if number in self.answers:
                self.asked.num_resumed += draft is None or number in (self.scores or ())
            else:
                self.answers.append(number, await target.answer(messages, self.question))
            if draft is not None and self.scores is not None and number not in self.scores:
                text = await draft.score(self.answers.read(number), self.question)
                self.scores.append(number, text)
        except Refused as error:
            self.asked.refused[number] = str(error)
            if len(self.asked.refused) == _TELLING_REFUSALS and not self._both():
                raise ServerError(f"nothing but refusals: {error}") from error

    def _both(self) -> set[int]:
        """The prompts that every server answered."""
        answered = self.answers.prompts
        return answered if self.scores is None else answered & self.scores.prompts

    def _close(self) -> None:
        """Leave the logs in the order of the prompts, each sequence in both. What was answered
        under a larger limit stays."""
        both = self._both()
        if not both:
            why = next(iter(self.asked.refused.values()), "there was none")
            raise ServerError(f"no prompt was answered: {why}")
        for file in (self.answers, self.scores):
            if file is not None:
                file.keep(both)
        self.asked.num_answered = len(both)


def _require_ids(target: Server, draft: Server) -> None:
    for name, server in (("target", target), ("draft", draft)):
        if server.kind != "vllm":
            raise InvalidArgument(
                f"a draft is scored on the target's token ids (prompt_logprobs), which vLLM's "
                f"server gives; the {name}'s at {server.url} says it is of {server.kind!r}"
            )
