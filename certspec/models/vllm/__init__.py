"""certspec inside vLLM: relaxed greedy rules a request, certificates at every verification.

``README.md`` has the commands. Nothing here needs vLLM until vLLM itself calls it."""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """The plugin of the group ``vllm.general_plugins``, which vLLM calls in each of its processes.

    Does nothing unless ``CERTSPEC_ATTACH=1``; then the V1 runner gets rules and certificates
    without ``--worker-cls``."""
    if os.environ.get("CERTSPEC_ATTACH") == "1":
        from certspec.models.vllm.attaching import wrap_workers

        wrap_workers()
