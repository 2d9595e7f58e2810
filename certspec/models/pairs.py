"""A target and a draft that speak about the same tokens: loading, and the checks that they do.

Their tokenizers must give every id the same text. Where one model has 151,936 columns of logits and
the other 151,669, both are cut to the tokenizer's ids, and a note says so."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certspec.errors import IncompatiblePair, InvalidArgument, UnreadableInput
from certspec.models import BUNDLED
from certspec.models.checkpoints import TOKENIZER_FILES, check_checkpoint, read_config
from certspec.models.devices import chosen_device, has_cuda
from certspec.models.gguf.header import GgufFile, is_gguf, read_header
from certspec.models.gguf.model import load_gguf_model, make_tokenizer, tokenizer_facts

__all__ = ["Pair", "default_device", "load_pair", "load_target", "spread_options"]


def spread_options(device: Any, device_map: Any, tp_plan: str | None) -> dict[str, Any]:
    """Keywords for ``from_pretrained``: empty where nothing is spread. Raises InvalidArgument for
    what can't be."""
    chosen = {
        name: value
        for name, value in (("device_map", device_map), ("tp_plan", tp_plan))
        if value is not None
    }
    if not chosen:
        return {}
    if len(chosen) > 1 or device is not None:
        raise InvalidArgument(
            f"{' and '.join(chosen)}: expected one of device, device_map and tp_plan, got "
            f"{', '.join([*chosen, *(['device'] if device is not None else [])])}"
        )
    if importlib.util.find_spec("accelerate") is None:
        raise InvalidArgument(
            f"{next(iter(chosen))}: needs the package accelerate (pip install 'certspec[large]')"
        )
    if tp_plan is None:
        return chosen
    if tp_plan != "auto":
        raise InvalidArgument(
            f'tp_plan: expected "auto", the plan that the model comes with, got {tp_plan!r}'
        )
    if "WORLD_SIZE" not in os.environ:
        raise InvalidArgument(
            "tp_plan: expected processes that torchrun started (torchrun --nproc-per-node N ...)"
        )
    return _tensor_parallel()


def default_device(spread: dict[str, Any]) -> str:
    """The kind of device that decides the default dtype where none is named: the CPU, unless a
    model is spread and there are GPUs to spread it over."""
    if not spread or spread.get("device_map") == "cpu":
        return "cpu"
    return "cuda" if has_cuda() else "cpu"


def _tensor_parallel() -> dict[str, Any]:
    try:  # transformers moved the argument during 5.x
        from transformers.distributed import DistributedConfig

        if "tp_plan" in inspect.signature(DistributedConfig).parameters:
            return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except ImportError:
        pass
    return {"tp_plan": "auto"}


# pad is left out: it names no token of a text, and bases of one family differ in it
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "unk_token_id")


@dataclass(repr=False)
class Pair:
    """A loaded pair. ``num_tokens`` is the number of logits columns that both models share (real
    ids only where their widths differ); ``notes`` says in words what was aligned. ``draft`` is None
    in what ``load_target`` returns."""

    target: Any
    draft: Any
    tokenizer: Any
    num_tokens: int
    notes: tuple[str, ...] = ()
    name: str = ""

    @property
    def device(self) -> Any:
        """The device of the target's weights."""
        return self.target.device

    @property
    def dtype(self) -> Any:
        """The dtype of the target's weights."""
        return self.target.dtype

    def __repr__(self) -> str:
        models = [model for model in (self.target, self.draft) if model is not None]
        sizes = [f"{model.num_parameters():,}" for model in models]
        return (
            f"Pair({self.name or 'unnamed'}: {' and '.join(sizes)} parameters, "
            f"{self.num_tokens:,} tokens, {str(self.dtype).removeprefix('torch.')} on "
            f"{self.device})"
        )


def load_pair(
    target: str | os.PathLike[str] | None = None,
    draft: str | os.PathLike[str] | None = None,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    device: Any = None,
    dtype: Any = None,
    revision: str | None = None,
    draft_revision: str | None = None,
    device_map: Any = None,
    tp_plan: str | None = None,
) -> Pair:
    """Load a target and a draft from directories, hub ids or GGUF files; with no arguments, the
    bundled pair.

    Only safetensors and GGUF weights are read and no code from a checkpoint is run; a directory or
    a file is read without any network. A GGUF file (it needs the package gguf) brings its
    tokenizer; on a CPU in float32 its weights stay quantised and certspec's engine alone runs them
    (the model has no ``generate`` of its own), else they are dequantised to ``dtype`` into the
    transformers model, and ``notes`` says how many that rounds.

    Args:
        target: a directory, a hub id or a .gguf file.
        draft: the same; both or neither.
        tokenizer: a directory, file or id whose tokenizer is used, for models that come without
            one. Models' own tokenizers must agree with it.
        device: where both models lie; None: the CPU.
        dtype: of the weights; None: float32 on a CPU, bfloat16 elsewhere.
        revision: of the target on the hub.
        draft_revision: of the draft.
        device_map: spreads the layers of a target too large for one device over the devices of this
            process.
        tp_plan: "auto" spreads its tensors over the processes that torchrun started (both as
            transformers has them; they need the package accelerate). The draft then lies whole on
            the target's first device.

    Raises UnreadableInput for a directory without config or safetensors weights (or with weights
    missing), and IncompatiblePair where the tokenizers differ (naming the first id and both
    tokens), or a model has fewer columns than the tokenizer has ids.

    Example:
        >>> import certspec as cs
        >>> cs.load_pair()
        Pair(target + draft: 7,951,168 and 967,552 parameters, 4,096 tokens, float32 on cpu)
    """
    import torch

    if (target is None) != (draft is None):
        raise InvalidArgument(
            "load_pair: expected target and draft, or neither (the bundled pair), "
            f"got target={target!r}, draft={draft!r}"
        )
    if target is None or draft is None:
        target, draft = BUNDLED / "target", BUNDLED / "draft"
    spread = spread_options(device, device_map, tp_plan)
    device = chosen_device(default_device(spread) if device is None else device)
    dtype = (
        (torch.float32 if device.type == "cpu" else torch.bfloat16)
        if dtype is None
        else _dtype(dtype)
    )
    sources = {"target": (target, revision), "draft": (draft, draft_revision)}
    _require_hub("revision", target, revision)
    _require_hub("draft_revision", draft, draft_revision)
    files = {role: _opened(role, source) for role, (source, _) in sources.items()}
    notes = []
    with _quiet_transformers():
        tokenizers = (
            {}
            if tokenizer is None
            else {"tokenizer": _load_tokenizer("tokenizer", tokenizer, None)}
        )
        for role, (source, its_revision) in sources.items():
            if tokenizer is None and role == "draft" and _tell_same_tokens(*files.values()):
                continue
            if tokenizer is None or _holds_tokenizer(source):
                tokenizers[role] = _load_tokenizer(role, source, its_revision, files[role])
        for role in list(tokenizers)[1:]:
            _require_same_tokens(tokenizers, next(iter(tokenizers)), role)
        models = {}
        for role, place in sources.items():
            its_spread, file = spread if role == "target" else {}, files[role]
            if file is None:
                models[role] = _load_model(role, *place, dtype, its_spread)
            else:
                models[role], note = _load_file(role, file, device, dtype, its_spread)
                notes += [note] if note else []
    chosen = next(iter(tokenizers.values()))
    widths = (_width(models["target"]), _width(models["draft"]))
    num_tokens, aligned = _align_widths(chosen, *widths)
    if spread:
        device = models["target"].device
    for role, model in models.items():
        if files[role] is None and not (spread and role == "target"):
            model.to(device)
        _freeze(model)
    return Pair(
        models["target"],
        models["draft"],
        chosen,
        num_tokens,
        (*aligned, *notes),
        f"{_short(target)} + {_short(draft)}",
    )


def load_target(
    target: str | os.PathLike[str] | None = None,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    device: Any = None,
    dtype: Any = None,
    revision: str | None = None,
    device_map: Any = None,
    tp_plan: str | None = None,
) -> Pair:
    """Load a target alone (certificates need no draft), as ``load_pair`` does; with no arguments
    the bundled one.

    All of the target's logits columns are kept. Raises what ``load_pair`` raises for a target.
    """
    import torch

    target = BUNDLED / "target" if target is None else target
    spread = spread_options(device, device_map, tp_plan)
    device = chosen_device(default_device(spread) if device is None else device)
    dtype = (
        (torch.float32 if device.type == "cpu" else torch.bfloat16)
        if dtype is None
        else _dtype(dtype)
    )
    _require_hub("revision", target, revision)
    file, note = _opened("target", target), ""
    with _quiet_transformers():
        if tokenizer:
            chosen = _load_tokenizer("target", tokenizer, None)
        else:
            chosen = _load_tokenizer("target", target, revision, file)
        if file is None:
            model = _load_model("target", target, revision, dtype, spread)
        else:
            model, note = _load_file("target", file, device, dtype, spread)
    width = _width(model)
    _align_widths(chosen, width, width)
    if not spread and file is None:
        model.to(device)
    _freeze(model)
    return Pair(model, None, chosen, width, (note,) if note else (), _short(target))


def _freeze(model: Any) -> None:
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _tell_same_tokens(target: GgufFile | None, draft: GgufFile | None) -> bool:
    """Whether both are files whose metadata make the same tokenizer, so that one is enough."""
    if target is None or draft is None:
        return False
    return tokenizer_facts(target) == tokenizer_facts(draft)


def _require_same_tokens(tokenizers: dict[str, Any], one: str, other: str) -> None:
    """Every id must name the same token in both, added tokens included; special ids must be the
    same."""
    tokens = {
        role: {i: token for token, i in tokenizers[role].get_vocab().items()}
        for role in (one, other)
    }
    if tokens[one] != tokens[other]:
        differing = [
            i
            for i in tokens[one].keys() | tokens[other].keys()
            if tokens[one].get(i) != tokens[other].get(i)
        ]
        first = min(differing)
        said = [f"{_token_text(tokens[role], first)} for the {role}" for role in (one, other)]
        raise IncompatiblePair(
            f"tokenizers: id {first} is {said[0]} and {said[1]} ({len(differing)} ids differ; "
            f"{len(tokens[one])} tokens against {len(tokens[other])})"
        )
    for name in _SPECIAL_IDS:
        ids = [getattr(tokenizers[role], name, None) for role in (one, other)]
        if ids[0] != ids[1]:
            raise IncompatiblePair(
                f"tokenizers: {name} is {ids[0]} for the {one} and {ids[1]} for the {other}"
            )


def _align_widths(
    tokenizer: Any, target_width: int, draft_width: int
) -> tuple[int, tuple[str, ...]]:
    """Shared logits columns, and notes. Equal widths are kept whole, so that greedy output is the
    target's own."""
    num_ids = max(tokenizer.get_vocab().values()) + 1
    for role, width in (("target", target_width), ("draft", draft_width)):
        if width < num_ids:
            raise IncompatiblePair(
                f"{role}: expected a logits column for each of the tokenizer's {num_ids} ids, got "
                f"{width} columns "
                "(a reduced vocabulary makes KL(target || draft) infinite: nothing could be "
                "certified)"
            )
    if target_width == draft_width:
        return target_width, ()
    return num_ids, (
        f"widths differ: target {target_width} columns, draft {draft_width}, the tokenizer has "
        f"ids 0 to {num_ids - 1}; "
        f"the first {num_ids} columns are used, the rest is padding",
    )


def _load_tokenizer(
    role: str, source: str | os.PathLike[str], revision: str | None, file: GgufFile | None = None
) -> Any:
    from transformers import AutoTokenizer

    _require_path(role, source)
    file = _opened(role, source) if file is None and is_gguf(source) else file
    if file is not None:
        try:
            return make_tokenizer(file)
        except Exception as error:
            raise UnreadableInput(
                f"{role}: no tokenizer could be read from {file.path} ({_first_line(error)})"
            ) from error
    place, options = _locate(role, source, revision)
    # from_pretrained makes an empty tokenizer of the model's kind out of a directory without one
    if "local_files_only" in options and not _holds_tokenizer(place):
        raise UnreadableInput(
            f"{role}: expected tokenizer.json in {place}, got none; name one with tokenizer=... "
            "(--tokenizer)"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
    except Exception as error:
        raise UnreadableInput(
            f"{role}: no tokenizer could be read from {place} ({_first_line(error)})"
        ) from error
    # a text that is too long is refused, or left out by name; transformers would foretell errors
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _load_model(
    role: str,
    source: str | os.PathLike[str],
    revision: str | None,
    dtype: Any,
    spread: dict[str, Any],
) -> Any:
    from transformers import AutoModelForCausalLM

    place, options = _locate(role, source, revision)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, with tensor and shapes
            **options,
            **spread,
        )
    except Exception as error:
        raise UnreadableInput(
            f"{role}: no model could be read from {place}{_quantised(place, options)} "
            f"({_first_line(error)})"
        ) from error
    model, info = loaded
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise UnreadableInput(
            f"{role}: {place}: expected {name} of shape {tuple(expected)} by config.json, got "
            f"{tuple(found)}"
        )
    missing = sorted(info["missing_keys"])
    if missing:  # from_pretrained would fill them with random numbers
        raise UnreadableInput(
            f"{role}: {place} holds no weights for {len(missing)} parameters, the first is "
            f"{missing[0]!r}"
        )
    return model


def _load_file(
    role: str, file: GgufFile, device: Any, dtype: Any, spread: dict[str, Any]
) -> tuple[Any, str]:
    if spread:
        raise InvalidArgument(
            f"{next(iter(spread))}: expected a directory or a hub id as {role}, got {file.path}: a "
            "GGUF file is not spread"
        )
    return load_gguf_model(role, file, device, dtype)


def _opened(role: str, source: str | os.PathLike[str]) -> GgufFile | None:
    """A GGUF file's header; None for a directory, which is looked over before transformers reads
    anything of it, and for a hub id."""
    _require_path(role, source)
    if is_gguf(source):
        return read_header(role, Path(os.path.expanduser(source)))
    place, options = _locate(role, source, None)
    if "local_files_only" in options:
        check_checkpoint(role, Path(place))
    return None


def _require_hub(name: str, source: object, revision: str | None) -> None:
    """InvalidArgument for a revision of files on this machine, which have none."""
    if revision is None or not isinstance(source, (str, os.PathLike)):
        return
    if os.path.exists(os.path.expanduser(source)):
        raise InvalidArgument(
            f"{name}: expected a hub id, which has revisions, got {str(source)!a}; leave it out"
        )


def _require_path(role: str, source: object) -> None:
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        got = repr(source)
        if "\n" in got:  # a module's lists all that it holds
            got = f"a {type(source).__name__}; models at hand are Pair(target, draft, tokenizer, "
            got += "num_tokens)"
        raise InvalidArgument(
            f"{role}: expected a model directory, a .gguf file or a hub id, got {got}"
        )


def _quantised(place: str, options: dict[str, Any]) -> str:
    """ ", quantised by fp8" where a folder's config says so: such weights need a package of their
    own, or a GPU."""
    if "local_files_only" not in options:
        return ""
    told = read_config("model", Path(place)).get("quantization_config")
    method = told.get("quant_method") if isinstance(told, dict) else None
    return "" if told is None else f", quantised by {method or 'an unnamed method'}"


def _locate(
    role: str, source: str | os.PathLike[str], revision: str | None
) -> tuple[str, dict[str, Any]]:
    """What to hand to from_pretrained: a directory is read offline, and anything that is no path is
    a hub id."""
    text = os.fspath(source)
    path = Path(os.path.expanduser(text))
    # of os.path, which say False of a name that no file can have
    exists = os.path.exists(path)
    if os.path.isdir(path):
        return str(path), {"local_files_only": True}
    if exists or path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1:
        what = "which is no directory" if exists else "which does not exist"
        raise UnreadableInput(
            f"{role}: expected a model directory, a .gguf file or a hub id, got {text!a}, {what}"
        )
    return text, {"revision": revision or "main"}


def _holds_tokenizer(source: str | os.PathLike[str]) -> bool:
    path = Path(os.path.expanduser(source))
    names = TOKENIZER_FILES if os.path.isdir(path) else ()
    return is_gguf(source) or any((path / name).exists() for name in names)


def _width(model: Any) -> int:
    head = model.get_output_embeddings()
    return int(
        model.config.get_text_config(decoder=True).vocab_size
        if head is None
        else head.weight.shape[0]
    )


def _dtype(dtype: Any) -> Any:
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    floats = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # others only store
    if not isinstance(found, torch.dtype) or found not in floats:  # an array is in no tuple
        names = ", ".join(str(each).removeprefix("torch.") for each in floats)
        raise InvalidArgument(
            f"load_pair: expected dtype a floating torch dtype or its name ({names}), got {dtype!r}"
        )
    return found


def _token_text(tokens: dict[int, str], token_id: int) -> str:
    return repr(tokens[token_id]) if token_id in tokens else "no token"


def _short(source: str | os.PathLike[str]) -> str:
    return Path(os.fspath(source)).name


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Progress bars and log lines off inside, as they were afterwards."""
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
