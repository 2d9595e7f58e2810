"""Writes small random Qwen3 pairs with a tokenizer and a chat template, for tests that need real
model directories."""

from __future__ import annotations

from pathlib import Path

_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% "
    "endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


def write_tiny_pair(
    folder: Path,
    *,
    target_pad: int = 0,
    draft_pad: int = 0,
    context: int = 128,
    chat: bool = True,
    noise: float = 0.15,
) -> tuple[Path, Path]:
    """Write ``folder/target`` (2 layers) and ``folder/draft`` (1 layer, else the target's weights
    with ``noise``, so that some drafts are accepted); widths are the tokenizer's size plus the
    paddings.

    The weights are bfloat16 numbers, as the bundled pair's are, so that one machine code of the CPU
    engine's rounds serves both: it takes a minute to compile. Passes over other weights are in
    ``models/cpu/test_runner.py``."""
    import torch
    from transformers import Qwen3ForCausalLM

    tokenizer = _tokenizer(chat)
    num_tokens = len(tokenizer)
    torch.manual_seed(7)
    target = Qwen3ForCausalLM(_config(num_tokens + target_pad, 2, context))
    draft = Qwen3ForCausalLM(_config(num_tokens + draft_pad, 1, context))
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.ndim == 2:
                parameter.mul_(40.0 if parameter is target.lm_head.weight else 12.0)
        of_target = dict(target.named_parameters())
        for name, parameter in draft.named_parameters():
            source = of_target[name]
            if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                parameter, source = parameter[:num_tokens], source[:num_tokens]
            parameter.copy_(source + noise * source.std(correction=0) * torch.randn_like(source))
        for parameter in (*target.parameters(), *draft.parameters()):
            parameter.copy_(parameter.bfloat16().float())
    for model, name in ((target, "target"), (draft, "draft")):
        model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|end|>")
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder / "target", folder / "draft"


def _tokenizer(chat: bool):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ["a river runs down to the sea", "write a story about the old river and the sea"]
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = _TEMPLATE if chat else None
    return tokenizer


def _config(width: int, layers: int, context: int):
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=width,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
