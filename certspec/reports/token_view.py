"""Some texts of a run with what happened to each token under each rule: what a page colours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certspec.errors import InvalidArgument
from certspec.reports.prompt_texts import prompt_texts
from certspec.reports.relaxation import relaxed_steps
from certspec.reports.token_names import token_pieces
from certspec.runs.summary import Run
from certspec.runs.table import RunTable
from certspec.runs.tables import spell_nats, spell_share

__all__ = ["FATES", "ShownText", "ShownToken", "TokenView", "token_view"]

_TEXTS = 6
_TOKENS = 160  # of a text

# What can happen to a step's token -> what it means.
FATES = {
    "certified": "accepted, and certain beforehand",
    "accepted": "accepted without a guarantee",
    "relaxed": "the rule takes the draft's token in place of the argmax, which is shown",
    "rejected": "the target's token in place of a rejected draft",
    "unknown": "the log doesn't tell",
}


@dataclass(frozen=True)
class ShownToken:
    """One step: the target's token as ``text``; ``fates``: a word of ``FATES`` a rule; ``margin``:
    the fifth of [0, 1] in which p1 - p2 lies, 0 to 4; ``tip``: probabilities, KL, certificates."""

    text: str
    fates: tuple[str, ...]
    margin: int
    tip: str


@dataclass(frozen=True)
class ShownText:
    """One prompt's text: its ``title``, the ``prompt`` ("" where unknown), its first tokens and how
    many are left out."""

    title: str
    prompt: str
    tokens: tuple[ShownToken, ...]
    num_left_out: int


@dataclass(frozen=True)
class TokenView:
    """Texts from the least to the most accepted under ``rules[shown]``, the page's first choice."""

    rules: tuple[str, ...]
    shown: int
    texts: tuple[ShownText, ...]

    @property
    def fates(self) -> dict[str, str]:
        """The words that occur in it, with their meanings."""
        there = {fate for text in self.texts for token in text.tokens for fate in token.fates}
        return {fate: meaning for fate, meaning in FATES.items() if fate in there}


def token_view(run: Run, lead: str) -> TokenView:
    """Six texts of the run's first block, spread evenly from the worst to the best accepted."""
    block = next(iter(run.blocks()))
    if block.accepted is None or block.certified is None:
        raise InvalidArgument(
            "token_view: expected a run with a draft, got one of the target alone"
        )
    index = run.rules.index(lead)
    lengths = np.diff(block.starts)
    shares = np.add.reduceat(block.accepted[index].astype(np.float64), block.starts[:-1]) / lengths
    order = np.argsort(shares, kind="stable")
    picked = np.unique(np.linspace(0, len(order) - 1, min(_TEXTS, len(order))).round().astype(int))
    prompts, pieces = prompt_texts(run), token_pieces(run)
    texts = []
    for number in order[picked]:
        first, end = int(block.starts[number]), int(block.starts[number + 1])
        place = int(block.prompt[first])
        has_text = place < len(prompts.texts)
        kind = prompts.kinds[place] if has_text and prompts.kinds[place] else ""
        certified = float(block.certified[index][first:end].mean())
        rows = block.take(np.arange(first, min(end, first + _TOKENS)))
        texts.append(
            ShownText(
                title=f"prompt {place}{f' ({kind})' if kind else ''}: "
                f"{spell_share(float(shares[number]))} accepted, {spell_share(certified)} "
                f"certified under {lead}",
                prompt=prompts.texts[place] if has_text else "",
                tokens=_tokens(rows, *pieces(rows)),
                num_left_out=max(end - first - _TOKENS, 0),
            )
        )
    return TokenView(run.rules, index, tuple(texts))


def _tokens(rows: RunTable, target: list[str], draft: list[str]) -> tuple[ShownToken, ...]:
    fates = _fates(rows)
    return tuple(
        ShownToken(
            target[row],
            tuple(fate[row] for fate in fates),
            min(int(5.0 * max(rows.prob_margin[row], 0.0)), 4),
            _tip(rows, row, target[row], draft[row]),
        )
        for row in range(rows.num_steps)
    )


def _fates(rows: RunTable) -> list[np.ndarray]:
    """By rule, the word for each step."""
    found = []
    for index in range(len(rows.rules)):
        accepted, certified = np.asarray(rows.accepted)[index], np.asarray(rows.certified)[index]
        known = (
            np.ones(rows.num_steps, dtype=bool)
            if rows.accepted_known is None
            else rows.accepted_known[index]
        )
        found.append(
            np.select(
                [~known, relaxed_steps(rows, index), certified, accepted],
                ["unknown", "relaxed", "certified", "accepted"],
                "rejected",
            )
        )
    return found


def _tip(rows: RunTable, row: int, target: str, draft: str) -> str:
    top, margin = float(rows.target_top_prob[row]), float(rows.prob_margin[row])
    lines = [f"target {target!r}: p {top:.3f}, next best {max(top - margin, 0.0):.3f}"]
    if rows.draft_token_prob is not None:
        own = float(rows.draft_token_prob[row])
        lines.append(f"draft {draft!r}: p {'unknown' if np.isnan(own) else format(own, '.3f')}")
    if rows.kl is not None:
        lines.append(f"KL {spell_nats(float(rows.kl[row]))} nats")
    certificates = ", ".join(
        f"{rule} {spell_nats(float(certificate))}"
        for rule, certificate in zip(rows.rules, rows.certificate[:, row], strict=True)
    )
    lines.append(f"certificates (nats): {certificates}")
    return "\n".join(lines)
