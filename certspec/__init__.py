"""Exact acceptance certificates for greedy speculative decoding.

    import certspec as cs

    found = cs.certify(target_logits, draft_logits, [cs.StrictGreedy(), cs.Additive(0.3)])
    found.certified      # (2, rows) bool: the target accepts the draft's token, for certain

Public names load on first use, so that importing certspec costs little and needs neither torch nor
a model."""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's, by this name; importing typing takes longer than all that is here
if TYPE_CHECKING:
    from certspec import presets as presets
    from certspec.certificates.budgets import rejections_within as rejections_within
    from certspec.certificates.certify import Certificates as Certificates
    from certspec.certificates.certify import certify as certify
    from certspec.certificates.drafter import drafter_certificate as drafter_certificate
    from certspec.certificates.drafter import (
        drafter_certificate_from_top as drafter_certificate_from_top,
    )
    from certspec.certificates.drafter import drafter_certificate_lower as drafter_certificate_lower
    from certspec.certificates.hidden import certify_hidden as certify_hidden
    from certspec.certificates.lumped import Case as Case
    from certspec.certificates.lumped import DraftLists as DraftLists
    from certspec.certificates.lumped import LumpedCertificates as LumpedCertificates
    from certspec.certificates.lumped import TargetLists as TargetLists
    from certspec.certificates.lumped import lumped_certificates as lumped_certificates
    from certspec.certificates.margins import (
        drafter_margin_certificate as drafter_margin_certificate,
    )
    from certspec.certificates.margins import margin_certificate as margin_certificate
    from certspec.certificates.margins import required_margin as required_margin
    from certspec.certificates.reverse import reverse_certificate as reverse_certificate
    from certspec.certificates.sampling import sampling_acceptance as sampling_acceptance
    from certspec.certificates.tree_widths import tree_width_for as tree_width_for
    from certspec.decoding import Adaptive as Adaptive
    from certspec.decoding import BestFirst as BestFirst
    from certspec.decoding import Between as Between
    from certspec.decoding import DecodingOptions as DecodingOptions
    from certspec.decoding import DraftingProfile as DraftingProfile
    from certspec.decoding import DraftPolicy as DraftPolicy
    from certspec.decoding import Generation as Generation
    from certspec.decoding import RuleSchedule as RuleSchedule
    from certspec.decoding import StepList as StepList
    from certspec.decoding import StepRecord as StepRecord
    from certspec.decoding import TreeShape as TreeShape
    from certspec.decoding import TreeTopology as TreeTopology
    from certspec.decoding import WithinBudget as WithinBudget
    from certspec.decoding import calibrate as calibrate
    from certspec.decoding import generate as generate
    from certspec.decoding import load_profile as load_profile
    from certspec.decoding import transformers_generate as transformers_generate
    from certspec.errors import CertspecError as CertspecError
    from certspec.errors import IncompatiblePair as IncompatiblePair
    from certspec.errors import InvalidArgument as InvalidArgument
    from certspec.errors import InvalidLogits as InvalidLogits
    from certspec.errors import RunMismatch as RunMismatch
    from certspec.errors import UnreadableInput as UnreadableInput
    from certspec.models.pairs import Pair as Pair
    from certspec.models.pairs import load_pair as load_pair
    from certspec.models.runner import ModelRunner as ModelRunner
    from certspec.presets import parse_rule as parse_rule
    from certspec.rules import Absolute as Absolute
    from certspec.rules import Additive as Additive
    from certspec.rules import Entropy as Entropy
    from certspec.rules import Gated as Gated
    from certspec.rules import Multiplicative as Multiplicative
    from certspec.rules import Rule as Rule
    from certspec.rules import StrictGreedy as StrictGreedy
    from certspec.rules import Threshold as Threshold
    from certspec.rules import TopM as TopM
    from certspec.rules import Tree as Tree
    from certspec.rules import default_rules as default_rules

# One line a module: where each public name lives. The names above repeat it for type checkers; a
# test compares them.
_HOMES: dict[str, tuple[str, ...]] = {
    "certspec.certificates.budgets": ("rejections_within",),
    "certspec.certificates.certify": ("Certificates", "certify"),
    "certspec.decoding": (
        "Adaptive",
        "BestFirst",
        "Between",
        "DecodingOptions",
        "DraftPolicy",
        "DraftingProfile",
        "Generation",
        "RuleSchedule",
        "StepList",
        "StepRecord",
        "TreeShape",
        "TreeTopology",
        "WithinBudget",
        "calibrate",
        "generate",
        "load_profile",
        "transformers_generate",
    ),
    "certspec.certificates.drafter": (
        "drafter_certificate",
        "drafter_certificate_from_top",
        "drafter_certificate_lower",
    ),
    "certspec.errors": (
        "CertspecError",
        "IncompatiblePair",
        "InvalidArgument",
        "InvalidLogits",
        "RunMismatch",
        "UnreadableInput",
    ),
    "certspec.certificates.hidden": ("certify_hidden",),
    "certspec.certificates.lumped": (
        "Case",
        "DraftLists",
        "LumpedCertificates",
        "TargetLists",
        "lumped_certificates",
    ),
    "certspec.certificates.margins": (
        "drafter_margin_certificate",
        "margin_certificate",
        "required_margin",
    ),
    "certspec.models.pairs": ("Pair", "load_pair"),
    "certspec.models.runner": ("ModelRunner",),
    "certspec.certificates.reverse": ("reverse_certificate",),
    "certspec.certificates.sampling": ("sampling_acceptance",),
    "certspec.rules": (
        "Absolute",
        "Additive",
        "Entropy",
        "Gated",
        "Multiplicative",
        "Rule",
        "StrictGreedy",
        "Threshold",
        "TopM",
        "Tree",
        "default_rules",
    ),
    "certspec.presets": ("parse_rule",),
    "certspec.certificates.tree_widths": ("tree_width_for",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", "presets", *_HOME_OF]


def __getattr__(name: str) -> object:
    if name == "presets":
        return importlib.import_module("certspec.presets")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'certspec' has no attribute {name!r}")
    if _HOME_OF[name] != "certspec.errors":  # these say what is refused
        importlib.import_module("certspec.kernels.environment").refuse_variables()
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
