"""Ways into a runner: worker classes for ``--worker-cls``, and the plugin's own.

    --worker-cls certspec.models.vllm.attaching.CpuWorker      # or GpuWorker

Both let ``attach`` put certspec's sampler in place of the stock one once the models are loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from certspec.errors import InvalidArgument
from certspec.models.vllm.admission import asks_to_record

if TYPE_CHECKING:
    from certspec.models.vllm.recorder import Recorder

    _Way = tuple[str | None, Callable[[Recorder | None], Any]]

__all__ = ["WORKERS", "Attaching", "attach", "wrap_workers"]

WORKERS = {
    "CpuWorker": ("vllm.v1.worker.cpu_worker", "CPUWorker"),
    "GpuWorker": ("vllm.v1.worker.gpu_worker", "Worker"),
}


class Attaching:
    """Comes before vLLM's worker in the order of bases."""

    def load_model(self, *arguments: Any, **options: Any) -> None:
        super().load_model(*arguments, **options)  # type: ignore[misc]
        attach(self)

    def compile_or_warm_up_model(self, *arguments: Any, **options: Any) -> Any:
        found = super().compile_or_warm_up_model(*arguments, **options)  # type: ignore[misc]
        if (recorder := getattr(self, "certspec_recorder", None)) is not None:
            recorder.warmed_up = True
        return found

    def shutdown(self) -> None:
        _close(self)
        super().shutdown()  # type: ignore[misc]


def __getattr__(name: str) -> Any:
    """The worker classes, made when vLLM asks for them by name."""
    if name not in WORKERS:
        raise AttributeError(name)
    import importlib

    module, base = WORKERS[name]
    made = type(name, (Attaching, getattr(importlib.import_module(module), base)), {})
    made.__module__ = __name__
    globals()[name] = made
    return made


def wrap_workers() -> None:
    """Let every worker of this process attach once its models are loaded; twice does nothing.

    A worker's own process loads plugins while its worker is made, so what comes next is wrapped."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    inner = WorkerWrapperBase.init_device
    if getattr(inner, "by_certspec", False):
        return

    def init_device(self: Any) -> Any:
        worker = self.worker
        if not isinstance(worker, Attaching):
            base = type(worker)
            worker.__class__ = type(base.__name__, (Attaching, base), {})
        return inner(self)

    init_device.by_certspec = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_device = init_device


def attach(worker: Any) -> None:
    """Give the worker's runner certspec's sampler, and a recorder where the environment asks for
    one (``CERTSPEC_RULES`` or ``CERTSPEC_TRACE``).

    Without speculation nothing happens, nor under Runner V2, whose logits processor does the work,
    unless there are certificates to make. Raises InvalidArgument where they are asked for of a
    drafter without logits, or where another sampler than vLLM's own verifies."""
    from vllm.logger import init_logger

    logger = init_logger("vllm.certspec")
    config, runner, asked = worker.vllm_config, worker.model_runner, asks_to_record(os.environ)
    if config.speculative_config is None:
        idle = "a server without --speculative-config, which drafts nothing"
        if asked:
            raise InvalidArgument(f"{asked}: expected speculation, got {idle}")
        logger.info("certspec: %s", idle)
        return
    if config.use_v2_model_runner and not asked:
        logger.info("certspec: Runner V2, whose logits processor relaxes")
        return
    stock = getattr(runner, "rejection_sampler", None)
    if stock is None:  # not the last rank of a pipeline: others verify
        return
    way = _of_v2 if config.use_v2_model_runner else _of_v1
    missing, make = way(worker, stock)
    if asked and missing is not None:
        raise InvalidArgument(
            f"{asked}: expected a draft model with the target's token ids, got {missing}"
        )
    recorder = None
    if asked and worker.is_driver_worker:
        from certspec.models.vllm.recorder import Recorder

        recorder = Recorder.of(worker)
        recorder.warm()
    runner.rejection_sampler = make(recorder)
    worker.certspec_recorder = recorder
    logger.info("certspec attached: %s", "rules a request" if recorder is None else recorder)


def _of_v1(worker: Any, stock: Any) -> _Way:
    """Why the draft's logits are not to be had (None: they are), and what makes the sampler that
    stands in for ``stock``; so does ``_of_v2``."""
    from certspec.models.vllm.drafts import has_logits
    from certspec.models.vllm.sampler import RuleSampler, is_stock

    _require_stock(stock, is_stock)
    runner = worker.model_runner
    missing = None if has_logits(runner) else type(getattr(runner, "drafter", None)).__name__
    return missing, lambda recorder: RuleSampler(runner, recorder)


def _of_v2(worker: Any, stock: Any) -> _Way:
    from certspec.models.vllm.recording import RecordingSampler, is_stock, missing_logits

    _require_stock(stock, is_stock)
    missing = missing_logits(worker.model_runner, worker.vllm_config)
    return (
        missing,
        lambda recorder: stock if recorder is None else RecordingSampler(stock, recorder),
    )


def _require_stock(sampler: Any, is_stock: Callable[[Any], bool]) -> None:
    if not is_stock(sampler):
        raise InvalidArgument(
            f"certspec: expected vLLM's RejectionSampler, got {type(sampler).__name__}"
        )


def _close(worker: Any) -> None:
    recorder = getattr(worker, "certspec_recorder", None)
    if recorder is not None:
        recorder.close()
