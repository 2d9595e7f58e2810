"""What is not provably the plain module tree is run by transformers, with the first deviation in
the notes, and gives the tokens that the model itself gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from transformers import Qwen3ForCausalLM

import certspec as cs
from certspec.models.plain_tree import first_deviation


class _Upside(Qwen3ForCausalLM):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        output = super().forward(*arguments, **options)
        output.logits = -output.logits
        return output


class _Wrapped(nn.Module):
    """A wrapper that hands on what the inner model has, as adapters do."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.base(*arguments, **options)


class _Adapter(nn.Module):
    """A LoRA-like layer around a linear one."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base, self.low = linear, nn.Linear(linear.in_features, linear.out_features)

    def forward(self, values: Any) -> Any:
        return self.base(values) + self.low(values)


def _hooked(model: Any) -> Any:
    model.model.layers[1].mlp.register_forward_hook(lambda module, given, made: -made)
    return model


def _pre_hooked(model: Any) -> Any:
    model.lm_head.register_forward_pre_hook(lambda module, given: (given[0].flip(-1),))
    return model


def _upside(model: Any) -> Any:
    model.__class__ = _Upside
    return model


def _own_forward(model: Any) -> Any:
    mlp = model.model.layers[0].mlp
    mlp.forward = MethodType(lambda module, values: values, mlp)
    return model


def _biased(model: Any) -> Any:
    model.lm_head.bias = nn.Parameter(torch.randn(model.lm_head.out_features))
    return model


def _adapted(model: Any) -> Any:
    attention = model.model.layers[0].self_attn
    attention.q_proj = _Adapter(attention.q_proj)
    return model


def _parametrized(model: Any) -> Any:
    parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    return model


def _pruned(model: Any) -> Any:
    prune.l1_unstructured(model.model.layers[0].mlp.up_proj, "weight", 0.5)
    return model


def _quantized(model: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


def _another_epsilon(model: Any) -> Any:
    model.model.norm.variance_epsilon = 0.5
    return model


def _mixed(model: Any) -> Any:
    model.model.layers[0].mlp.act_fn = nn.Tanh()
    return model


def _not_causal(model: Any) -> Any:
    model.model.layers[1].self_attn.is_causal = False
    return model


def _fewer_layers(model: Any) -> Any:
    model.config.num_hidden_layers = 1
    return model


def _compiled_in_place(model: Any) -> Any:
    model.model.layers[0].compile(backend="eager")
    return model


def _compiled_forward(model: Any) -> Any:
    model.model.forward = torch.compile(model.model.forward, backend="eager")
    return model


def _masked(model: Any) -> Any:
    mask = torch.ones_like(model.lm_head.weight)
    prune.custom_from_mask(model.lm_head, "weight", mask)
    return model


def _normalised(model: Any) -> Any:
    nn.utils.spectral_norm(model.model.layers[0].mlp.down_proj)
    return model


class _Marked(torch.Tensor):
    """A tensor of a class of its own, as torchao's quantised ones are."""


def _tensor_class(model: Any) -> Any:
    linear = model.model.layers[0].mlp.gate_proj
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(_Marked), requires_grad=False)
    return model


CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (_hooked, "model.layers.1.mlp: a forward hook"),
    (_pre_hooked, "lm_head: a forward hook"),
    (_upside, "_Upside, not Qwen3ForCausalLM as transformers ships it"),
    (_own_forward, "model.layers.0.mlp: a forward of its own"),
    (_biased, "lm_head: a bias"),
    (_adapted, "model.layers.0.self_attn.q_proj: _Adapter, not Linear"),
    (_parametrized, "model.layers.0.mlp.up_proj: ParametrizedLinear, not Linear"),
    (_pruned, "model.layers.0.mlp.up_proj: a forward hook"),
    (_quantized, "model.layers.0.self_attn.q_proj: "),
    (_another_epsilon, "model.norm: an epsilon of 0.5, not 1e-06"),
    (_not_causal, "model.layers.1.self_attn: is_causal False, not True"),
    (_fewer_layers, "model.layers.1: Qwen3DecoderLayer, which Qwen3ForCausalLM does not have"),
    (_compiled_in_place, "model.layers.0: compiled"),
    (_compiled_forward, "model: a forward of its own"),
    (_masked, "lm_head: a forward hook"),
    (_normalised, "model.layers.0.mlp.down_proj: a forward hook"),
    (_tensor_class, "model.layers.0.mlp.gate_proj.weight: a "),
    (_mixed, "model.layers.0.mlp.act_fn: Tanh, not SiLUActivation"),
    (_Wrapped, "_Wrapped, not Qwen3ForCausalLM as transformers ships it"),
    (torch.compile, "OptimizedModule, not Qwen3ForCausalLM as transformers ships it"),
]


def _changed_pair(tiny: Any, change: Callable[[Any], Any]) -> Any:
    target = change(copy.deepcopy(tiny.target))
    return cs.Pair(target, tiny.draft, tiny.tokenizer, tiny.num_tokens)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("change", "words"), CHANGES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_model_that_is_not_what_its_class_says_is_run_by_transformers(
    tiny: Any, prompts: Any, change: Callable[[Any], Any], words: str
) -> None:
    # each length of a sequence is compiled anew, seconds each: one of the three is, for all of them
    few = change in (torch.compile, _compiled_forward, _compiled_in_place)
    prompts, count = (prompts[:1], 2) if few else (prompts[:2], 6)
    stance = "force_eager" if few and change is not torch.compile else "default"
    if change is torch.compile:
        change = lambda model: torch.compile(model, backend="eager")  # noqa: E731
    pair = _changed_pair(tiny, change)
    with torch.compiler.set_stance(stance):
        generation = cs.generate(pair, prompts, max_new_tokens=count, eos_token_ids=[])
    assert generation.engine == "transformers"
    assert generation.notes[0].startswith(f"target: run by transformers ({words}")
    if change is _quantized:
        return  # its scales depend on all tokens of a pass, so passes of other lengths differ
    for prompt, tokens in zip(prompts, generation.sequences, strict=True):
        sequence = list(prompt)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for _ in range(count):
                logits = pair.target(torch.tensor([sequence])).logits[0, -1]
                sequence.append(int(logits.argmax()))
        assert tokens == sequence[len(prompt) :]


def test_the_plain_tree_stays_plain_after_transformers_watched_its_hidden_states(tiny: Any) -> None:
    model = copy.deepcopy(tiny.target)
    assert first_deviation(model) is None
    model(torch.tensor([[1, 2]]), output_hidden_states=True, output_attentions=True)
    assert first_deviation(model) is None


def test_a_method_that_was_replaced_in_its_class_is_seen(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(tiny.target.model.norm), "forward", lambda module, values: values)
    assert first_deviation(tiny.target) == "Qwen3RMSNorm.forward: not as shipped"


def test_a_function_that_was_replaced_in_its_module_is_seen(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.qwen3 import modeling_qwen3

    place = "transformers.models.qwen3.modeling_qwen3"
    for name in ("apply_rotary_pos_emb", "rotate_half", "repeat_kv", "eager_attention_forward"):
        with monkeypatch.context() as patch:
            patch.setattr(modeling_qwen3, name, lambda *given, **options: given[0])
            assert first_deviation(tiny.target) == f"{place}.{name}: not as shipped"
    with monkeypatch.context() as patch:
        patch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", lambda *given, **options: given[1])
        assert first_deviation(tiny.target) == "attention 'sdpa': not as shipped"
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "__call__", lambda module, values: values, raising=False)
        assert first_deviation(tiny.target) == "Linear.__call__: not as shipped"
    assert first_deviation(tiny.target) is None


def test_a_weight_of_another_dtype_is_seen(tiny: Any) -> None:
    model = copy.deepcopy(tiny.target)
    model.model.norm.weight.data = model.model.norm.weight.data.double()
    said = "model.norm.weight: torch.float64 on cpu, not torch.float32 on cpu"
    assert first_deviation(model) == said


def test_a_layer_that_stands_in_two_places_is_seen(tiny: Any) -> None:
    model = copy.deepcopy(tiny.target)
    model.model.layers[1] = model.model.layers[0]
    assert first_deviation(model) == "model.layers.1.self_attn: layer_idx 0, not 1"


def test_autocast_is_not_the_engines_arithmetic(tiny: Any, prompts: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert first_deviation(tiny.target) == "autocast"
        assert cs.generate(tiny, prompts[:1], max_new_tokens=2).engine == "transformers"


def test_a_number_that_is_packed_with_the_weights_is_read_anew(tiny: Any, prompts: Any) -> None:
    def larger_epsilon(model: Any) -> None:
        model.config.rms_norm_eps = 0.5
        for module in model.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 0.5

    def longer_waves(model: Any) -> None:
        model.model.rotary_emb.inv_freq.data *= 0.25

    def scaled_waves(model: Any) -> None:
        model.model.rotary_emb.attention_scaling = 1.5

    for change in (larger_epsilon, longer_waves, scaled_waves):
        pair = cs.Pair(copy.deepcopy(tiny.target), tiny.draft, tiny.tokenizer, tiny.num_tokens)
        cs.generate(pair, prompts, max_new_tokens=8)
        change(pair.target)
        fresh = cs.Pair(copy.deepcopy(pair.target), tiny.draft, tiny.tokenizer, tiny.num_tokens)
        one, other = (cs.generate(each, prompts, max_new_tokens=8) for each in (pair, fresh))
        assert one.engine == "certspec cpu"
        assert (one.steps.column("prob_margin") == other.steps.column("prob_margin")).all()


def test_a_dtype_that_changed_after_packing_goes_to_transformers(tiny: Any, prompts: Any) -> None:
    pair = cs.Pair(copy.deepcopy(tiny.target), tiny.draft, tiny.tokenizer, tiny.num_tokens)
    assert cs.generate(pair, prompts[:1], max_new_tokens=2).engine == "certspec cpu"
    pair.target.to(torch.bfloat16)
    generation = cs.generate(pair, prompts[:1], max_new_tokens=2)
    assert generation.notes[0].startswith("target: run by transformers (dtype bfloat16 on the CPU")


def test_weights_that_lie_across_memory_are_read_as_they_are(tiny: Any, prompts: Any) -> None:
    pair = cs.Pair(copy.deepcopy(tiny.target), tiny.draft, tiny.tokenizer, tiny.num_tokens)
    for module in pair.target.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    ours = cs.generate(pair, prompts, max_new_tokens=8)
    assert ours.sequences == cs.generate(tiny, prompts, max_new_tokens=8).sequences


def test_a_head_that_is_untied_in_fact_is_used_whatever_the_config_says(
    tiny: Any, prompts: Any
) -> None:
    target = copy.deepcopy(tiny.target)
    target.config.tie_word_embeddings = True
    pair = cs.Pair(target, tiny.draft, tiny.tokenizer, tiny.num_tokens)
    ours = cs.generate(pair, prompts, max_new_tokens=8)
    assert ours.engine == "certspec cpu"
    assert ours.sequences == cs.generate(tiny, prompts, max_new_tokens=8).sequences


def _by_data(weight: Any) -> None:
    weight.data[:] = weight.data.roll(1, 0)


def _by_numpy(weight: Any) -> None:
    view = weight.detach().numpy()
    view[:] = view[::-1].copy()


# to numbers of two bytes, as the others are: code for wider ones takes half a minute to compile


def _one_row(weight: Any) -> None:
    weight.data[17] *= -2.0


def _one_number(weight: Any) -> None:
    weight.data[3, 5] = 2.0


def _two_exchanged(weight: Any) -> None:
    weight.data[3, [5, 9]] = weight.data[3, [9, 5]]


@pytest.mark.parametrize("write", [_by_data, _by_numpy, _one_row, _one_number, _two_exchanged])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.mlp.down_proj.weight"])
def test_a_weight_that_was_written_to_behind_torch_is_packed_anew(
    tiny: Any, prompts: Any, name: str, write: Callable[[Any], None]
) -> None:
    pair = cs.Pair(copy.deepcopy(tiny.target), tiny.draft, tiny.tokenizer, tiny.num_tokens)
    cs.generate(pair, prompts, max_new_tokens=8)
    version = pair.target.get_parameter(name)._version
    write(pair.target.get_parameter(name))
    assert pair.target.get_parameter(name)._version == version
    fresh = cs.Pair(copy.deepcopy(pair.target), tiny.draft, tiny.tokenizer, tiny.num_tokens)
    one, other = (cs.generate(each, prompts, max_new_tokens=8) for each in (pair, fresh))
    assert one.sequences == other.sequences
    assert (one.steps.column("prob_margin") == other.steps.column("prob_margin")).all()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_module_that_is_no_transformers_model_is_refused_by_name(tiny: Any, role: str) -> None:
    pair = copy.copy(tiny)
    setattr(pair, role, nn.Linear(2, 2))
    with pytest.raises(cs.InvalidArgument, match=f"{role}: expected .*, got a Linear without con"):
        cs.generate(pair, [[1, 2]])


def test_a_pair_without_a_draft_is_refused_by_name(tiny: Any) -> None:
    pair = copy.copy(tiny)
    pair.draft = None
    with pytest.raises(cs.InvalidArgument, match=r"draft: expected .*, got none"):
        cs.generate(pair, [[1, 2]])


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_model_is_served_inside_generate_too(tiny: Any) -> None:
    output = _quantized(copy.deepcopy(tiny.target)).generate(
        torch.tensor([[5, 6, 7]]),
        attention_mask=torch.ones(1, 3, dtype=torch.int64),
        do_sample=False,
        max_new_tokens=4,
        pad_token_id=0,
        custom_generate=cs.transformers_generate,
        assistant_model=tiny.draft,
    )
    assert output.shape == (1, 7)


class _Negating(TorchFunctionMode):
    """A mode that turns the sign of every linear layer's output."""

    def __torch_function__(
        self, function: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        made = function(*given, **(options or {}))
        return -made if function is functional.linear else made


def test_a_function_of_torch_that_was_replaced_is_seen(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("linear", "embedding", "silu", "scaled_dot_product_attention"):
        with monkeypatch.context() as patch:
            patch.setattr(functional, name, lambda *given, **options: given[0])
            said = f"torch.nn.functional.{name}: not as shipped"
            assert first_deviation(tiny.target) == said
    with _Negating():
        assert first_deviation(tiny.target) == "a mode, _Negating"
    with torch.device("cpu"):
        assert first_deviation(tiny.target) is None


def test_a_weight_of_another_layout_or_that_is_no_parameter_is_seen(tiny: Any) -> None:
    sparse, plain = copy.deepcopy(tiny.target), copy.deepcopy(tiny.target)
    weight = sparse.lm_head.weight.detach()
    sparse.lm_head.weight = nn.Parameter(weight.to_sparse(), requires_grad=False)
    assert first_deviation(sparse) == "lm_head.weight: of layout torch.sparse_coo"
    pair = cs.Pair(sparse, tiny.draft, None, tiny.num_tokens)
    with pytest.raises(cs.InvalidArgument, match=r"dense weights, got lm_head.weight of layout"):
        cs.generate(pair, [[5, 6]])
    del plain.lm_head.weight
    plain.lm_head.weight = -weight
    assert first_deviation(plain) == "lm_head: a weight that is no parameter"


def test_a_model_on_device_meta_is_refused_by_name(tiny: Any) -> None:
    bare = cs.Pair(copy.deepcopy(tiny.target).to("meta"), tiny.draft, None, tiny.num_tokens)
    with pytest.raises(cs.InvalidArgument, match="target: expected a model with weights, got one"):
        cs.generate(bare, [[5, 6]])
