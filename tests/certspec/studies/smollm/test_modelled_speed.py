"""Modelled speeds follow their stated formula, and a rule's nearest rejection is that of its own
steps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from certspec.studies.smollm.modelled_speed import place_of, tokens_per_second
from certspec.studies.smollm.scores import nearest_rejections

COSTS = {"draft_step_ms": 2.0, "verify_ms": {"1": 10.0, "5": 12.0, "9": 20.0}}


@pytest.mark.parametrize(
    ("rule", "milliseconds"),
    [
        ("strict", 4 * 2.0 + 12.0),
        ("additive:0.3", 4 * 2.0 + 12.0),
        ("tree:2", 4 * 2.0 + 20.0),
        ("tree:4", 28.0),
    ],
)
def test_a_round_is_four_draft_passes_and_a_target_pass_over_every_node_and_the_token_before(
    rule, milliseconds
):
    row = {"rule": rule, "tokens_per_pass": 3.0}
    assert tokens_per_second(row, 4, COSTS) == pytest.approx(3000.0 / milliseconds)


def test_target_passes_between_measured_ones_are_interpolated():
    row = {"rule": "strict", "tokens_per_pass": 1.0}
    assert tokens_per_second(row, 6, COSTS) == pytest.approx(1000.0 / (6 * 2.0 + 16.0))


def test_a_card_goes_by_its_name_and_a_cpu_by_its_cores():
    assert place_of({"provenance": {"device_name": "NVIDIA H100 80GB HBM3"}, "cores": 16}) == "H100"
    assert place_of({"provenance": {"device_name": "x86_64"}, "cores": 2}) == "2 CPU cores"


def test_the_nearest_rejection_is_sought_among_rejected_steps_of_the_rule():
    run = SimpleNamespace(
        rules=("strict", "tree:2", "additive:0.3", "top:2"),
        accepted=np.array(
            [
                [True, False, False, False],
                [True, True, True, False],
                [True] * 4,
                [True, False, True, True],
            ]
        ),
        certificate=np.array(
            [[2.0, 0.5, 0.25, 0.0], [2.0, 0.1, 0.1, 0.5], [np.inf] * 4, [1.0, 0.0, 1.0, 1.0]]
        ),
        kl=np.array([0.1, 1.0, 0.3, 0.0]),
    )
    # a certificate of 0 (a tie at the top) has no ratio: its rejection tells nothing about how near
    # a draft came
    assert nearest_rejections(run) == {
        "strict": 1.2,
        "tree:2": 0.0,
        "additive:0.3": None,
        "top:2": None,
    }
