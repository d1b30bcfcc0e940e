"""What cycles observed, whether the runs that observed it agree, and the text of a page about it.

Difference:  p1 - p2 of independent trials lies, with 95 % confidence, in
             d - sqrt((p1 - l1)^2 + (u2 - p2)^2) .. d + sqrt((u1 - p1)^2 + (p2 - l2)^2)
             with Wilson's bounds l, u. Source: Newcombe 1998, Statist. Med. 17, 873-890, method 10.
Agreement:   the difference of the last successes is at most `MARGIN` and not significant, and the
             changes from first to last are not significant in opposite directions.
Precise:     a success whose interval is at most `MAX_WIDTH` wide. Others replicate nothing, but
             they can contradict; nor do runs of one seed, which play the same initial states.
Text:        a line for each of the newest observations, and a table of the older ones with a row
             for each run, suite and policy.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Final, Literal

from cadenza.core.files import sha256_bytes
from cadenza.core.proportions import wilson_interval
from cadenza.loop.contracts.records import Record

#: Largest difference of success between runs that agree: few episodes have intervals so wide
#: that everything would agree.
MARGIN: Final = 0.2
#: Widest interval of a success that can replicate another one: half of it is the margin.
MAX_WIDTH: Final = 2 * MARGIN


@dataclass(frozen=True, slots=True)
class Measurement:
    """A share of successes, in [0, 1]; 0 episodes if their number is not known."""

    rate: float
    episodes: int

    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95 % bounds; [0, 1] without episodes."""
        if self.episodes == 0:
            return 0.0, 1.0
        return wilson_interval(round(self.rate * self.episodes), self.episodes)

    @property
    def precise(self) -> bool:
        """Whether there are enough episodes to replicate another measurement."""
        low, high = self.interval()
        return high - low <= MAX_WIDTH


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run found about one policy, from the first one that it kept, on one suite."""

    run: str
    first: Measurement
    last: Measurement
    seed: int | None = None


def difference_interval(one: Measurement, other: Measurement) -> tuple[float, float]:
    """Return Newcombe's 95 % bounds of ``one.rate - other.rate``."""
    (low_1, high_1), (low_2, high_2) = one.interval(), other.interval()
    p_1, p_2 = one.rate, other.rate
    below = math.hypot(p_1 - low_1, high_2 - p_2)
    above = math.hypot(high_1 - p_1, p_2 - low_2)
    return p_1 - p_2 - below, p_1 - p_2 + above


def direction(before: Measurement, after: Measurement) -> int:
    """Return 1 for a significant gain, -1 for a significant loss, 0 for neither."""
    low, high = difference_interval(after, before)
    return 1 if low > 0.0 else -1 if high < 0.0 else 0


def contradict(one: RunOutcome, other: RunOutcome) -> bool:
    """Return whether two runs disagree beyond their intervals."""
    opposite = direction(one.first, one.last) * direction(other.first, other.last) == -1
    return opposite or direction(one.last, other.last) != 0


def agree(one: RunOutcome, other: RunOutcome) -> bool:
    """Return whether two runs agree."""
    return not contradict(one, other) and abs(one.last.rate - other.last.rate) <= MARGIN


def independent(outcomes: list[RunOutcome]) -> list[RunOutcome]:
    """Return the newest run of each seed, and of those whose seed is not known."""
    return list({outcome.seed: outcome for outcome in outcomes}.values())


def all_agree(outcomes: list[RunOutcome]) -> bool:
    """Return whether two independent precise runs or more agree, and no run contradicts."""
    precise = [outcome for outcome in outcomes if outcome.last.precise]
    seeds = {outcome.seed for outcome in precise} - {None}
    return (
        len(seeds) > 1
        and all(agree(a, b) for a, b in combinations(precise, 2))
        and not any(contradict(a, b) for a, b in combinations(outcomes, 2))
    )


#: Decisions after which the candidate is the policy that later ones are compared with.
KEPT: Final = frozenset({"promote", "provisional"})
#: Observations listed one by one, and rows of the table; the oldest runs leave it.
MAX_LISTED: Final = 40
MAX_ROWS: Final = 100
#: Longest name in a line, characters, and hexadecimal digits of the digest of one that is changed.
_MAX_NAME: Final = 100
_DIGEST_DIGITS: Final = 12
_TABLE: Final = (
    "Earlier observations:\n\n"
    "| run | suite | policy | cycles | first | last | decisions | until | seed |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def plain_name(name: str) -> str:
    """Return a name as it stands in lines and rows: one line, no separators of theirs.

    A name that cannot stand there as it is, or has more than 100 characters, ends in a digest of
    the whole, so that names stay apart.
    """
    line = " ".join(name.split())
    cleaned = "".join(c if c.isprintable() and c not in "·|" else "_" for c in line)
    if cleaned == name and len(name) <= _MAX_NAME:
        return name or "unnamed"
    digest = sha256_bytes(name.encode("utf-8", "surrogatepass"))[:_DIGEST_DIGITS]
    return f"{cleaned[: _MAX_NAME - 1 - _DIGEST_DIGITS] or 'unnamed'}~{digest}"


class Observation(Record):
    """What one cycle of one run measured; names are plain, see `plain_name`.

    Attributes:
        seed: Root of the run's randomness; None if not known.
        origin: Digest that tells the run from others of its id; None if not known.
    """

    row: Literal["observation"] = "observation"
    date: str
    run: str
    cycle: int
    suite: str
    policy: str
    measured: Measurement
    decision: str
    seed: int | None = None
    origin: str | None = None

    @property
    def kept(self) -> bool:
        """Whether the policy was blessed or became the reference."""
        return self.decision in KEPT

    def line(self) -> str:
        """Return the observation as a line of a page."""
        return (
            f"- {self.date} · run {self.run} · cycle {self.cycle} · {self.suite} · policy "
            f"{self.policy} · success {self.measured.rate:.1%} · decision {self.decision}"
            + (f" · episodes {self.measured.episodes}" if self.measured.episodes else "")
            + ("" if self.seed is None else f" · seed {self.seed}")
        )

    def cells(self) -> str:
        """Return the observation as a row of its run's page."""
        return (
            f"| {self.cycle} | {self.date} | {self.suite} | {self.policy} | "
            f"{self.measured.rate:.1%} | {self.measured.episodes} | {self.decision} |"
        )


def outcomes(seen: Iterable[Observation]) -> dict[tuple[str, str], list[RunOutcome]]:
    """Return what each run found, by (suite, policy): the successes that it kept, oldest first.

    Of one suite and policy, the newest `MAX_ROWS` runs.
    """
    found: dict[tuple[str, str], dict[str, RunOutcome]] = {}
    for one in seen:
        if one.kept:
            runs = found.setdefault((one.suite, one.policy), {})
            first = runs[one.run].first if one.run in runs else one.measured
            runs[one.run] = RunOutcome(one.run, first, one.measured, one.seed)
    return {pair: list(runs.values())[-MAX_ROWS:] for pair, runs in found.items()}


def observations_text(seen: Sequence[Observation]) -> str:
    """Return the text about observations, oldest first; its length is bounded."""
    older, listed = seen[:-MAX_LISTED], seen[-MAX_LISTED:]
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for one in older:
        key = (one.run, one.suite, one.policy)
        groups[key] = group = groups.pop(key, [])  # the newest group comes last
        group.append(one)
    rows = [_row(group) for group in [*groups.values()][-MAX_ROWS:]]
    table = [_TABLE, *rows] if rows else []
    blocks = ["\n".join(table), "\n".join(one.line() for one in listed)]
    return "\n\n".join(block for block in blocks if block)


def _row(group: Sequence[Observation]) -> str:
    last = group[-1]
    kept = [one.measured for one in group if one.kept]
    first_kept, last_kept = (_cell(kept[0]), _cell(kept[-1])) if kept else ("-", "-")
    decisions = Counter(one.decision for one in group)
    counted = ", ".join(f"{name} {count}" for name, count in decisions.items())
    return (
        f"| {last.run} | {last.suite} | {last.policy} | {_ranges(one.cycle for one in group)} | "
        f"{first_kept} | {last_kept} | {counted} | {last.date} | "
        f"{'' if last.seed is None else last.seed} |"
    )


def _ranges(cycles: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined, as in ``0-3, 7``."""
    parts: list[str] = []
    for _, numbered in groupby(enumerate(sorted(cycles)), key=lambda pair: pair[1] - pair[0]):
        run = [cycle for _, cycle in numbered]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return ", ".join(parts)


def _cell(measured: Measurement) -> str:
    return f"{measured.rate:.1%}" + (f" of {measured.episodes}" if measured.episodes else "")
