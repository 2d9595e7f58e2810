"""Pictures for the report, as SVG: each margin bound as a curve, the least certificates solved from
the definition as circles, and certificates of random targets as dots above."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction as F
from functools import partial
from typing import Any

from derivations.formulas import drafter, reverse
from derivations.formulas.single_token import single_certificate
from derivations.formulas.tree import tree_certificate
from derivations.language.claim import Claim
from proofs_check.claims.margins.projection_margins import lifted
from proofs_check.methods.joint import JointProgramme
from proofs_check.methods.margin_programmes import margin_programme, tree_programme, with_tail

__all__ = ["PLOTS", "render_plot"]

Programmes = Callable[[F], list[JointProgramme]]
# The certificate of a sorted target, or None where nothing is rejected.
Certificate = Callable[[Sequence[float]], float | None]


class _Plot:
    """What one picture shows: the rule's parameters, the margin's rank, the programmes, the
    certificate of a target."""

    def __init__(
        self,
        title: str,
        arguments: tuple[Any, ...],
        programmes: Programmes | None,
        certificate: Certificate,
        last: int = 1,
        first: int = 0,
        letter: str = "p",
    ) -> None:
        self.title, self.arguments, self.programmes, self.certificate = (
            title,
            arguments,
            programmes,
            certificate,
        )
        self.first, self.last, self.letter = first, last, letter


def _of_rule(rejects: Callable[[Sequence[float], int], bool]) -> Certificate:
    def certificate(probs: Sequence[float]) -> float | None:
        rejected = [i for i in range(1, len(probs)) if rejects(probs, i)]
        return float(single_certificate(math, probs, rejected[0])) if rejected else None

    return certificate


def _of_tree(width: int) -> Certificate:
    return lambda probs: float(tree_certificate(math, probs, width)) if len(probs) > width else None


def _entropy_rejects(epsilon: float, delta: float) -> Callable[[Sequence[float], int], bool]:
    def rejects(probs: Sequence[float], rank: int) -> bool:
        entropy = -sum(p * math.log(p) for p in probs if p > 0)
        return probs[rank] <= min(epsilon, delta * math.exp(-entropy))

    return rejects


_LEAST_SEEN = 1e-6  # these values grow without limit as a token vanishes, and 1 - g rounds away


def _where(rank: int, value: Callable[[Sequence[float]], Any]) -> Certificate:
    """The value of a law that has a token of that rank (from 0) with some mass."""

    def certificate(probs: Sequence[float]) -> float | None:
        return float(value(probs)) if len(probs) > rank and probs[rank] > _LEAST_SEEN else None

    return certificate


def _of_reverse(rejects: Callable[[Sequence[float], int], bool]) -> Certificate:
    def certificate(probs: Sequence[float]) -> float | None:
        rejected = [i for i in range(1, len(probs)) if rejects(probs, i)]
        seen = rejected and probs[rejected[0]] > _LEAST_SEEN
        return float(reverse.reverse_of_set(math, probs, rejected)) if seen else None

    return certificate


def _radii(slack: F) -> Programmes:
    """Draft and target free, the draft sorted: the programmes of ``projection_margins`` at one
    margin."""
    return lambda gap: [lifted(3, gap, (0, 1), True, hub=1, rivals=(0,), opened=slack)]


def _single(count: int, competitors: Sequence[int], **given: Any) -> Programmes:
    return lambda gap: [margin_programme(count, j, gap, **given) for j in competitors]


def _tailed(**given: Any) -> Programmes:
    return lambda gap: [
        with_tail(partial(margin_programme, competitor=1, gap=gap, **given), 3, 1, 10**6)
    ]


def _gate(last: int, margin: Any, **threshold: Any) -> Programmes:
    def programmes(gap: F) -> list[JointProgramme]:
        inside = partial(
            margin_programme, competitor=1, gap=gap, last=last, margin=margin, **threshold
        )
        beyond = margin_programme(3, 2, gap, last=last, margin=margin)
        third = margin_programme(3, 2, gap, last=last, margin=margin, **threshold)
        return [with_tail(inside, 4, 1, 10**6), beyond, third]

    return programmes


def _tree(width: int, last: int) -> Programmes:
    return lambda gap: [tree_programme(width + 1, width, gap, last=last, margin="exactly")]


T, ALPHA = F(3, 10), F(1, 4)
_additive = _of_rule(lambda probs, i: probs[i] <= probs[0] - 0.3)
_factor = _of_rule(lambda probs, i: probs[i] <= probs[0] / 4)
_gated = _of_rule(lambda probs, i: i >= 2 or probs[i] <= probs[0] - 0.3)
_gated_factor = _of_rule(lambda probs, i: i >= 2 or probs[i] <= probs[0] / 4)
_LEAST: Any = "at least"

PLOTS: dict[str, _Plot] = {
    "margin.strict": _Plot("strict", (), _single(3, [1]), _of_rule(lambda probs, i: True)),
    "margin.additive.exact": _Plot("t = 0.3", (T,), _single(3, [1, 2], slack=T), _additive),
    "margin.additive.at-least": _Plot(
        "t = 0.3", (T,), _single(3, [1, 2], slack=T, margin=_LEAST), _additive
    ),
    "margin.multiplicative": _Plot("alpha = 1/4", (ALPHA,), _tailed(factor=ALPHA), _factor),
    "margin.absolute": _Plot(
        "tau = 0.1, g >= tau",
        (F(1, 10),),
        _tailed(ceiling=F(1, 10)),
        _of_rule(lambda probs, i: probs[i] <= 0.1),
    ),
    "margin.top": _Plot("m = 4, p1 - p2", (4,), _single(5, [4]), _of_rule(lambda probs, i: i >= 4)),
    "margin.gate.exact": _Plot("m = 2, t = 0.3", (2, T), _gate(1, "exactly", slack=T), _gated),
    "margin.gate.at-least": _Plot("m = 2, t = 0.3", (2, T), _gate(1, _LEAST, slack=T), _gated),
    "margin.gate.last.exact": _Plot(
        "m = 2, t = 0.3", (2, T), _gate(2, "exactly", slack=T), _gated, 2
    ),
    "margin.gate.last.at-least": _Plot(
        "m = 2, t = 0.3", (2, T), _gate(2, _LEAST, slack=T), _gated, 2
    ),
    "margin.gate.multiplicative": _Plot(
        "m = 2, alpha = 1/4", (2, ALPHA), _gate(1, "exactly", factor=ALPHA), _gated_factor
    ),
    "margin.gate.multiplicative.last": _Plot(
        "m = 2, alpha = 1/4", (2, ALPHA), _gate(2, "exactly", factor=ALPHA), _gated_factor, 2
    ),
    "margin.tree.p1-p2": _Plot("m = 4", (4,), _tree(4, 1), _of_tree(4)),
    "margin.tree.p1-p(m+1)": _Plot("m = 4", (4,), _tree(4, 4), _of_tree(4), 4),
    "margin.entropy.simple": _Plot(
        "eps = 0.3, delta = 0.8", (0.3, 0.8), None, _of_rule(_entropy_rejects(0.3, 0.8))
    ),
    "refuted.tree.folklore": _Plot("m = 8", (8,), _tree(8, 1), _of_tree(8)),
    "refuted.tree.flat-top": _Plot("m = 4", (4,), _tree(4, 4), _of_tree(4), 4),
}

_pair_radius = _where(1, lambda probs: drafter.strict_radius(math, probs[0], probs[1]))
_additive_reverse = _of_reverse(lambda probs, i: probs[i] <= probs[0] - 0.3)
_factor_reverse = _of_reverse(lambda probs, i: probs[i] <= probs[0] / 4)
_gate_reverse = _of_reverse(lambda probs, i: i >= 2 or probs[i] <= probs[0] - 0.3)
PLOTS |= {
    "drafter.margin.strict": _Plot("strict radius", (), _radii(F(0)), _pair_radius, letter="q"),
    "drafter.margin.additive": _Plot(
        "radius, t = 0.3",
        (T,),
        _radii(T),
        _where(1, lambda probs: drafter.additive_radius(math, probs[0], probs[1], 0.3)),
        letter="q",
    ),
    "drafter.margin.multiplicative": _Plot(
        "radius, alpha = 1/4",
        (ALPHA,),
        None,
        _where(1, lambda probs: drafter.multiplicative_radius(math, probs[0], probs[1], 0.25)),
        letter="q",
    ),
    "drafter.margin.tree": _Plot(
        "radius, m = 3",
        (3,),
        None,
        _where(3, lambda probs: drafter.tree_radius(math, probs, 3)),
        3,
        2,
        letter="q",
    ),
    "drafter.margin.top.q1-q2": _Plot(
        "radius, m = 3",
        (3,),
        None,
        _where(3, lambda probs: drafter.top_radius(math, probs, 3)),
        letter="q",
    ),
    "drafter.margin.top.q1-q(m+1)": _Plot(
        "radius, m = 3",
        (3,),
        None,
        _where(3, lambda probs: drafter.top_radius(math, probs, 3)),
        3,
        letter="q",
    ),
    "drafter.margin.gate": _Plot(
        "radius, m = 2, t = 0.3",
        (2, T),
        None,
        _where(2, lambda probs: drafter.gate_radius(math, probs, 2, 0.3)),
        letter="q",
    ),
    "drafter.margin.gate.multiplicative": _Plot(
        "radius, m = 2, alpha = 1/4",
        (2, ALPHA),
        None,
        _where(2, lambda probs: drafter.gate_factor_radius(math, probs, 2, 0.25)),
        letter="q",
    ),
    "reverse.margin.single": _Plot("reverse, j = 2", (), None, _of_reverse(lambda probs, i: True)),
    "reverse.margin.additive": _Plot("reverse, t = 0.3", (T,), None, _additive_reverse),
    "reverse.margin.multiplicative": _Plot("reverse, alpha = 1/4", (ALPHA,), None, _factor_reverse),
    "reverse.margin.top": _Plot("reverse, m = 4", (4,), None, _of_reverse(lambda probs, i: i >= 4)),
    "reverse.margin.gate.last": _Plot("reverse, m = 2, t = 0.3", (2, T), None, _gate_reverse, 2),
    "reverse.margin.tree.p1-p2": _Plot(
        "reverse, m = 4", (4,), None, _where(4, lambda probs: reverse.reverse_tree(math, probs, 4))
    ),
    "reverse.margin.tree.p1-p(m+1)": _Plot(
        "reverse, m = 4",
        (4,),
        None,
        _where(4, lambda probs: reverse.reverse_tree(math, probs, 4)),
        4,
    ),
}
WIDTH, HEIGHT, EDGE = 560, 280, 42


def render_plot(claim: Claim) -> str:
    """The claim's picture as inline SVG; empty where the claim has none."""
    plot = PLOTS.get(claim.id)
    if plot is None:
        return ""
    curve = [(k / 160, _value(claim, plot, F(k, 160))) for k in range(1, 160)]
    circles = [
        (float(gap), value)
        for gap in (F(k, 16) for k in range(1, 16))
        for value in _solved(plot, gap)
    ]
    dots = _random_certificates(plot)
    top = 1.1 * max(value for gap, value in curve if math.isfinite(value) and gap < 0.97)
    body = (
        _axes(plot, top)
        + _circles(dots, top, "r='1.3' fill='#9ca3af'")
        + _curve(curve, top)
        + _circles(circles, top, "r='4' fill='none' stroke='#b45309'")
    )
    caption = "line: the bound; " + (
        "circles: least certificate solved from the definition (Clarabel); " * bool(circles)
    )
    return (
        f"<figure><svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
        f"role='img'><title>{claim.id}</title>{body}</svg>"
        f"<figcaption>{plot.title}. {caption}dots: certificates of random targets "
        "[nats].</figcaption></figure>"
    )


def _value(claim: Claim, plot: _Plot, gap: F) -> float:
    try:
        return float(
            claim.formula(
                math, float(gap), *(float(a) if isinstance(a, F) else a for a in plot.arguments)
            )
        )
    except ValueError:  # a refuted formula may leave its own domain
        return math.nan


def _solved(plot: _Plot, gap: F) -> list[float]:
    """The least value over the programmes that have a solution; none where the solver finds all of
    them infeasible."""
    if plot.programmes is None:
        return []
    from proofs_check.methods.conic import solve_joint_by_cone

    found = []
    for programme in plot.programmes(gap):
        try:
            value = float(solve_joint_by_cone(programme))
        except (ValueError, TypeError):  # an infeasible programme has no value
            continue
        if math.isfinite(value):
            found.append(value)
    return [min(found)] if found else []


def _random_certificates(plot: _Plot, count: int = 700) -> list[tuple[float, float]]:
    rng = random.Random(plot.title)
    found = []
    for _ in range(count):
        shape = rng.choice([0.1, 0.3, 1.0, 10.0])
        weights = [
            rng.gammavariate(shape, 1.0) + 1e-12 for _ in range(rng.randint(plot.last + 1, 12))
        ]
        weights[0] += sum(weights) * rng.random() ** 2 * rng.choice([0, 1, 4])
        probs = sorted((weight / sum(weights) for weight in weights), reverse=True)
        value = plot.certificate(probs)
        if value is not None:
            found.append((probs[plot.first] - probs[plot.last], value))
    return found


def _at(x: float, y: float, top: float) -> tuple[float, float]:
    return EDGE + x * (WIDTH - 2 * EDGE), HEIGHT - EDGE - y / top * (HEIGHT - 1.5 * EDGE)


def _axes(plot: _Plot, top: float) -> str:
    parts = []
    for k in range(6):
        x, y = _at(k / 5, 0, top)
        parts.append(
            f"<path d='M{x:.1f} {y:.1f}v5' stroke='#444'/><text x='{x:.1f}' "
            f"y='{y + 18:.1f}'>{k / 5:g}</text>"
        )
    for k in range(5):
        x, y = _at(0, top * k / 4, top)
        parts.append(f"<path d='M{x:.1f} {y:.1f}H{WIDTH - EDGE}' stroke='#eee'/>")
        parts.append(
            f"<text x='{x - 6:.1f}' y='{y + 4:.1f}' text-anchor='end'>{top * k / 4:.2f}</text>"
        )
    name = f"{plot.letter}{plot.first + 1} - {plot.letter}{plot.last + 1}"
    parts.append(f"<text x='{WIDTH / 2}' y='{HEIGHT - 6}'>margin {name}</text>")
    return "<g font-size='11' fill='#444' text-anchor='middle'>" + "".join(parts) + "</g>"


def _curve(points: list[tuple[float, float]], top: float) -> str:
    steps, pen, last = [], "M", 0.0
    for x, y in points:
        if not math.isfinite(y):
            pen = "M"
            continue
        if pen == "L" and abs(y - last) > top / 12:  # a jump is a jump, not a slope
            pen = "M"
        u, v = _at(x, y, top)
        steps.append(f"{pen}{u:.1f} {v:.1f}")
        pen, last = "L", y
    return f"<path d='{''.join(steps)}' fill='none' stroke='#1d4ed8' stroke-width='2'/>"


def _circles(points: list[tuple[float, float]], top: float, look: str) -> str:
    return "".join(
        f"<circle cx='{u:.1f}' cy='{v:.1f}' {look}/>"
        for u, v in (_at(x, y, top) for x, y in points if y <= top)
    )
