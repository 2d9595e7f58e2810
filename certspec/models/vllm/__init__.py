"""certspec inside vLLM: relaxed greedy rules a request, certificates at every verification.

``README.md`` has the commands. Nothing here needs vLLM until vLLM itself calls it."""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """The plugin of the group ``vllm.general_plugins``, which vLLM calls in each of its processes.

    Sees to it that no wish is lost: variables and requests that this server can't serve are
    refused. Where ``CERTSPEC_ATTACH=1`` or certificates are asked for (``CERTSPEC_RULES``,
    ``CERTSPEC_TRACE``), the V1 runner gets them without ``--worker-cls``.

    Raises InvalidArgument for a variable that is misspelt or has no good value; vLLM then does not
    start."""
    from certspec.models.vllm.admission import asks_to_attach, check_environment, watch_admissions

    check_environment(os.environ)
    watch_admissions()
    if asks_to_attach(os.environ):
        from certspec.models.vllm.attaching import wrap_workers

        wrap_workers()
