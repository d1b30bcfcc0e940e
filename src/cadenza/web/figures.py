"""Drawings of a run: small intervals beside decisions, and success over its cycles."""

from typing import Final

from markupsafe import Markup

from cadenza.evaluation.report.svg import SHARES, Drawing, Scale, draw_grid
from cadenza.loop.status_report import CycleStatus, Measurement

#: Drawing units of the small figure.
_WIDTH, _HEIGHT = 150.0, 30.0
#: Cycles of the chart, units of one of them, and the chart's height.
MAX_CYCLES: Final = 40
_PITCH, _TALL = 64.0, 210.0


def intervals(name: str, **measured: Measurement | None) -> Markup:
    """Return shares of success with their intervals, one above the other, between 0 and 1."""
    drawing = Drawing(width=_WIDTH, height=_HEIGHT)
    scale = Scale(low=0.0, high=1.0, start=4.0, end=_WIDTH - 4.0)
    for share in (0.0, 0.5, 1.0):
        drawing.line(scale(share), 2.0, scale(share), _HEIGHT - 2.0, "grid")
    words: list[str] = []
    shown = [(subject, one) for subject, one in measured.items() if one is not None]
    for row, (subject, one) in enumerate(shown):
        y = _HEIGHT * (row + 1) / (len(shown) + 1)
        drawing.line(scale(one.low), y, scale(one.high), y, f"interval {subject}")
        drawing.circle(scale(one.rate), y, 4.0, f"mark {subject}", _words(subject, one))
        words.append(_words(subject, one))
    title = "Success with 95 % intervals"
    return drawing.render(identity=name, title=title, description="; ".join(words))


def success_chart(cycles: tuple[CycleStatus, ...]) -> Markup | None:
    """Return the success of each cycle's two policies; None before the first evaluation."""
    shown = [one for one in cycles if one.candidate is not None][-MAX_CYCLES:]
    if not shown:
        return None
    left, bottom = 46.0, _TALL - 26.0
    drawing = Drawing(width=max(300.0, left + _PITCH * len(shown) + 46.0), height=_TALL)
    y = Scale(low=0.0, high=1.0, start=bottom, end=18.0)
    x = Scale(low=0.0, high=1.0, start=left, end=drawing.width - 42.0)
    draw_grid(drawing, x, y, SHARES)
    for share in (0.0, 0.5, 1.0):  # for whom the left end is scrolled away
        drawing.text(x.end + 6.0, y(share) + 4.0, f"{share:.0%}", "tick")
    drawing.text(4.0, _TALL - 8.0, "cycle", "tick")
    best = max(shown, key=lambda one: one.candidate.rate if one.candidate else 0.0)
    words: list[str] = []
    for place, cycle in enumerate(shown):
        middle = left + _PITCH * (place + 0.5)
        drawing.text(middle, _TALL - 8.0, str(cycle.idx), "tick", "middle")
        for subject, one, offset in (
            ("candidate", cycle.candidate, -9.0),
            ("baseline", cycle.baseline, 9.0),
        ):
            if one is None:
                continue
            at, tip = middle + offset, f"cycle {cycle.idx}: {_words(subject, one)}"
            if subject == "candidate":
                drawing.rect(at - 8.0, y(one.rate), 16.0, bottom - y(one.rate), f"bar {subject}")
            drawing.line(at, y(one.low), at, y(one.high), f"interval {subject}")
            drawing.circle(at, y(one.rate), 4.0, f"mark {subject}", tip)
            words.append(tip)
        if cycle is best and cycle.candidate is not None:
            label = f"{cycle.candidate.rate:.0%}"
            drawing.text(middle, y(cycle.candidate.high) - 5.0, label, "label", "middle")
    title = "Success per cycle with 95 % intervals"
    return drawing.render(identity="success", title=title, description="; ".join(words))


def _words(subject: str, one: Measurement) -> str:
    name = "reference" if subject == "baseline" else subject
    return f"{name} {one.rate:.1%} [{one.low:.0%}, {one.high:.0%}] in {one.n_episodes} episodes"
