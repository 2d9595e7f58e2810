"""What a generation config or ``generate`` asks for acts as in plain transformers, alone and for
the rows of a left-padded batch, or is refused by name, or is said not to be applied. Every option
that a GenerationConfig has is in a table.

With ``CERTSPEC_FUZZ`` in the environment, every option that changes nothing is tried alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

import certspec as cs
from tests.support.odd_documents import IS_REDUCED

# Tokens of the tiny pair's greedy texts: options name them, so that they change something.
_OFTEN = [76, 162, 187, 237]

# Every option of a GenerationConfig, by what it is to greedy decoding. These change its tokens,
# with what else has to be asked for.
CHANGING: dict[str, list[dict[str, Any]]] = {
    "bad_words_ids": [{"bad_words_ids": [[237], [162, 76]]}],
    "begin_suppress_tokens": [{"begin_suppress_tokens": _OFTEN}],
    "encoder_no_repeat_ngram_size": [{"encoder_no_repeat_ngram_size": 1}],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 1.6}],
    "eos_token_id": [{"eos_token_id": 76}, {"eos_token_id": _OFTEN}],
    "exponential_decay_length_penalty": [{"exponential_decay_length_penalty": (3, 1.5)}],
    "forced_bos_token_id": [{"forced_bos_token_id": 7}],
    "forced_eos_token_id": [{"forced_eos_token_id": 5}, {"forced_eos_token_id": [5, 6]}],
    "max_length": [{"max_length": 34, "max_new_tokens": None}],
    "max_new_tokens": [{"max_new_tokens": 3}],
    "max_time": [{"max_time": 1e-9}],
    "min_length": [{"min_length": 36, "eos_token_id": _OFTEN}],
    "min_new_tokens": [{"min_new_tokens": 6, "eos_token_id": _OFTEN}],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": 1}],
    "repetition_penalty": [{"repetition_penalty": 1.9}],
    "sequence_bias": [{"sequence_bias": [[[237], -99.0], [[162, 76], 9.0]]}],
    "suppress_tokens": [{"suppress_tokens": _OFTEN}],
    "watermarking_config": [{"watermarking_config": WatermarkingConfig(bias=9.0)}],
}
# These change nothing: they are of sampling, beams, caches, assistants, or of what comes back.
NEUTRAL: dict[str, Any] = {
    "assistant_confidence_threshold": 0.9,
    "assistant_ensemble_weight": 0.5,
    "assistant_lookbehind": 3,
    "bos_token_id": 5,
    "cache_config": {},
    "cache_implementation": "static",
    "compile_config": None,
    "continuous_batching_config": None,
    "decoder_start_token_id": 5,
    "disable_compile": True,
    "diversity_penalty": 0.5,
    "early_stopping": True,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "length_penalty": 2.0,
    "low_memory": True,
    "max_cache_len": 200,
    "max_matching_ngram_size": 2,
    "min_p": 0.5,
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic",
    "num_beam_groups": 1,
    "pad_token_id": 7,
    "prefill_chunk_size": 2,
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "return_dict_in_generate": True,
    "target_lookbehind": 3,
    "temperature": 0.3,
    "top_h": 0.4,
    "top_k": 2,
    "top_p": 0.5,
    "typical_p": 0.5,
    "use_cache": False,
}
# These are refused inside ``model.generate``, by its own check or by certspec's.
REFUSED: dict[str, Any] = {
    "cache_implementation": "quantized",
    "constraints": ["any"],
    "do_sample": True,
    "dola_layers": "low",
    "force_words_ids": [[5]],
    "guidance_scale": 1.5,
    "num_beams": 2,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_logits": True,
    "output_scores": True,
    "penalty_alpha": 0.6,
    "stop_strings": ["a"],
    "token_healing": True,
    "watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=list(range(1, 9))),
}
# These choose transformers' own ways to decode faster, which certspec's stand in for.
ASSISTED = {
    "assistant_early_exit",
    "is_assistant",
    "prompt_lookup_num_tokens",
    "speculation_type",
    "use_mtp",
}
# a name inside, the version, and what greedy decoding has no second answer for
NO_OPTIONS = {"transformers_version", "num_return_sequences"}


def _cells(prompts: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Ids and mask: a prompt of one token, a longer one alone, and all of them padded on a side."""
    longest = max(map(len, prompts))
    gaps = [[0] * (longest - len(each)) for each in prompts]
    rows = [[1] * len(each) for each in prompts]

    def both(ids: Any, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(ids), torch.tensor(mask)

    pairs = list(zip(prompts, gaps, rows, strict=True))
    return {
        "one token": both([prompts[0]], [rows[0]]),
        "single": both([prompts[2]], [rows[2]]),
        "left": both([g + p for p, g, _ in pairs], [g + r for _, g, r in pairs]),
        "right": both([p + g for p, g, _ in pairs], [r + g for _, g, r in pairs]),
    }


def _plain(model: Any, cell: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]) -> Any:
    common = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 9} | options
    made = model.generate(cell[0], attention_mask=cell[1], **common)
    return (made if isinstance(made, torch.Tensor) else made.sequences).tolist()


def _ours(tiny: Any, cell: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]) -> Any:
    bridge = {"custom_generate": cs.transformers_generate, "assistant_model": tiny.draft}
    return _plain(tiny.target, cell, bridge | options)


def _configured(tiny: Any, options: dict[str, Any]) -> Any:
    """The pair with these options in the target's generation config."""
    pair = copy.copy(tiny)
    pair.target = copy.copy(tiny.target)
    pair.target.generation_config = copy.deepcopy(tiny.target.generation_config)
    pair.target.generation_config.update(**options)
    return pair


def test_every_option_of_a_generation_config_is_in_the_table() -> None:
    known = CHANGING.keys() | NEUTRAL.keys() | REFUSED.keys() | ASSISTED | NO_OPTIONS
    assert {name for name in vars(GenerationConfig()) if name[0] != "_"} <= known


CASES = [(name, options) for name, cases in CHANGING.items() for options in cases]


@pytest.mark.filterwarnings("ignore:Unfeasible length")  # min_length, of the shorter prompts
@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
def test_an_option_that_changes_greedy_decoding_changes_it_here_as_there(
    tiny: Any, prompts: Any, name: str, options: dict[str, Any]
) -> None:
    without, changed = {key: value for key, value in options.items() if key != name}, False
    without = {key: value for key, value in without.items() if value is not None}
    cells = _cells(prompts)
    for where in ("one token", "single", "left"):
        fits = options.get("max_length", 99) > cells[where][0].shape[1]
        if not fits or (name == "max_length" and where != "left"):
            continue
        plain = _plain(tiny.target, cells[where], options)
        changed = changed or plain != _plain(tiny.target, cells[where], without)
        assert _ours(tiny, cells[where], options) == plain
        if changed and IS_REDUCED and where == "single":
            break
    assert changed, "the option did nothing"
    with pytest.raises(cs.InvalidArgument, match="with padding on the right"):
        _ours(tiny, cells["right"], options)


@pytest.mark.filterwarnings("ignore:Unfeasible length")  # min_length, of the shorter prompts
@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
def test_a_generation_config_is_applied_as_greedy_generate_applies_it(
    tiny: Any, prompts: Any, name: str, options: dict[str, Any]
) -> None:
    pair = _configured(tiny, {key: value for key, value in options.items() if value is not None})
    ours = cs.generate(pair, prompts[:3], max_new_tokens=9)
    if any(f"{name}={options[name]!r} is not applied" in note for note in ours.notes):
        return
    for prompt, tokens in zip(prompts, ours.sequences, strict=False):
        ids = torch.tensor([prompt])
        plain = pair.target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, do_sample=False
        )
        assert tokens == plain[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {name: value for name, value in NEUTRAL.items() if name != "prefill_chunk_size"},
        {"prefill_chunk_size": NEUTRAL["prefill_chunk_size"]},  # not without a cache
    ]
    if IS_REDUCED
    else [{name: value} for name, value in NEUTRAL.items()],
    ids=["all but", "prefill_chunk_size"] if IS_REDUCED else [*NEUTRAL],
)
def test_an_option_that_asks_nothing_of_greedy_decoding_changes_nothing(
    tiny: Any, prompts: Any, options: dict[str, Any]
) -> None:
    cells = _cells(prompts)
    options = {key: value for key, value in options.items() if value is not None}
    for where in ("one token", "single", "left"):
        plain = _plain(tiny.target, cells[where], options)
        assert _ours(tiny, cells[where], options) == plain
    pair = _configured(tiny, options)
    ours = cs.generate(pair, prompts[:2], max_new_tokens=9)
    assert ours.sequences == cs.generate(tiny, prompts[:2], max_new_tokens=9).sequences
    assert not any("not applied" in note for note in ours.notes)


@pytest.mark.parametrize(("name", "value"), REFUSED.items(), ids=[*REFUSED])
def test_what_greedy_decoding_can_not_do_is_refused_by_name_or_said(
    tiny: Any, prompts: Any, name: str, value: Any
) -> None:
    word = "SynthIDText" if name == "watermarking_config" else name.partition("_id")[0]
    options = {name: value} | ({"top_k": 4} if name == "penalty_alpha" else {})
    for where in ("single", "left"):
        with pytest.raises((cs.InvalidArgument, ValueError, ImportError)) as caught:
            _ours(tiny, _cells(prompts)[where], options)
        # what transformers refuses before it asks certspec is in its own words
        if isinstance(caught.value, cs.InvalidArgument):
            assert word in str(caught.value)
    if name.startswith("output_") or name == "do_sample":
        return
    notes = cs.generate(_configured(tiny, options), prompts[:1], max_new_tokens=3).notes
    assert [note for note in notes if word in note and "is not applied" in note]


@pytest.mark.filterwarnings("ignore")  # past_key_values has another name in later versions
def test_what_is_handed_over_besides_tokens_is_refused_by_name(tiny: Any) -> None:
    from transformers import DynamicCache

    ids, embed = torch.tensor([[5, 6, 7]]), tiny.target.get_input_embeddings()
    used = DynamicCache(config=tiny.target.config)
    with torch.no_grad():
        tiny.target(ids[:, :2], past_key_values=used)
    for given in (
        {"inputs_embeds": embed(ids).detach()},
        {"position_ids": ids},
        {"past_key_values": used},
    ):
        with pytest.raises(cs.InvalidArgument, match="|".join([*given, "cache: "])):
            _ours(tiny, (ids, torch.ones_like(ids)), given)
    places = {"position_ids": torch.tensor([[0, 1, 2]])}
    cell = ids, torch.ones_like(ids)
    assert _ours(tiny, cell, places) == _plain(tiny.target, cell, {})


def test_a_processor_with_a_state_is_refused_by_name(tiny: Any) -> None:
    from transformers import UnbatchedClassifierFreeGuidanceLogitsProcessor

    guided = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, tiny.target)
    with pytest.raises(cs.InvalidArgument, match=r"without a state, got a UnbatchedClassifierFree"):
        cs.generate(tiny, [[5, 6]], logits_processor=[guided])


def test_what_of_a_generation_config_is_not_applied_is_said(tiny: Any, prompts: Any) -> None:
    pair = copy.copy(tiny)
    pair.target = copy.deepcopy(tiny.target)
    pair.target.generation_config.update(num_beams=4, stop_strings=["sea"])
    assert cs.generate(pair, prompts[:1], max_new_tokens=4).notes == (
        "generation_config: num_beams=4 is not applied",
        "generation_config: stop_strings=['sea'] is not applied",
    )


def test_sampling_settings_ask_nothing_of_greedy_decoding(tiny: Any, prompts: Any) -> None:
    pair = copy.copy(tiny)
    pair.target = copy.deepcopy(tiny.target)
    pair.target.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9, top_k=20)
    ours = cs.generate(pair, prompts[:2], max_new_tokens=8)
    assert ours.notes == ()
    assert ours.sequences == cs.generate(tiny, prompts[:2], max_new_tokens=8).sequences


def _prefix(batch_id: int, sent: Any) -> list[int]:
    return list(range(20 * batch_id, 20 * batch_id + 100))


def test_allowed_tokens_are_asked_for_by_the_number_of_the_row(tiny: Any, prompts: Any) -> None:
    cell, options = _cells(prompts)["left"], {"prefix_allowed_tokens_fn": _prefix}
    assert _ours(tiny, cell, options) == _plain(tiny.target, cell, options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_hidden_states": True}, "output_hidden_states=False, got True"),
        ({"output_attentions": True}, "output_attentions=False, got True"),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "with padding on the right"),
    ],
)
def test_what_the_bridge_cannot_give_is_refused_by_name(
    tiny: Any, change: dict[str, Any], message: str
) -> None:
    options = {"attention_mask": torch.ones(1, 3, dtype=torch.int64), "pad_token_id": 0} | change
    with pytest.raises(cs.InvalidArgument, match=message):
        tiny.target.generate(
            torch.tensor([[5, 6, 7]]),
            max_new_tokens=4,
            custom_generate=cs.transformers_generate,
            assistant_model=tiny.draft,
            **options,
        )


def test_a_processor_that_changes_the_columns_is_refused_by_name(tiny: Any) -> None:
    def first_ten(ids: Any, scores: Any) -> Any:
        return scores[:, :10]

    with pytest.raises(
        cs.InvalidArgument, match=r"first_ten: expected scores of \(1, 297\), got \(1, 10\)"
    ):
        cs.generate(tiny, [[1, 2]], logits_processor=[first_ten])


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda scores: scores.long(), "torch.strided of torch.int64 on cpu"),
        (lambda scores: scores.to_sparse(), "torch.sparse_coo of torch.float32 on cpu"),
        (lambda scores: scores.to("meta"), "torch.strided of torch.float32 on meta"),
    ],
)
def test_scores_that_are_no_dense_numbers_here_are_refused_by_name(
    tiny: Any, change: Any, got: str
) -> None:
    def changed(ids: Any, scores: Any) -> Any:
        return change(scores)

    told = f"changed: expected dense floating-point scores on cpu, got {got}"
    with pytest.raises(cs.InvalidArgument, match=told):
        cs.generate(tiny, [[1, 2]], logits_processor=[changed])


@pytest.mark.parametrize("first", [0, 4])
def test_scores_without_a_number_are_told_where_they_begin(tiny: Any, first: int) -> None:
    def blank_from_there(ids: Any, scores: Any) -> Any:
        return scores * torch.nan if ids.shape[1] >= 2 + first else scores

    told = rf"prompt 0, round \d, after {first} new tokens: target_logits holds a NaN"
    with pytest.raises(cs.InvalidLogits, match=told):
        cs.generate(tiny, [[1, 2]], logits_processor=[blank_from_there], eos_token_ids=[])


@pytest.mark.parametrize("answer", [None, "yes", object()])
def test_a_criterion_that_answers_no_boolean_is_refused_by_name(tiny: Any, answer: Any) -> None:
    def ask(ids: Any, scores: Any, **kwargs: Any) -> Any:
        return answer

    with pytest.raises(cs.InvalidArgument, match="stopping_criteria ask: expected a boolean a row"):
        tiny.target.generate(
            torch.tensor([[5, 6, 7]]),
            attention_mask=torch.ones(1, 3, dtype=torch.int64),
            pad_token_id=0,
            max_new_tokens=4,
            stopping_criteria=[ask],
            custom_generate=cs.transformers_generate,
            assistant_model=tiny.draft,
        )


@pytest.mark.parametrize("ends", [np.int64(5), [np.int32(5)], np.array([5]), torch.tensor(5)])
def test_numbers_of_any_kind_are_ends(tiny: Any, prompts: Any, ends: Any) -> None:
    plain = cs.generate(tiny, prompts[:1], max_new_tokens=4, eos_token_ids=5).sequences
    assert cs.generate(tiny, prompts[:1], max_new_tokens=4, eos_token_ids=ends).sequences == plain


@pytest.mark.parametrize("ends", ["5", 2.5, [None], True, [5, False]])
def test_what_is_no_token_id_is_no_end(tiny: Any, ends: Any) -> None:
    with pytest.raises(cs.InvalidArgument, match="eos_token_ids: expected a token id"):
        cs.generate(tiny, [[1, 2]], eos_token_ids=ends)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bad_words_ids": [[297]]}, "NoBadWordsLogitsProcessor: The model vocabulary size is 297"),
        ({"forced_eos_token_id": 10**6}, "ForcedEOSTokenLogitsProcessor: index 1000000 is out of"),
        ({"exponential_decay_length_penalty": (1,)}, "generation_config of .*: tuple index out of"),
        ({"eos_token_id": "10"}, "eos_token_id: expected a token id or several, got '10'"),
        ({"eos_token_id": [[0]]}, r"eos_token_id: expected a token id or several, got \[\[0\]\]"),
    ],
)
def test_a_generation_config_that_does_not_fit_the_model_is_refused_by_name(
    tiny: Any, options: dict[str, Any], message: str
) -> None:
    pair = _configured(tiny, {})
    vars(pair.target.generation_config).update(options)
    with pytest.raises(cs.InvalidArgument, match=message):
        cs.generate(pair, [[5, 6]], max_new_tokens=3)


def test_a_generation_config_that_is_none_of_transformers_is_refused_by_name(tiny: Any) -> None:
    pair = _configured(tiny, {})
    pair.target.generation_config = {"repetition_penalty": 1.2}
    with pytest.raises(cs.InvalidArgument, match="generation_config of Qwen3ForCausalLM: 'dict'"):
        cs.generate(pair, [[5, 6]], max_new_tokens=3)


def test_a_processor_that_gives_no_scores_is_refused_by_name_beside_padding_too(tiny: Any) -> None:
    def nothing(ids: Any, scores: Any) -> None:
        return None

    cell = torch.tensor([[0, 5, 6]]), torch.tensor([[0, 1, 1]])
    with pytest.raises(cs.InvalidArgument, match=r"nothing: expected .* \(1, 297\), got NoneType"):
        _ours(tiny, cell, {"logits_processor": [nothing]})


def _below_the_mean(ids: Any, scores: Any) -> Any:
    return scores - 2 * scores.mean(0, keepdim=True)


def _by_number_of_rows(ids: Any, scores: Any) -> Any:
    return scores.roll(len(scores), 1)


class _AnyRowEnds(StoppingCriteria):
    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.full((len(input_ids),), bool((input_ids[:, -1] % 5 == 0).any()))


MIXING: dict[str, dict[str, Any]] = {
    "the rows' mean": {"logits_processor": [_below_the_mean]},
    "the number of rows": {"logits_processor": [_by_number_of_rows]},
    "an end of all rows at once": {"stopping_criteria": [_AnyRowEnds()]},
}


@pytest.mark.parametrize("options", MIXING.values(), ids=[*MIXING])
def test_what_mixes_the_rows_of_a_batch_gives_the_ids_of_transformers(
    tiny: Any, prompts: Any, options: dict[str, Any]
) -> None:
    cell = _cells(prompts)["left"]
    plain = _plain(tiny.target, cell, options)
    with pytest.warns(UserWarning, match="without drafts .* may look at several rows"):
        assert _ours(tiny, cell, options) == plain
    alone = [
        _plain(tiny.target, (torch.tensor([p]), torch.ones(1, len(p))), options) for p in prompts
    ]
    longest = cell[0].shape[1]
    assert any(
        row[longest:] != one[0][len(p) :] for row, one, p in zip(plain, alone, prompts, strict=True)
    ), "the rows were not mixed"
    if "logits_processor" in options:  # a prompt of cs.generate is as alone as it is there
        together = cs.generate(tiny, prompts, max_new_tokens=9, batch_size=4, **options)
        assert together.sequences == [
            one[0][len(p) :] for one, p in zip(alone, prompts, strict=True)
        ]
    for more, word in (({"rule": "additive:0.3"}, "additive:0.3"), ({"on_step": print}, "on_step")):
        with pytest.raises(cs.InvalidArgument, match=f"strict greedy decoding .* got {word}"):
            _ours(tiny, cell, options | more)


class _Counting(LogitsProcessor):
    """Prefers another token at every call."""

    calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        return scores.roll(self.calls, 1)


def test_a_processor_that_counts_its_calls_is_refused_by_name(tiny: Any, prompts: Any) -> None:
    refused = "_Counting: expected the same scores .* same tokens and logits"
    with pytest.raises(cs.InvalidArgument, match=refused):
        cs.generate(tiny, prompts[:1], max_new_tokens=4, logits_processor=[_Counting()])
    with pytest.raises(cs.InvalidArgument, match=refused):
        _ours(tiny, _cells(prompts)["single"], {"logits_processor": [_Counting()]})
    # called once, it had no draft to remember
    cs.generate(tiny, prompts[:1], max_new_tokens=1, logits_processor=[_Counting()])


@pytest.mark.parametrize("end", [-1, 297, 10**6, 10**30])
def test_an_end_that_is_no_token_is_refused_where_it_is_given_and_said_where_a_config_has_it(
    tiny: Any, prompts: Any, end: int
) -> None:
    with pytest.raises(cs.InvalidArgument, match=f"eos_token_ids: expected ids .*296, .*{end}"):
        cs.generate(tiny, prompts[:1], eos_token_ids=[5, end])
    said = f"eos_token_id: {end} is no token of the 297 there are, so it ends no text"
    pair = _configured(tiny, {"eos_token_id": [_OFTEN[0], end]})
    ours = cs.generate(pair, prompts[:2], max_new_tokens=9)
    inside = cs.generate(tiny, prompts[:2], max_new_tokens=9, eos_token_ids=_OFTEN[0])
    assert ours.notes == (said,) and ours.sequences == inside.sequences
    if end < 2**63:  # transformers makes tensors of them
        cell, options = _cells(prompts)["left"], {"eos_token_id": [_OFTEN[0], end]}
        with pytest.warns(UserWarning, match=f"transformers_generate: {said}"):
            assert _ours(tiny, cell, options) == _plain(tiny.target, cell, options)
