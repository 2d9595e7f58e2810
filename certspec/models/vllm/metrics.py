"""Prometheus metrics beside vLLM's own. They live in the worker's process: vLLM's ``/metrics``
shows them where the server was started with ``PROMETHEUS_MULTIPROC_DIR`` set to an empty folder."""

from __future__ import annotations

from collections.abc import Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram

from certspec.rules import Rule

__all__ = ["Metrics"]

_NATS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)


class Metrics:
    """``draft_tokens`` and ``accepted_tokens`` count what vLLM's ``spec_decode_num_draft_tokens``
    and ``spec_decode_num_accepted_tokens`` count; ``steps`` the verified positions that were
    certified; by rule how many of these it ``accepts`` and ``certified``, and ``false``
    certificates."""

    def __init__(self, rules: Sequence[Rule], registry: CollectorRegistry | None = None) -> None:
        home = registry or prometheus_client.REGISTRY

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"certspec:{name}", text, labels, registry=home)

        self.draft_tokens = counter("draft_tokens", "Drafted tokens that were verified.")
        self.accepted_tokens = counter("accepted_tokens", "Of these, accepted by vLLM.")
        self.steps = counter("steps", "Positions certified: up to a draft's first rejected token.")
        self.unscored = counter("unscored_steps", "Positions not certified.", "reason")
        self.refused = counter("refused_rules", "Rules that came past admission; taken as strict.")
        self.failures = counter("failures", "Batches lost to an error, which the log names.")
        self.accepts = counter("accepts", "Steps whose draft token the rule accepts.", "rule")
        self.certified = counter("certified", "Steps certified under the rule.", "rule")
        self.false = counter(
            "false_certificates", "Certified, and rejected by the rule or by vLLM under it.", "rule"
        )
        self.kl = Histogram(
            "certspec:kl_nats", "KL(target || draft).", buckets=_NATS, registry=home
        )
        self.infinite_kl = counter("infinite_kl", "Steps whose KL is infinite.")
        self.seconds = counter("seconds", "Time spent on certificates.")
        for rule in rules:  # so that a rule without steps shows 0
            for each in (self.accepts, self.certified, self.false):
                each.labels(rule.label)
