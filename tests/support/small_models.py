"""Random models of small shapes, and what transformers says about a path of tokens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

import certspec as cs
from certspec.decoding.cuda_rounds import CudaRounds
from certspec.models.pairs import Pair
from tests.support.device import DEVICE, ON_GPU

if TYPE_CHECKING:
    import pytest

    from certspec.models.cuda.runner import CudaRunner


def make_model(
    bfloat16: bool = True, seed: int = 0, model_type: str = "qwen3", **changes: Any
) -> Any:
    """A random causal model in float32; ``bfloat16`` rounds its weights to numbers that two bytes
    hold."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 80,
        "vocab_size": 97,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "attn_implementation": "eager",
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**shape, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            if name.endswith("bias"):
                parameter.normal_()
            if bfloat16:
                parameter.copy_(parameter.bfloat16().float())
    return model


# sizes of a model whose rounds Triton's interpreter runs in seconds
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def small_pair(noise: float, seed: int, **changes: Any) -> Pair:
    """One random layer, and a draft near it: the same weights and some noise, so that all kinds of
    paths are accepted."""
    target, draft = (make_model(num_hidden_layers=1, **changes) for _ in range(2))
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += noise * parameter.std() * torch.randn_like(parameter)
    return Pair(target, draft, None, 97, (), "small")


def small_runners(pair: Pair) -> tuple[CudaRunner, CudaRunner]:
    """The GPU engine over both models, on the CPU where there is no GPU, with a cache that has to
    grow."""
    from certspec.models.cuda.runner import CudaRunner  # wants Triton

    target, draft = (
        CudaRunner(model, device=DEVICE, dtype=torch.float32, capacity=64)
        for model in (pair.target, pair.draft)
    )
    return target, draft


def take_small_pieces(patch: pytest.MonkeyPatch) -> None:
    """In the interpreter a program that looks for the largest logits takes little more than the 97
    that there are, not 4096."""
    if not ON_GPU:
        for module in ("drafting", "rounds"):
            patch.setattr(f"certspec.models.cuda.{module}.TOPS_BLOCK", 128)


def take_small_pages(patch: pytest.MonkeyPatch) -> None:
    """Caches of pages of 64 slots, and of no more of them than are wanted."""
    patch.setattr("certspec.models.cuda.cache.PAGE_SLOTS", 64)
    for name in ("_MORE_PAGES", "_MORE_LONGEST"):
        patch.setattr(f"certspec.models.cuda.runner.{name}", 1)


def prompt_of(count: int) -> list[int]:
    return random.Random(count).choices(range(97), k=count)


def both(
    pair: Pair, runners: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[Any]:
    """The same call in rounds on the device, which serve every batch, and in the loop on the
    host."""
    served: list[bool] = []
    serves = CudaRounds.serves

    def watched(*arguments: Any) -> bool:
        served.append(serves(*arguments))
        return served[-1]

    options = {"eos_token_ids": [], "runners": runners, **options}
    runners[0].kept_rounds.clear()
    with monkeypatch.context() as patch:
        patch.setattr(CudaRounds, "serves", watched)
        ours = cs.generate(pair, prompts, **options)
        assert served == [True]  # prompts beyond the batch join it
        patch.setattr(CudaRounds, "serves", lambda *_: False)
        return [ours, cs.generate(pair, prompts, **options)]


def truth(model: Any, tokens: list[int]) -> torch.Tensor:
    """(len(tokens), vocab) logits of transformers' own forward pass."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]
