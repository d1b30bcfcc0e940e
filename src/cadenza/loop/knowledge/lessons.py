"""Lessons of a page: derived from its observations, or written by a language model, bounded."""

import re
from typing import Final

from cadenza.core.files import sha256_bytes
from cadenza.loop.knowledge.agreement import Measurement, RunOutcome, direction, independent
from cadenza.loop.knowledge.observations import Observation, Observations
from cadenza.loop.llm.redaction import storable

#: Bullets of a page, and characters of each.
MAX_BULLETS: Final = 12
MAX_BULLET_CHARS: Final = 300
#: Regressions that are listed, the newest.
_MAX_REGRESSIONS: Final = 3
#: Decision after which a candidate is a regression.
ROLLED_BACK: Final = "rollback"
_BULLET: Final = re.compile(r"\s{0,8}(?:[-*•+]|\d{1,2}[.)])\s+(?P<text>\S.*)")
_TAG: Final = re.compile(r"<[^<>]{0,500}>")
_FENCE: Final = re.compile(r"`{3,}|~{3,}")
SYSTEM: Final = (
    "You maintain one page of notes about robot policies. Given the page and a new observation, "
    "rewrite only its lessons: a short Markdown list of durable, actionable bullets, one line "
    "each. No heading, no preamble, no HTML."
)


def bounded_lessons(reply: str) -> str:
    """Return the bullets of a model's reply as a list of bounded length; empty without any.

    Headings, front matter, fences and all other lines are dropped, and so are tags: what stays
    can neither end its section nor run in a browser.
    """
    bullets: list[str] = []
    for line in storable(reply).replace("\r", "\n").split("\n"):
        match = _BULLET.fullmatch(line.rstrip())
        text = "" if match is None else _plain(match["text"])
        if text and len(bullets) < MAX_BULLETS:
            bullets.append(f"- {text[:MAX_BULLET_CHARS].rstrip()}")
    return "\n".join(bullets)


def digest(lessons: str) -> str:
    """Return the digest that tells derived lessons from edited ones."""
    return sha256_bytes(lessons.strip().encode("utf-8", "replace"))[:16]


def derived_lessons(seen: Observations, *, compare: bool) -> str:
    """Return the lessons that the observations themselves teach.

    A policy stands where runs last kept it; what they refused is told apart, and what was rolled
    back is a regression.

    Args:
        seen: Observations.
        compare: Whether to say which policy is best on each suite.
    """
    pooled = {pair: _pooled(runs) for pair, runs in seen.outcomes().items()}
    bullets = _standings(seen, pooled, compare=compare)
    for (suite, policy), runs in seen.outcomes().items():
        bullets += [_change(suite, policy, run) for run in runs if direction(run.first, run.last)]
    bullets += [_not_kept(o) for o in _newest_refused(seen)]
    regressions = [o for o in seen.listed if o.decision == ROLLED_BACK][-_MAX_REGRESSIONS:]
    bullets += [_regression(o) for o in regressions]
    return "\n".join(f"- {bullet}" for bullet in bullets[:MAX_BULLETS])


def _standings(
    seen: Observations, pooled: dict[tuple[str, str], Measurement], *, compare: bool
) -> list[str]:
    bullets: list[str] = []
    runs = seen.outcomes()
    for suite in dict.fromkeys(suite for suite, _ in pooled):
        policies = [policy for s, policy in pooled if s == suite]
        ranked = sorted(policies, key=lambda policy: -pooled[suite, policy].rate)
        for place, policy in enumerate(ranked):
            title = f"Best policy on {suite}: {policy}" if compare and place == 0 else None
            measured = _percent(pooled[suite, policy])
            kept = runs[suite, policy]
            again = ", of one seed the newest" if len(independent(kept)) < len(kept) else ""
            bullets.append(
                f"{title or f'{policy} on {suite}'}, {measured} when last kept by "
                f"{len(kept)} run{'s' if len(kept) > 1 else ''}{again}."
            )
    return bullets


def _pooled(runs: list[RunOutcome]) -> Measurement:
    """Return the last successes that independent runs kept, together."""
    runs = independent(runs)
    episodes = sum(run.last.episodes for run in runs)
    if episodes == 0:
        return Measurement(sum(run.last.rate for run in runs) / len(runs), 0)
    return Measurement(sum(run.last.rate * run.last.episodes for run in runs) / episodes, episodes)


def _change(suite: str, policy: str, run: RunOutcome) -> str:
    word = "rose" if direction(run.first, run.last) > 0 else "fell"
    return (
        f"{policy} on {suite} {word} from {run.first.rate:.1%} to {run.last.rate:.1%} within run "
        f"{run.run}."
    )


def _newest_refused(seen: Observations) -> list[Observation]:
    """Return the newest candidate of every policy that no run kept, without regressions."""
    kept = seen.outcomes()
    newest = {(o.suite, o.policy): o for o in seen.listed if (o.suite, o.policy) not in kept}
    return [o for o in newest.values() if o.decision != ROLLED_BACK]


def _not_kept(seen: Observation) -> str:
    return (
        f"Not kept: {seen.policy} on {seen.suite} at {_percent(seen.measured)}, {seen.decision} in "
        f"cycle {seen.cycle} of run {seen.run}."
    )


def _regression(seen: Observation) -> str:
    return (
        f"Regression: {seen.policy} on {seen.suite} at {_percent(seen.measured)}, rolled back in "
        f"cycle {seen.cycle} of run {seen.run}."
    )


def _percent(measured: Measurement) -> str:
    if measured.episodes == 0:
        return f"{measured.rate:.1%} of an unknown number of episodes"
    low, high = measured.interval()
    interval = f"95% interval {low:.1%} to {high:.1%}"
    return f"{measured.rate:.1%} of {measured.episodes} episodes ({interval})"


def _plain(text: str) -> str:
    """Return one line without tags, fences and what does not print."""
    previous = None
    while previous != text:  # a tag inside a tag leaves a tag
        previous, text = text, _TAG.sub("", text)
    text = re.sub(r"<(?=[A-Za-z/!?])", "< ", _FENCE.sub("", text))
    return "".join(c for c in " ".join(text.split()) if c.isprintable())
