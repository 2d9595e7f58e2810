"""Greedy speculative decoding with a certificate at every drafted position: chains and trees, any rule. Names load on
first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from certspec.decoding.adaptive import Adaptive as Adaptive
    from certspec.decoding.adaptive import WithinBudget as WithinBudget
    from certspec.decoding.calibration import calibrate as calibrate
    from certspec.decoding.generate import Generation as Generation
    from certspec.decoding.generate import generate as generate
    from certspec.decoding.metrics import acceptance_metrics as acceptance_metrics
    from certspec.decoding.policies import BestFirst as BestFirst
    from certspec.decoding.profiles import DraftingProfile as DraftingProfile
    from certspec.decoding.profiles import load_profile as load_profile
    from certspec.decoding.prompts import chat_token_ids as chat_token_ids
    from certspec.decoding.records import StepRecord as StepRecord
    from certspec.decoding.schedules import Between as Between
    from certspec.decoding.transformers_bridge import transformers_generate as transformers_generate
    from certspec.models.runner import ModelRunner as ModelRunner
    from certspec.models.runner import TransformersRunner as TransformersRunner
    from certspec.models.trees import TreeShape as TreeShape
    from certspec.models.trees import TreeTopology as TreeTopology

_HOME_OF = {
    "Adaptive": "adaptive", "WithinBudget": "adaptive", "BestFirst": "best_first", "calibrate": "calibration",
    "DraftingProfile": "profiles", "load_profile": "profiles", "transformers_generate": "transformers_bridge",
    "Generation": "generation", "generate": "generation", "acceptance_metrics": "metrics", "chat_token_ids": "prompts",
    "StepRecord": "records", "ModelRunner": "runner", "TransformersRunner": "runner", "Between": "schedules",
    "TreeShape": "topology", "TreeTopology": "topology",
}  # fmt: skip
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'certspec.decoding' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"certspec.decoding.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
