"""Live servers that speak OpenAI's protocol (vLLM, SGLang, llama.cpp, OpenAI), asked for the most
probable tokens of their answers, or (vLLM) of a text that is already there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from certspec.errors import CertspecError, InvalidArgument

__all__ = ["Address", "Question", "Refused", "Server", "ServerError"]

_TIMEOUT_SECONDS = 600.0
# What only vLLM takes: token ids instead of texts, so that another model can be asked about them.
_ONLY_VLLM = {"return_token_ids": True, "return_tokens_as_token_ids": True}


class ServerError(CertspecError):
    """A server can't be asked: it is not there, keeps failing, or gives no logprobs."""


class Refused(CertspecError):
    """A server turned one prompt down (too long, say); others may still be answered."""


@dataclass(frozen=True)
class Address:
    """Where a server is. ``model`` None: the only one that it serves; ``key_variable``: the
    environment variable that holds its API key, the only place where one is looked for."""

    url: str
    model: str | None = None
    key_variable: str = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Question:
    """What is asked about every prompt: a greedy answer of at most ``max_new_tokens`` tokens, with
    the ``num_logprobs`` most probable tokens at each. ``plain_prompts``: without a chat
    template."""

    max_new_tokens: int = 96
    num_logprobs: int = 20
    plain_prompts: bool = False


class Server:
    """A connection to one model of a server. ``kind``: "vllm", "sglang", "llamacpp", or whatever
    else the server calls the owner of the model.

    Example: ``async with Server(Address("http://localhost:8000"), retries=4) as server: ...``"""

    def __init__(self, address: Address, *, retries: int) -> None:
        self.url = _base_url(address.url)
        self.model = address.model or ""
        self.kind = ""
        self._key = os.environ.get(address.key_variable, "")
        self._key_variable = address.key_variable
        self._openai = _client_library()
        # a client without a key refuses to start; local servers ask for none
        self._client = self._openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self._key or "none",
            max_retries=retries,
            timeout=_TIMEOUT_SECONDS,
        )

    async def __aenter__(self) -> Server:
        await self._client.__aenter__()
        try:
            await self._find_model()
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def answer(self, messages: Sequence[Mapping[str, Any]], question: Question) -> str:
        """The server's answer to a prompt, the JSON text as it came; raises Refused or
        ServerError."""
        own = _ONLY_VLLM if self.kind == "vllm" else {}
        limit = "max_completion_tokens" if self.kind in ("openai", "system") else "max_tokens"
        extra = {limit: question.max_new_tokens, "temperature": 0, **own}
        if question.plain_prompts:
            text = await self._create(
                self._client.completions,
                prompt=_plain_prompt(messages),
                logprobs=question.num_logprobs,
                extra_body=extra,
            )
        else:
            text = await self._create(
                self._client.chat.completions,
                messages=messages,
                logprobs=True,
                top_logprobs=question.num_logprobs,
                extra_body=extra,
            )
        self._require_logprobs(text, question)
        return text

    async def score(self, answered: str, question: Question) -> str:
        """This model's most probable tokens at the places of another's answer, as JSON text in
        vLLM's own form; ``answered`` is what ``answer`` of the other gave."""
        prompt, answer, finish = _token_ids(answered)
        text = await self._create(
            self._client.completions,
            prompt=[*prompt, *answer],
            max_tokens=1,
            extra_body={"prompt_logprobs": question.num_logprobs, "temperature": 0},
        )
        lists = _choice(text).get("prompt_logprobs")
        if not isinstance(lists, list) or len(lists) != len(prompt) + len(answer):
            raise ServerError(
                f"{self.url}: expected prompt_logprobs of {len(prompt) + len(answer)} tokens, got "
                f"{len(lists) if isinstance(lists, list) else 'none'}"
            )
        output = {"token_ids": answer, "finish_reason": finish, "logprobs": lists[len(prompt) :]}
        return json.dumps({"outputs": [output]}, ensure_ascii=False)

    async def _create(self, endpoint: Any, **asked: Any) -> str:
        with self._failures():
            got = await endpoint.with_raw_response.create(model=self.model, **asked)
        text: str = got.text
        try:
            told = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self.url}: the answer is not JSON: {error}") from error
        if not isinstance(told, dict) or not isinstance(told.get("choices"), list):
            raise Refused(self._hide(f"{self.url}: expected an answer with choices, got {text}"))
        return text

    async def _find_model(self) -> None:
        try:
            with self._failures():
                listed = (await self._client.models.list()).data
        except Refused:
            listed = []  # some gateways list nothing
        named = [each for each in listed if each.id == self.model] if self.model else listed
        if self.model and listed and not named:
            raise InvalidArgument(
                f"{self.url}: expected one of the models {_some(listed)}, got {self.model!r}"
            )
        if not self.model and len(named) != 1:
            raise InvalidArgument(
                f"{self.url}: expected the name of a model, the server lists "
                f"{_some(listed) or 'none'}"
            )
        self.model = self.model or named[0].id
        self.kind = str(named[0].owned_by or "unknown") if named else "unknown"

    def _require_logprobs(self, text: str, question: Question) -> None:
        choice = _choice(text)
        logprobs = choice.get("logprobs")
        listed = logprobs.get("content", logprobs.get("tokens")) if logprobs else None
        if listed:
            return
        if logprobs is None and (choice.get("text") or choice.get("message", {}).get("content")):
            raise ServerError(
                f"{self.url}: asked {self.model} for {question.num_logprobs} logprobs a token, it "
                "answered without them"
            )
        raise Refused(f"{self.url}: the answer is empty")

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Errors of the library as ours. What can be tried again it has tried already, waiting
        longer each time, or as long as the server asked for."""
        openai = self._openai
        try:
            yield
        except openai.APIStatusError as error:
            said = self._hide(f"{self.url}: {error.message}")
            if error.status_code in (401, 403):
                raise ServerError(f"{said}; the key is read from {self._key_variable}") from None
            if error.status_code < 500 and error.status_code not in (408, 409, 429):
                raise Refused(said) from None
            raise ServerError(said) from None
        except openai.OpenAIError as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            raise ServerError(self._hide(f"{self.url}: {error}{cause}")) from None

    def _hide(self, text: str) -> str:
        """The text as it may be shown: short, and without the key, should a server repeat it."""
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden[:500].split())


def _client_library() -> Any:
    try:
        import openai
    except ImportError as error:
        raise CertspecError(
            "asking servers needs the package openai: pip install 'certspec[ask]'"
        ) from error
    return openai


def _base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"url: expected http://host:port or https://host/v1, got {url!r}")
    if parts.username or parts.password or parts.query:
        raise InvalidArgument(
            "url: expected no user, password or query in it; a key is read from the environment"
        )
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _plain_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    if len(messages) != 1:
        raise InvalidArgument(
            f"plain_prompts: expected prompts of one message, got one of {len(messages)}"
        )
    return str(messages[0]["content"])


def _choice(text: str) -> dict[str, Any]:
    choices = json.loads(text)["choices"]
    return choices[0] if choices and isinstance(choices[0], dict) else {}


def _token_ids(answered: str) -> tuple[list[int], list[int], str | None]:
    """Ids of the prompt and of the logged positions of an answer, and why the answer ended."""
    document, choice = json.loads(answered), _choice(answered)
    prompt = document.get("prompt_token_ids") or choice.get("prompt_token_ids")
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
    logged = logprobs.get("content") or logprobs.get("tokens")
    if not prompt or not ids or not logged or len(ids) != len(logged):
        raise ServerError(
            "a draft is scored on the target's token ids: expected prompt_token_ids and one of "
            "token_ids a position in the target's answer, as vLLM's server gives them"
        )
    return prompt, ids, choice.get("finish_reason")


def _some(models: Sequence[Any]) -> str:
    return ", ".join(repr(each.id) for each in models[:8]) + (" ..." if len(models) > 8 else "")
