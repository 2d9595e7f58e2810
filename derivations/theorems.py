"""All theorems on one page: what the labels of the theory mean, and each claim in a line, in
reading order. ``python -m derivations`` writes THEOREMS.md from the registry; example of a line:

    - `strict.closed` (A1) The strict certificate is p1 log(2 p1/(p1+p2)) + p2 log(2 p2/(p1+p2)).
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from derivations.language.claim import Claim, all_claims

__all__ = ["LABELS", "PAGE", "SYMBOLS", "labels_in", "reading_order", "theorem_page"]

PAGE = Path(__file__).parent / "THEOREMS.md"
_WIDTH = 100

# Labels that claims cite as their theory, in reading order. "2.E1" is E1 of the second volume.
LABELS: dict[str, str] = {
    "0": "Conventions. Laws are sorted, p_1 >= p_2 >= ...; 0 log 0 = 0. A rule rejects a lower "
    "level set J of the target. Of equal tokens one is designated, the lowest id: every other one "
    "is rejected where the designated one is the last accepted (strict: j = 2, top-m: j = m + 1). "
    "A tie at the top of the draft counts as a rejection.",
    "A": "Tools: exchange of tokens, the KKT conditions, merging (log-sum), tangents, the "
    "variational bound KL(p||q) >= E_p f - log E_q e^f, running averages.",
    "A1": "One rejected token j, the most probable of them: tokens above a level c share it with "
    "j, and C = sum_S p log(p/c), c the average of S.",
    "A2": "The dual: any pool S with j and any weights w >= c' off j, c' at least their average, "
    "give a lower bound. Pooling too few tokens is safe, too many is not.",
    "A3": "Trees of width m: all of 2..m+1 must reach token 1; those below c are pooled with it.",
    "A4": "Caps: log 2 for a single token, log(m + 1) for a tree.",
    "B": "Margins: the least certificate of any target with p1 - p2 = g, or p1 - p_{m+1} = d. Its "
    "tools are T1, transport of all other tokens to the uniform law, and T2, the pair cost; L(g) "
    "is a line search for entropy rules, U(d) the largest certificate at d.",
    "C": "The draft's side: r(q), the least KL(p||q) of a target p that rejects the draft's token.",
    "D": "The reverse direction: D(p), the least KL(q||p) of a draft q that is rejected. It has no "
    "cap.",
    "E": "Lists: only the tokens O of the target's list are seen, the rest T is one lump; K_O is "
    "the divergence of the lumped laws.",
    "E1": "Draft's token and rejected token are listed: K_O below C(j) certifies.",
    "E2": "The draft's token may be in the lump: K_O below min(C(j_O), C_T) certifies, C_T the "
    "pool with the lump as competitor.",
    "E3": "Trees, with r of the competitors in the lump.",
    "E4": "Which thresholds a list tells; entropy and rounded log-probabilities bounded by it.",
    "F": "Floating point: u = 2^-53; what roundings may do to sums, to KL (KL_up above it) and to "
    "certificates (C_low below them), and how much the kernels take off.",
    "2.E1": "Another server: all targets whose logits lie within eps of the given ones.",
    "2.E2": "Sampling: the least probability that speculative sampling accepts, from KL alone.",
    "2.E3": "Other divergences: Renyi orders, total variation, chi-square, Hellinger.",
    "2.E4": "Drafts over a part of the vocabulary.",
    "2.E5": "Budgets over a text: how many steps a summed KL can reject.",
}

# Letters that every claim may use without saying so; all others stand in its sentence or domain.
SYMBOLS: dict[str, str] = {
    "p": "the target's probabilities, sorted; p1 or p_1 the largest",
    "q": "the draft's; y its most probable token",
    "j": "the competitor: the token that is rejected",
    "i": "any token",
    "C": "the certificate: least KL(p||q) of a draft that is rejected",
    "r": "the radius: least KL(p||q) of a target that rejects the draft (part C)",
    "D": "the reverse certificate: least KL(q||p) of a draft that is rejected (part D)",
    "inf": "the least over all laws with the given margin",
    "S": "the pool: tokens that share one level",
    "c": "the pool's average",
    "phi": "phi(x) = ((1+x) log(1+x) + (1-x) log(1-x))/2",
    "T_2": "T2(a, b) = a log(2a/(a+b)) + b log(2b/(a+b)), the pair cost",
    "h": "the entropy of a coin; d_bin the divergence of two coins",
    "H": "an entropy, in nats",
    "m": "a tree's width, or the ranks that top-m accepts",
    "t": "an additive slack",
    "alpha": "a factor",
    "eps": "an entropy rule's cap (epsilon)",
    "delta": "its factor",
    "tau": "a threshold",
    "u": "the unit roundoff",
    "V": "the number of tokens",
}


def labels_in(theory: str) -> list[str]:
    """The labels that a claim's ``theory`` names: ["0", "A1"] of "0 (level sets) and A1 (strict)",
    ["2.E1"] of "E1 (second volume)"."""
    volume = "2." if "second volume" in theory else ""
    while theory != (bare := re.sub(r"\([^()]*\)", "", theory)):
        theory = bare
    return [volume + label for label in re.findall(r"\b(?:0|[A-Z]\d?)\b", theory)]


def reading_order() -> list[Claim]:
    """Every claim, by part of the theory; within a part those that are cited come first, refuted
    statements last."""
    places = {label: place for place, label in enumerate(LABELS)}
    claims = all_claims()

    def key(claim: Claim) -> tuple[int, bool, int, str]:
        labels = labels_in(claim.theory)
        part = places.get(labels[0], len(places)) if labels else len(places)
        return part, claim.expected == "refuted", _depth(claim, claims), claim.id

    return sorted(claims.values(), key=key)


def _depth(claim: Claim, claims: dict[str, Claim]) -> int:
    """How long the longest chain of citations below a claim is."""
    cited = {name for step in claim.derivation.steps for name in step.cites}
    return 1 + max((_depth(claims[name], claims) for name in cited), default=0)


def theorem_page() -> str:
    """The page in Markdown."""
    lines = [
        "# Theorems",
        "",
        "Written by `python -m derivations` from the claims; do not edit. Each line is a claim:",
        "its id, the theory that it belongs to, and the statement, in nats. A part begins with",
        "what its label means; claims that others cite come first. A claim's domain and",
        "derivation: `python -m proofs_check ID --explain`; its proof: the same without the flag.",
        "",
        "## Letters",
        "",
        "| letter | means |",
        "|---|---|",
        *(
            f"| {letter} | {meaning} |".replace("||", "\\|\\|")
            for letter, meaning in SYMBOLS.items()
        ),
    ]
    by_label: dict[str, list[Claim]] = {label: [] for label in LABELS}
    for claim in reading_order():
        by_label.setdefault((labels_in(claim.theory) or [""])[0], []).append(claim)
    others = [
        claim for label in sorted(by_label.keys() - LABELS.keys()) for claim in by_label[label]
    ]
    for label, meaning in LABELS.items():
        volume, _, name = label.rpartition(".")
        title = f"{name} of the second volume" if volume else name
        lines += ["", f"## {title}", "", *textwrap.wrap(meaning, _WIDTH)]
        lines += _listed(by_label[label])
    lines += ["", "## Of no part above", *_listed(others)] if others else []
    return "\n".join(lines) + "\n"


def _listed(claims: list[Claim]) -> list[str]:
    lines = [""] if claims else []
    for claim in claims:
        told = "FALSE: " if claim.expected == "refuted" else ""
        lines += textwrap.wrap(
            f"- `{claim.id}` ({claim.theory}) {told}{claim.sentence}",
            _WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
