"""Ways into Runner V1: worker classes for ``--worker-cls``, and the plugin's own.

    --worker-cls certspec.models.vllm.attaching.CpuWorker      # or GpuWorker

Both let ``attach`` put certspec's sampler in place of the stock one once the models are loaded."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["WORKERS", "attach", "wrap_workers"]

WORKERS = {
    "CpuWorker": ("vllm.v1.worker.cpu_worker", "CPUWorker"),
    "GpuWorker": ("vllm.v1.worker.gpu_worker", "Worker"),
}


class _Attaching:
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
    made = type(name, (_Attaching, getattr(importlib.import_module(module), base)), {})
    made.__module__ = __name__
    globals()[name] = made
    return made


def wrap_workers() -> None:
    """Let every V1 worker of this process attach once its models are loaded; twice does nothing."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    inner = WorkerWrapperBase.init_worker
    if getattr(inner, "by_certspec", False):
        return

    def init_worker(self: Any, *arguments: Any, **options: Any) -> Any:
        found = inner(self, *arguments, **options)
        worker = self.worker
        if not isinstance(worker, _Attaching):
            base = type(worker)
            worker.__class__ = type(base.__name__, (_Attaching, base), {})
        return found

    init_worker.by_certspec = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_worker = init_worker


def attach(worker: Any) -> None:
    """Give the worker's runner certspec's sampler, and a recorder where the environment asks for
    one (``CERTSPEC_RULES`` or ``CERTSPEC_TRACE``). Without speculation, and under Runner V2, whose
    logits processor does the work, nothing happens; what can't be replaced is said in the log."""
    from vllm.logger import init_logger

    logger = init_logger("vllm.certspec")
    runner = worker.model_runner
    if worker.vllm_config.use_v2_model_runner:
        logger.info("certspec: Runner V2 relaxes by a logits processor; it writes no certificates")
        return
    if worker.vllm_config.speculative_config is None:
        return
    from certspec.models.vllm.recorder import Recorder
    from certspec.models.vllm.sampler import RuleSampler, is_stock

    stock = getattr(runner, "rejection_sampler", None)
    if not is_stock(stock):
        logger.warning("certspec: expected vLLM's RejectionSampler, got %s", type(stock).__name__)
        return
    recorder = None
    asked = os.environ.get("CERTSPEC_RULES") or os.environ.get("CERTSPEC_TRACE")
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
