"""One small answer written the way each server writes it. The distributions are made here, so that
every reader can be compared with what was meant."""

import json
import math

import numpy as np

TEXTS = [" the", " a", " cat", " dog", "é", "\n", " of", "x", "yy", "zzz", " zebra", "q"]


def logprobs(num_positions=6, seed=0):
    """(positions, tokens) float32 logprobs of a small vocabulary."""
    logits = np.random.default_rng(seed).normal(0.0, 2.0, (num_positions, len(TEXTS)))
    values = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return values.astype(np.float32).astype(float)


def best(row, depth):
    return [int(token) for token in np.argsort(-row, kind="stable")[:depth]]


def chat(rows, depth=5, chosen=None):
    content = []
    for number, row in enumerate(rows):
        token = best(row, 1)[0] if chosen is None else chosen[number]
        content.append(
            _chat_entry(row, token)
            | {"top_logprobs": [_chat_entry(row, other) for other in best(row, depth)]}
        )
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "length", "logprobs": {"content": content}}],
    }


def _chat_entry(row, token):
    return {
        "token": TEXTS[token],
        "logprob": float(row[token]),
        "bytes": list(TEXTS[token].encode()),
    }


def responses(rows, depth=5):
    told = chat(rows, depth)["choices"][0]["logprobs"]["content"]
    text = {"type": "output_text", "text": "...", "annotations": [], "logprobs": told}
    return {
        "id": "resp_1",
        "object": "response",
        "status": "incomplete",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [text]},
        ],
    }


def ollama(rows, depth=5):
    told = chat(rows, depth)["choices"][0]["logprobs"]["content"]
    message = {"role": "assistant", "content": "..."}
    end = {"done": True, "done_reason": "length", "eval_count": len(rows)}
    return {"model": "gemma3", "message": message, "logprobs": told, **end}


def completions(rows, depth=5):
    tokens = [best(row, 1)[0] for row in rows]
    return {
        "object": "text_completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "logprobs": {
                    "tokens": [TEXTS[token] for token in tokens],
                    "token_logprobs": [
                        float(row[token]) for row, token in zip(rows, tokens, strict=True)
                    ],
                    "top_logprobs": [
                        {TEXTS[other]: float(row[other]) for other in best(row, depth)}
                        for row in rows
                    ],
                    "text_offset": list(range(len(tokens))),
                },
            }
        ],
    }


def vllm(rows, depth=5, chosen=None):
    positions = [None]
    for number, row in enumerate(rows):
        ranked = best(row, len(row))
        token = ranked[0] if chosen is None else chosen[number]
        listed = [
            token,
            *(other for other in ranked[:depth] if other != token),
        ]  # the actual token stands first
        positions.append(
            {
                str(other): {
                    "logprob": float(row[other]),
                    "rank": ranked.index(other) + 1,
                    "decoded_token": TEXTS[other],
                }
                for other in listed
            }
        )
    return {"prompt_logprobs": positions}


def sglang(rows, depth=5, part="output"):
    return {
        "text": "...",
        "meta_info": {
            "finish_reason": {"type": "stop"},
            f"{part}_token_logprobs": [[float(row.max()), best(row, 1)[0], None] for row in rows],
            f"{part}_top_logprobs": [
                [[float(row[other]), other, None] for other in best(row, depth)] for row in rows
            ],
        },
    }


def llama_cpp(rows, depth=5):
    def entry(row, token):
        text = TEXTS[token]
        return {
            "id": token,
            "logprob": float(row[token]),
            "token": text,
            "bytes": list(text.encode()),
        }

    return {
        "content": "...",
        "stop": True,
        "completion_probabilities": [
            entry(row, best(row, 1)[0])
            | {"top_logprobs": [entry(row, other) for other in best(row, depth)]}
            for row in rows
        ],
    }


WRITERS = {
    "openai-chat": chat,
    "openai-completions": completions,
    "openai-responses": responses,
    "ollama": ollama,
    "vllm": vllm,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
}


def save(path, *documents, shape="lines"):
    """Write documents as JSON Lines, pretty-printed one after the other, or as an array."""
    if shape == "lines":
        text = "".join(json.dumps(document) + "\n" for document in documents)
    elif shape == "pretty":
        text = "\n".join(
            json.dumps(document, indent=1, ensure_ascii=False) for document in documents
        )
    else:
        text = json.dumps(list(documents), indent=2)
    path.write_text(text, encoding="utf-8")
    return path


def strict_certificate(row):
    """The certificate of strict greedy on a row of logprobs, in nats."""
    first, second = np.exp(np.sort(row)[::-1][:2])
    mean = (first + second) / 2.0
    return first * math.log(first / mean) + second * math.log(second / mean)
