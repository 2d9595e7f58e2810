"""Servers that know their distributions: draws pairs of models and writes their logs as vLLM,
SGLang, llama.cpp, TGI and OpenAI would, so that what an import certifies can be held to the truth.

A draw is ``Model`` rows of logits for the same positions; a writer turns rows into documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Drawn:
    """``target``, ``draft``: (answers, positions, vocab) logits, float64 holding float32 numbers;
    ``chosen``: (answers, positions) ids; ``texts``: of the vocabulary."""

    target: np.ndarray
    draft: np.ndarray
    chosen: np.ndarray
    texts: list[str]


@dataclass
class Writing:
    """How a server writes: ``depth`` entries a list, ``decimals`` kept (None: all of float32),
    ``half``: logprobs rounded to float16, ``digits``: to so many significant ones."""

    depth: int
    decimals: int | None
    half: str | None
    rng: np.random.Generator
    speculative: bool = False
    holes: bool = False  # some lists are empty
    float32_decimals: bool = False  # rounded values that were float32 numbers when printed
    digits: int | None = None
    mixes: bool = False  # each list has decimals of its own: logs of several servers in one file
    streams: bool = False  # chunks of several answers at once
    ends_apart: bool = False  # an answer's end in a chunk of its own
    off: float = 0.0  # a chosen token's logprob beside the list may be so far from the one in it


def draw(rng: np.random.Generator, sizes=(20, 60, 300, 2000), answers=4, positions=8) -> Drawn:
    vocab = int(rng.choice(sizes))
    shape = (answers, positions, vocab)
    scale = rng.choice([0.3, 1.0, 3.0, 8.0, 15.0, 30.0], size=(answers, positions, 1))
    target = rng.normal(size=shape) * scale
    near = rng.choice([0.0, 0.01, 0.1, 0.5, 2.0], size=(answers, positions, 1))
    draft = target * rng.choice([1.0, 1.0, 0.8, 1.3], size=(answers, positions, 1))
    draft = draft + near * rng.normal(size=shape)
    # two tokens near one another at the top, where certificates are small and decisions open
    close = rng.random((answers, positions)) < 0.3
    order = np.argsort(-target, axis=-1)
    for row in np.argwhere(close):
        row = tuple(row)
        first, second = order[row][:2]
        target[row][second] = target[row][first] - rng.choice([0.0, 1e-7, 1e-3, 0.05, 0.3])
    # a draft that stakes much on one of the target's lesser tokens
    for row in np.argwhere(rng.random((answers, positions)) < 0.25):
        row = tuple(row)
        rank = int(rng.integers(1, min(vocab, 30)))
        draft[row][order[row][rank]] = draft[row].max() + rng.choice([0.0, 0.02, 0.5])
    grid = rng.choice([0, 0, 0, 1])
    if grid:
        step = rng.choice([1 / 64, 1 / 8, 0.5])
        target, draft = np.round(target / step) * step, np.round(draft / step) * step
    if rng.random() < 0.15:
        masked = rng.random(vocab) < 0.2
        masked[order[0, 0, 0]] = False
        target[..., masked] = -np.inf
        draft[..., masked] = -np.inf
        for models in (target, draft):
            bad = ~np.isfinite(models).any(axis=-1)
            models[bad] = 0.0
    target = target.astype(np.float32).astype(np.float64)
    draft = draft.astype(np.float32).astype(np.float64)
    chosen = np.argmax(target, axis=-1)
    sampled = rng.random(chosen.shape) < rng.choice([0.0, 0.3])
    for row in np.argwhere(sampled):
        row = tuple(row)
        alive = np.flatnonzero(np.isfinite(target[row]))
        chosen[row] = rng.choice(alive)
    return Drawn(target, draft, chosen, [f"t{number}" for number in range(vocab)])


def rename(drawn: Drawn, rng: np.random.Generator) -> None:
    """Give some tokens the text of others, or of no text at all; in some draws a few texts to all
    of them, so that nearly every list holds one twice."""
    if rng.random() < 0.25:
        num_texts = max(2, len(drawn.texts) // int(rng.choice([2, 5, 20])))
        drawn.texts = [f"t{rng.integers(num_texts)}" for _ in drawn.texts]
        return
    best = np.unique(np.argsort(-drawn.target, axis=-1)[..., :4])
    for token in best:
        kind = rng.random()
        if kind < 0.2:
            drawn.texts[token] = drawn.texts[int(rng.choice(best))]
        elif kind < 0.25:
            drawn.texts[token] = "\ufffd"
        elif kind < 0.28:
            drawn.texts[token] = "<|end|>"
        elif kind < 0.3:
            drawn.texts[token] = ""


def logprobs(logits: np.ndarray, how: Writing, *, sequential: bool = False) -> np.ndarray:
    """A row's float32 log-softmax as the server rounds it, (vocab,) float64."""
    shifted = (logits - logits.max()).astype(np.float32)
    with np.errstate(divide="ignore"):
        if sequential:  # llama.cpp: the best first, one by one, in float32
            order = np.argsort(-logits, kind="stable")
            weights = np.exp(shifted)
            total = np.cumsum(weights[order], dtype=np.float32)[-1]
            values = np.log((weights / total).astype(np.float32)).astype(np.float64)
        else:
            total = np.log(np.exp(shifted).sum(dtype=np.float32), dtype=np.float32)
            values = (shifted - total).astype(np.float64)
    values = np.minimum(values, 0.0)
    if how.half == "float16":
        values = values.astype(np.float16).astype(np.float64)
    elif how.half == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        values = np.where(np.isfinite(values), bits.view(np.float32), values).astype(np.float64)
    decimals = how.rng.choice([0, 1, 2, 5, 9]) if how.mixes else how.decimals
    if how.digits is not None:
        values = np.array([float(f"{value:.{how.digits}g}") for value in values])
    elif decimals is not None:
        values = np.where(np.isfinite(values), np.round(values, decimals), values)
        if how.float32_decimals:
            values = values.astype(np.float32).astype(np.float64)
    return values + 0.0


def best(values: np.ndarray, logits: np.ndarray, how: Writing) -> list[int]:
    """The ids of the list; ties in any order, as a GPU's top-k leaves them."""
    order = np.lexsort((how.rng.random(len(logits)), -logits))
    return [int(token) for token in order[: how.depth]]


def _number(value: float) -> float:
    return max(value, -9999.0)


def _beside(value: float, how: Writing) -> float:
    """A chosen token's logprob as it stands outside the list."""
    return min(value + how.off * how.rng.choice([-1.0, 0.0, 1.0]), 0.0)


def vllm(rows, chosen, texts, how: Writing) -> dict[str, Any]:
    lists, ids = [], []
    for logits, token in zip(rows, chosen, strict=True):
        values = logprobs(logits, how)
        listed = {}
        top = best(values, logits, how)
        rank = int((logits >= logits[token]).sum())
        for id_, place in [(int(token), rank), *((t, n + 1) for n, t in enumerate(top))]:
            if str(id_) in listed:
                continue
            value = values[id_] if np.isfinite(values[id_]) else -np.inf
            listed[str(id_)] = {
                "logprob": None if not np.isfinite(value) else value,
                "rank": place,
                "decoded_token": texts[id_],
            }
        ids.append(int(token))
        lists.append(listed)
    return {"outputs": [{"token_ids": ids, "logprobs": lists, "finish_reason": "stop"}]}


def _chat(
    rows, chosen, how, entry, *, chosen_first: bool, outside: bool, sequential: bool = False
) -> dict[str, Any]:
    content = []
    for logits, token in zip(rows, chosen, strict=True):
        values = logprobs(logits, how, sequential=sequential)
        top = best(values, logits, how)
        if chosen_first:
            top = list(dict.fromkeys([int(token), *top]))[: how.depth]
        own = entry(int(token), values)
        own["logprob"] = _beside(own["logprob"], how)
        if outside and int(token) not in top:
            own["logprob"] = -9999.0
        listed = [entry(t, values) for t in top]
        if how.holes and how.rng.random() < 0.1:
            listed = []
        content.append({**own, "top_logprobs": listed})
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "logprobs": {"content": content}}],
    }


def _entry(name: str, value: float, text: str | None) -> dict[str, Any]:
    """A token of a chat's list; ``text``: whose bytes it has, None for null."""
    told = None if text is None else list(text.encode())
    return {"token": name, "logprob": _number(value), "bytes": told}


def vllm_chat(rows, chosen, texts, how):
    def entry(token, values):
        return _entry(texts[token], values[token], texts[token])

    return _chat(rows, chosen, how, entry, chosen_first=True, outside=False)


def vllm_chat_ids(rows, chosen, texts, how):
    def entry(token, values):
        return _entry(f"token_id:{token}", values[token], texts[token])

    return _chat(rows, chosen, how, entry, chosen_first=True, outside=False)


def openai_chat(rows, chosen, texts, how):
    def entry(token, values):
        return _entry(texts[token], values[token], texts[token] if token % 17 else None)

    return _chat(rows, chosen, how, entry, chosen_first=False, outside=True)


def openai_responses(rows, chosen, texts, how):
    told = openai_chat(rows, chosen, texts, how)["choices"][0]["logprobs"]["content"]
    text = {"type": "output_text", "text": "x", "annotations": [], "logprobs": told}
    message = {"type": "message", "role": "assistant", "content": [text]}
    thought = {"type": "reasoning", "summary": []}
    return {"object": "response", "status": "completed", "output": [thought, message]}


def ollama(rows, chosen, texts, how):
    def entry(token, values):  # without bytes where there is no text; a masked token isn't listed
        told = {"token": texts[token], "logprob": float(max(values[token], LOWEST))}
        return told | ({"bytes": list(texts[token].encode())} if texts[token] else {})

    answer = _chat(
        rows, chosen, how, entry, chosen_first=False, outside=False, sequential=how.speculative
    )
    told = answer["choices"][0]["logprobs"]["content"]
    return {"model": "m", "response": "x", "done": True, "done_reason": "stop", "logprobs": told}


def tgi_chat(rows, chosen, texts, how):
    def entry(token, values):
        return {"token": texts[token], "logprob": float(max(values[token], LOWEST))}

    return _chat(rows, chosen, how, entry, chosen_first=False, outside=False)


def completions(rows, chosen, texts, how):
    tokens, values_of, lists = [], [], []
    for logits, token in zip(rows, chosen, strict=True):
        values = logprobs(logits, how)
        top = list(dict.fromkeys([int(token), *best(values, logits, how)]))
        tokens.append(texts[token])
        values_of.append(_beside(_number(values[token]), how))
        lists.append({texts[t]: _number(values[t]) for t in top})
    told = {"tokens": tokens, "token_logprobs": values_of, "top_logprobs": lists}
    return {"choices": [{"index": 0, "finish_reason": "stop", "text": "x", "logprobs": told}]}


def sglang(rows, chosen, texts, how):
    own, lists = [], []
    for logits, token in zip(rows, chosen, strict=True):
        values = np.maximum(logprobs(logits, how), LOWEST)
        own.append([_beside(values[token], how), int(token), None])
        lists.append([[values[t], t, None] for t in best(values, logits, how)])
        if how.holes and how.rng.random() < 0.1:
            lists[-1] = None
    facts = {"finish_reason": {"type": "stop"}, "output_token_logprobs": own}
    return {"text": "x", "meta_info": {**facts, "output_top_logprobs": lists}}


def llama_cpp(rows, chosen, texts, how):
    items = []
    for logits, token in zip(rows, chosen, strict=True):
        values = np.maximum(logprobs(logits, how, sequential=True), LOWEST)
        name = {"bytes": [], "token": texts[token], "id": int(token)}
        if how.speculative and how.rng.random() < 0.5:
            items.append({**name, "logprob": 0.0, "top_logprobs": []})
            continue
        listed = [
            {"id": t, "token": texts[t], "bytes": [], "logprob": values[t]}
            for t in best(values, logits, how)
        ]
        items.append({**name, "logprob": _beside(values[token], how), "top_logprobs": listed})
    return {"content": "x", "completion_probabilities": items, "stop": True, "stop_type": "eos"}


def llama_cpp_chat(rows, chosen, texts, how):
    content = llama_cpp(rows, chosen, texts, how)["completion_probabilities"]
    choice = {"index": 0, "finish_reason": "stop", "logprobs": {"content": content}}
    return {"object": "chat.completion", "choices": [choice]}


def vllm_prompt(rows, chosen, texts, how):
    lists = vllm(rows, chosen, texts, how)["outputs"][0]["logprobs"]
    ids = [0, *map(int, chosen)]
    return {"prompt_token_ids": ids, "prompt_logprobs": [None, *lists], "outputs": []}


Writer = Callable[..., dict[str, Any]]
BY_ID: dict[str, Writer] = {
    "vllm": vllm,
    "vllm-chat-ids": vllm_chat_ids,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
    "llama-cpp-chat": llama_cpp_chat,
}
OF_PROMPTS: dict[str, Writer] = {"vllm": vllm_prompt}  # a prompt's first token has no list
BY_TEXT: dict[str, Writer] = {"tgi-chat": tgi_chat, "completions": completions}
BY_BYTES: dict[str, Writer] = {
    "vllm-chat": vllm_chat,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "ollama": ollama,
}


def write(path: Path, writer: Writer, rows, drawn: Drawn, how: Writing) -> None:
    answers = zip(rows, drawn.chosen, strict=True)
    documents = [writer(answer, chosen, drawn.texts, how) for answer, chosen in answers]
    if how.streams:
        documents = streamed(documents, ends_apart=how.ends_apart)
    path.write_text("".join(json.dumps(each) + "\n" for each in documents), encoding="utf-8")


def streamed(answers: list[dict[str, Any]], ends_apart: bool) -> list[dict[str, Any]]:
    """The answers as their servers stream them: a token of each in turn, or (llama.cpp and Ollama,
    which name no answer) one after the other; vLLM's own form has no stream. ``ends_apart``: why an
    answer ended is said in a chunk of its own."""
    if "output" in answers[0]:
        return [event for number, each in enumerate(answers) for event in _events(each, number)]
    chunks = [
        [_chunk(answer, f"answer {number}", token) for token in range(_length(answer))]
        for number, answer in enumerate(answers)
    ]
    if ends_apart:
        for each in chunks:
            each.extend(_apart(each[-1]))
    if "completion_probabilities" in answers[0] or "done" in answers[0]:
        return [chunk for each in chunks for chunk in each]
    return [chunk for each in zip(*chunks, strict=True) for chunk in each]


def _events(answer: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """A stream of OpenAI's Responses: only its last event holds the lists that are read."""
    told = answer["output"][-1]["content"][0]["logprobs"]
    begun = {"object": "response", "id": f"resp_{number}", "status": "in_progress", "output": []}
    text = {"item_id": f"msg_{number}", "output_index": 1, "content_index": 0}
    return [
        {"type": "response.created", "response": begun},
        *({"type": "response.output_text.delta", **text, "logprobs": [each]} for each in told),
        {"type": "response.output_text.done", **text, "text": "x", "logprobs": told},
        {"type": "response.completed", "response": answer},
    ]


def _apart(last: dict[str, Any]) -> list[dict[str, Any]]:
    """Takes the end out of a stream's last chunk; the chunk that says it."""
    if "completion_probabilities" in last:
        end = {"content": "", "stop": True, "stop_type": "eos"}
        last["stop"] = False
    elif "done" in last:
        end = {key: last[key] for key in last if key != "logprobs"}
        last["done"] = False
        del last["done_reason"]
    elif "choices" in last:
        end = last | {"choices": [last["choices"][0] | {"logprobs": None}]}
        last["choices"] = [last["choices"][0] | {"finish_reason": None}]
    else:  # SGLang says it in every chunk, vLLM's own form has none
        return []
    return [end]


def _length(answer: dict[str, Any]) -> int:
    if "completion_probabilities" in answer:
        return len(answer["completion_probabilities"])
    if "meta_info" in answer:
        return len(answer["meta_info"]["output_token_logprobs"])
    if "done" in answer:
        return len(answer["logprobs"])
    if "choices" not in answer:
        return 1
    told = answer["choices"][0]["logprobs"]
    return len(told["content"] if "content" in told else told["tokens"])


def _chunk(answer: dict[str, Any], name: str, token: int) -> dict[str, Any]:
    ends, here = token == _length(answer) - 1, slice(token, token + 1)
    if "completion_probabilities" in answer:
        items = answer["completion_probabilities"][here]
        end = {"stop_type": "eos"} if ends else {}
        return {"content": "x", "completion_probabilities": items, "stop": ends} | end
    if "meta_info" in answer:  # all that was said so far
        facts = {
            key: value[: token + 1] if isinstance(value, list) else (ends and value) or None
            for key, value in answer["meta_info"].items()
        }
        return {"text": "x", "meta_info": facts | {"id": name, "completion_tokens": token + 1}}
    if "done" in answer:
        told = {"model": "m", "response": "x", "logprobs": answer["logprobs"][here], "done": ends}
        return told | ({"done_reason": "stop"} if ends else {})
    if "choices" not in answer:
        return answer
    choice = answer["choices"][0]
    told = {key: value[here] for key, value in choice["logprobs"].items()}
    choice = choice | {"logprobs": told, "finish_reason": choice["finish_reason"] if ends else None}
    kind = {"object": "chat.completion.chunk"} if "object" in answer else {}
    return {"id": name, **kind, "choices": [choice]}


def draw_writing(rng: np.random.Generator) -> Writing:
    half = rng.choice(["", "", "", "", "", "", "", "float16", "bfloat16"])
    digits = int(rng.choice([3, 4, 6])) if not half and rng.random() < 0.1 else None
    decimals = None if half or digits else rng.choice([None, None, 0, 1, 2, 3, 4, 5, 6, 7])
    mixes = not half and not digits and bool(rng.random() < 0.1)
    is_exact = not half and not digits and not mixes and decimals is None
    return Writing(
        depth=int(rng.choice([1, 2, 3, 5, 10, 20])),
        decimals=decimals,
        half=str(half) or None,
        rng=rng,
        speculative=bool(rng.random() < 0.2),
        holes=bool(rng.random() < 0.1),
        float32_decimals=bool(rng.random() < 0.3),
        digits=digits,
        mixes=mixes,
        streams=bool(rng.random() < 0.3),
        ends_apart=bool(rng.random() < 0.5),
        off=1e-7 if is_exact and rng.random() < 0.3 else 0.0,
    )


def process(drawn: Drawn, how: str) -> None:
    """Change both models as sampling settings do before a server logs them."""
    for model in (drawn.target, drawn.draft):
        if how == "temperature":
            model[...] = (model / 0.7).astype(np.float32)
            continue
        for row in np.ndindex(model.shape[:2]):
            probs = np.exp(model[row] - model[row].max())
            order = np.argsort(-probs)
            mass = np.cumsum(probs[order]) / probs.sum() - probs[order] / probs.sum()
            kept = mass < 0.9 if how == "top-p" else np.arange(len(probs)) < 8
            model[row][order[~kept]] = -np.inf
