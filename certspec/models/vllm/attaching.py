"""Ways into Runner V1: worker classes for ``--worker-cls``, and the plugin's own.

    --worker-cls certspec.models.vllm.attaching.CpuWorker      # or GpuWorker

Both let ``attach`` put certspec's sampler in place of the stock one once the models are loaded."""

from __future__ import annotations

import os
from typing import Any

from certspec.errors import InvalidArgument
from certspec.models.vllm.admission import asks_to_record

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
    """Let every V1 worker of this process attach once its models are loaded; twice does nothing.

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

    Without speculation, and under Runner V2, whose logits processor does the work, nothing happens.
    Raises InvalidArgument where certificates are asked for there or of a drafter without logits, or
    where another sampler than vLLM's own verifies."""
    from vllm.logger import init_logger

    logger = init_logger("vllm.certspec")
    runner, asked = worker.model_runner, asks_to_record(os.environ)
    idle = None
    if worker.vllm_config.speculative_config is None:
        idle = "a server without --speculative-config, which drafts nothing"
    elif worker.vllm_config.use_v2_model_runner:
        idle = "Runner V2, which relaxes by a logits processor and writes no certificates"
    if idle is not None:
        if asked:
            raise InvalidArgument(f"{asked}: expected Runner V1 and speculation, got {idle}")
        logger.info("certspec: %s", idle)
        return
    stock = getattr(runner, "rejection_sampler", None)
    if stock is None:  # not the last rank of a pipeline: others verify
        return
    from certspec.models.vllm.drafts import has_logits
    from certspec.models.vllm.recorder import Recorder
    from certspec.models.vllm.sampler import RuleSampler, is_stock

    if not is_stock(stock):
        raise InvalidArgument(
            f"certspec: expected vLLM's RejectionSampler, got {type(stock).__name__}"
        )
    if asked and not has_logits(runner):
        drafter = type(getattr(runner, "drafter", None)).__name__
        raise InvalidArgument(
            f"{asked}: expected a draft model with the target's token ids, got {drafter}"
        )
    recorder = None
    if asked and worker.is_driver_worker:
        recorder = Recorder.of(worker)
        recorder.warm()
    runner.rejection_sampler = RuleSampler(runner, recorder)
    worker.certspec_recorder = recorder
    logger.info("certspec attached: %s", "rules a request" if recorder is None else recorder)


def _close(worker: Any) -> None:
    recorder = getattr(worker, "certspec_recorder", None)
    if recorder is not None:
        recorder.close()
