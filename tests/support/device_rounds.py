"""What tests of rounds on the device share: other code in place of the large kernels where Triton's
interpreter runs them, and two generations compared in all that they tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from certspec.decoding.records import _COLUMNS
from tests.support.device import ON_GPU
from tests.support.plain_kernels import PlainScores, run_layers
from tests.support.small_models import take_small_pieces

_LAUNCHED: dict[str, Any] = {}  # what a round launches, unpatched


def torch_for_large_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, passes and scores by torch."""
    take_small_pieces(monkeypatch)
    if not ON_GPU:
        monkeypatch.setattr("certspec.models.cuda.layers.Layers.launch", run_layers)
        say_errors(monkeypatch, 0.0)


def say_errors(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    """The scoring kernels claim this error of their statistics (0: on a GPU their own)."""
    from certspec.kernels.triton import rows as triton_rows  # want Triton
    from certspec.models.cuda import rounds as cuda_rounds

    if ON_GPU:

        def launched(*arguments: Any) -> Any:
            out = triton_rows.launch(*arguments)
            return out if error == 0.0 else replace(out, errors=out.errors.fill_(error))

        monkeypatch.setattr(cuda_rounds, "launch", launched)
        return

    launch = _LAUNCHED.setdefault("launch", cuda_rounds.TreeRounds._launch)

    def watched(self: Any) -> None:
        monkeypatch.setattr(cuda_rounds, "launch", PlainScores(self.table, error))
        launch(self)

    monkeypatch.setattr(cuda_rounds.TreeRounds, "_launch", watched)


def same_generation(ours: Any, theirs: Any, but: Sequence[str] = ()) -> None:
    """Tokens, reasons, every field of every record, and the metrics ``but`` some; the statistics
    are float32 on a GPU."""
    assert ours.sequences == theirs.sequences and ours.finish_reasons == theirs.finish_reasons
    for name, dtype in _COLUMNS.items():
        one, other = ours.steps.column(name), theirs.steps.column(name)
        if name == "rule":
            one, other = (
                np.array(g.steps.rule_labels)[g.steps.column(name)] for g in (ours, theirs)
            )
        if dtype == np.float64:
            np.testing.assert_allclose(one, other, atol=2e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)
    assert ours.steps.rule_labels != [] and set(ours.steps.rule_labels) == set(
        theirs.steps.rule_labels
    )
    for label in ours.steps.extra_labels:
        for name in ("accepted", "certified"):
            np.testing.assert_array_equal(
                ours.steps.extra_column(label, name), theirs.steps.extra_column(label, name)
            )
        for name in ("certificate", "certificate_lower"):
            np.testing.assert_allclose(
                ours.steps.extra_column(label, name),
                theirs.steps.extra_column(label, name),
                atol=2e-5,
            )
    for name, value in ours.metrics.items():
        if name not in (*but, "num_draft_passes"):  # rounds always run all levels
            assert value == (
                theirs.metrics[name] if "ratio" not in name else pytest.approx(theirs.metrics[name])
            )
