"""The protocol's prompts: a seeded sample of those long enough, from a local file or the dataset on
the hub."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.runs.writing import utf8, write_atomically
from certspec.scoring.prompts import read_prompts
from certspec.studies.paper.paper import DATASET

__all__ = ["download_prompts", "sample_prompts", "write_sample"]


def sample_prompts(
    path: Path, tokenizer: Any, *, num_prompts: int, min_tokens: int, seed: int
) -> list[str]:
    """``num_prompts`` prompts of at least ``min_tokens`` tokens (the text's own, without a chat
    template), in an order that the seed and the file fix.

    ``path``: a prompt file as ``certspec score`` reads it, or Parquet with a column "prompt".
    Raises InvalidArgument where the file holds fewer such prompts."""
    texts = list(_parquet_prompts(path) if path.suffix == ".parquet" else _file_prompts(path))
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    chosen: list[str] = []
    for index in order:
        if len(tokenizer(texts[index])["input_ids"]) >= min_tokens:
            chosen.append(texts[index])
            if len(chosen) == num_prompts:
                return chosen
    raise InvalidArgument(
        f"{path}: expected {num_prompts} prompts of at least {min_tokens} tokens, got "
        f"{len(chosen)} of {len(texts)}"
    )


def write_sample(folder: Path, prompts: list[str]) -> Path:
    """Write the sample as ``folder/prompts-HASH.jsonl`` and return its path: another sample's run
    that is there, and that the command will not go on with, keeps its own."""
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts]
    text = utf8("".join(lines))
    path = folder / f"prompts-{hashlib.sha256(text).hexdigest()[:8]}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnreadableInput(f"{folder}: {error.strerror or error}") from error
    write_atomically(path, text)
    return path


def download_prompts() -> Path:
    """The dataset's test split from the hub (its cache, where it is there already). Raises
    UnreadableInput."""
    from huggingface_hub import HfApi, hf_hub_download

    try:
        names = HfApi().list_repo_files(DATASET, repo_type="dataset")
        name = next(
            name for name in sorted(names) if "test_sft" in name and name.endswith(".parquet")
        )
        return Path(hf_hub_download(DATASET, name, repo_type="dataset"))
    except Exception as error:  # of the hub's client, in whatever kind its HTTP library has
        raise UnreadableInput(
            f"{DATASET}: could not be fetched from the hub ({error}); pass --prompts FILE"
        ) from error


def _file_prompts(path: Path) -> Iterator[str]:
    for prompt in read_prompts(path):
        user = [message["content"] for message in prompt.messages if message["role"] == "user"]
        yield user[0] if user else prompt.messages[0]["content"]


def _parquet_prompts(path: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["prompt"])
    except (OSError, KeyError, pa.ArrowException) as error:
        raise UnreadableInput(
            f'{path}: expected Parquet with a column "prompt": {error}'
        ) from error
    kind = table.schema.field("prompt").type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UnreadableInput(f'{path}: expected texts in the column "prompt", got {kind}')
    yield from (text for text in table.column("prompt").to_pylist() if text)
