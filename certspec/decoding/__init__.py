"""Greedy speculative decoding with a certificate at every drafted position: chains and trees, any
rule. Names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from certspec.decoding.calibration import calibrate as calibrate
    from certspec.decoding.drafting import DraftPolicy as DraftPolicy
    from certspec.decoding.generation import DecodingOptions as DecodingOptions
    from certspec.decoding.generation import Generation as Generation
    from certspec.decoding.generation import generate as generate
    from certspec.decoding.policies import Adaptive as Adaptive
    from certspec.decoding.policies import BestFirst as BestFirst
    from certspec.decoding.policies import WithinBudget as WithinBudget
    from certspec.decoding.profiles import DraftingProfile as DraftingProfile
    from certspec.decoding.profiles import load_profile as load_profile
    from certspec.decoding.prompts import chat_token_ids as chat_token_ids
    from certspec.decoding.records import StepList as StepList
    from certspec.decoding.records import StepRecord as StepRecord
    from certspec.decoding.records import acceptance_metrics as acceptance_metrics
    from certspec.decoding.schedules import Between as Between
    from certspec.decoding.schedules import RuleSchedule as RuleSchedule
    from certspec.decoding.transformers_bridge import transformers_generate as transformers_generate
    from certspec.models.padded_runner import TransformersRunner as TransformersRunner
    from certspec.models.runner import ModelRunner as ModelRunner
    from certspec.models.trees import TreeShape as TreeShape
    from certspec.models.trees import TreeTopology as TreeTopology

_HOME_OF = {
    "Adaptive": "certspec.decoding.policies",
    "WithinBudget": "certspec.decoding.policies",
    "BestFirst": "certspec.decoding.policies",
    "calibrate": "certspec.decoding.calibration",
    "DraftingProfile": "certspec.decoding.profiles",
    "load_profile": "certspec.decoding.profiles",
    "transformers_generate": "certspec.decoding.transformers_bridge",
    "DraftPolicy": "certspec.decoding.drafting",
    "DecodingOptions": "certspec.decoding.generation",
    "Generation": "certspec.decoding.generation",
    "generate": "certspec.decoding.generation",
    "acceptance_metrics": "certspec.decoding.records",
    "chat_token_ids": "certspec.decoding.prompts",
    "StepList": "certspec.decoding.records",
    "StepRecord": "certspec.decoding.records",
    "RuleSchedule": "certspec.decoding.schedules",
    "ModelRunner": "certspec.models.runner",
    "TransformersRunner": "certspec.models.padded_runner",
    "Between": "certspec.decoding.schedules",
    "TreeShape": "certspec.models.trees",
    "TreeTopology": "certspec.models.trees",
}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'certspec.decoding' has no attribute {name!r}")
    value = vars(importlib.import_module(_HOME_OF[name]))[name]
    globals()[name] = value
    return value
