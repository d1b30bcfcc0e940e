"""The observations of a page, and whether the runs that made them agree.

The newest observations stand as a list, older ones are rolled up into a table. Other lines of the
section are a person's and are kept above both.

A line:      ``- DATE · run R · cycle N · SUITE · policy P · success 50.0% · decision D · episodes
             10`` and ``· seed S``, the last two where they are known.
A row:       one run on one suite with one policy: its cycles, first and last success that it kept
             (``-`` if none), decisions.
Difference:  p1 - p2 of independent trials lies, with 95 % confidence, in
             d - sqrt((p1 - l1)^2 + (u2 - p2)^2) .. d + sqrt((u1 - p1)^2 + (p2 - l2)^2)
             with Wilson's bounds l, u. Source: Newcombe 1998, Statist. Med. 17, 873-890, method 10.
Agreement:   the difference of the last successes is at most `MARGIN` and not significant, and the
             changes from first to last are not significant in opposite directions.
Precise:     a success whose interval is at most `MAX_WIDTH` wide. Others replicate nothing, but
             they can contradict; nor do runs of one seed, which play the same initial states.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from cadenza.core.files import sha256_bytes
from cadenza.core.proportions import wilson_interval

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
#: Observations listed one by one.
MAX_LISTED: Final = 40
#: Rows of the table; the oldest runs leave it.
MAX_ROWS: Final = 100
#: Longest name in a line, characters, and hexadecimal digits of the digest of one that is changed.
_MAX_NAME: Final = 100
_DIGEST_DIGITS: Final = 12
#: Most runs of consecutive cycles that one row takes; a run's cycles are consecutive.
_MAX_RANGES: Final = 64
_LINE: Final = re.compile(
    r"- (?P<date>\d{4}-\d\d-\d\d) · run (?P<run>[^·\n]+) · cycle (?P<cycle>\d{1,9})"
    r" · (?P<suite>[^·\n]+) · policy (?P<policy>[^·\n]+) · success (?P<success>\d{1,3}\.\d)%"
    r" · decision (?P<decision>[^·\n]+?)(?: · episodes (?P<episodes>\d{1,9}))?"
    r"(?: · seed (?P<seed>\d{1,10}))?"
)
_ROW: Final = re.compile(
    r"\| (?P<run>[^|\n]+) \| (?P<suite>[^|\n]+) \| (?P<policy>[^|\n]+)"
    r" \| (?P<cycles>\d{1,9}(?:-\d{1,9})?(?:, \d{1,9}(?:-\d{1,9})?)*)"
    r" \| (?:-|(?P<first>\d{1,3}\.\d)%(?: of (?P<first_n>\d{1,9}))?)"
    r" \| (?:-|(?P<last>\d{1,3}\.\d)%(?: of (?P<last_n>\d{1,9}))?)"
    r" \| (?P<decisions>[^|\n]*) \| (?P<date>\d{4}-\d\d-\d\d) \|(?: (?P<seed>\d{0,10}) \|)?"
)
_TABLE_TITLE: Final = "Earlier observations:"
_TABLE_HEAD: Final = "| run | suite | policy | cycles | first | last | decisions | until | seed |"
_TABLE_RULE: Final = "|---|---|---|---|---|---|---|---|---|"
#: Head and rule of tables without seeds.
_OLDER_FRAME: Final = (
    _TABLE_HEAD.removesuffix(" seed |"),
    _TABLE_RULE.removesuffix("---|"),
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


def measurement(rate: float, episodes: int) -> Measurement:
    """Return a success as pages keep it: to a tenth of a percent."""
    return Measurement(round(rate, 3), episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one cycle of one run measured; names are plain, see `plain_name`."""

    date: str
    run: str
    cycle: int
    suite: str
    policy: str
    measured: Measurement
    decision: str
    seed: int | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Observations of one run on one suite with one policy, rolled up.

    Attributes:
        cycles: Ranges of cycles, ends included.
        first: First success that was kept; None if none was.
        decisions: Decisions and how often, in order of their first time.
        seed: Root of the run's randomness; None if not known.
    """

    run: str
    suite: str
    policy: str
    cycles: tuple[tuple[int, int], ...]
    first: Measurement | None
    last: Measurement | None
    decisions: tuple[tuple[str, int], ...]
    date: str
    seed: int | None = None

    def line(self) -> str:
        """Return the row of the table."""
        cycles = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self.cycles)
        decisions = ", ".join(f"{name} {count}" for name, count in self.decisions)
        return (
            f"| {self.run} | {self.suite} | {self.policy} | {cycles} | "
            f"{_cell(self.first)} | {_cell(self.last)} | {decisions} | {self.date} | "
            f"{'' if self.seed is None else self.seed} |"
        )

    def with_observation(self, new: Observation) -> "Row":
        """Return the row with one more observation, later than its others."""
        decisions = dict(self.decisions)
        decisions[new.decision] = decisions.get(new.decision, 0) + 1
        return replace(
            self,
            cycles=_with_cycle(self.cycles, new.cycle),
            first=(self.first or new.measured) if new.kept else self.first,
            last=new.measured if new.kept else self.last,
            decisions=tuple(decisions.items()),
            date=new.date,
        )


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of a page, and lines that are none, as they stand."""

    free: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    listed: tuple[Observation, ...] = ()

    def has(self, run: str, cycle: int) -> bool:
        """Return whether the cycle of the run is among them."""
        return any((o.run, o.cycle) == (run, cycle) for o in self.listed) or any(
            row.run == run and any(a <= cycle <= b for a, b in row.cycles) for row in self.rows
        )

    def with_observation(self, new: Observation) -> "Observations":
        """Return these and one more, unless it is among them; the oldest beyond 40 roll up."""
        if self.has(new.run, new.cycle):
            return self
        listed, rows = (*self.listed, new), self.rows
        while len(listed) > MAX_LISTED:
            rows, listed = _rolled_up(rows, listed[0]), listed[1:]
        return replace(self, rows=rows[-MAX_ROWS:], listed=listed)

    def outcomes(self) -> dict[tuple[str, str], list[RunOutcome]]:
        """Return what each run found, by (suite, policy): the successes that it kept."""
        found: dict[tuple[str, str, str], RunOutcome] = {}
        for row in self.rows:
            if row.first is not None and row.last is not None:
                found[row.suite, row.policy, row.run] = RunOutcome(
                    row.run, row.first, row.last, row.seed
                )
        for seen in self.listed:
            if not seen.kept:
                continue
            key = (seen.suite, seen.policy, seen.run)
            first = found[key].first if key in found else seen.measured
            found[key] = RunOutcome(seen.run, first, seen.measured, seen.seed)
        by_pair: dict[tuple[str, str], list[RunOutcome]] = {}
        for (suite, policy, _), outcome in found.items():
            by_pair.setdefault((suite, policy), []).append(outcome)
        return by_pair

    def names(self) -> set[str]:
        """Return the suites and policies."""
        observed = (*self.rows, *self.listed)
        return {name for one in observed for name in (one.suite, one.policy)}

    def runs(self) -> tuple[str, ...]:
        """Return the runs, in order of their first observation."""
        named = [*(row.run for row in self.rows), *(seen.run for seen in self.listed)]
        return tuple(dict.fromkeys(named))

    def newest_date(self) -> str | None:
        """Return the day of the newest observation; None without any."""
        dates = [*(row.date for row in self.rows), *(seen.date for seen in self.listed)]
        return max(dates, default=None)

    def text(self) -> str:
        """Return the text of the section."""
        table: list[str] = []
        if self.rows:
            table = [_TABLE_TITLE, "", _TABLE_HEAD, _TABLE_RULE, *(r.line() for r in self.rows)]
        blocks = ["\n".join(self.free), "\n".join(table), "\n".join(o.line() for o in self.listed)]
        return "\n\n".join(block for block in blocks if block)


def read_observations(text: str) -> Observations:
    """Return the observations that the text of a section holds."""
    free: list[str] = []
    rows: list[Row] = []
    listed: list[Observation] = []
    for line in text.split("\n"):
        if (match := _LINE.fullmatch(line.rstrip())) is not None:
            listed.append(_observation(match))
        elif (match := _ROW.fullmatch(line.rstrip())) is not None:
            rows.append(_row(match))
        elif line.rstrip() not in (_TABLE_TITLE, _TABLE_HEAD, _TABLE_RULE, *_OLDER_FRAME):
            free.append(line)
    kept = re.sub(r"\n{3,}", "\n\n", "\n".join(free)).strip("\n")
    return Observations(tuple(kept.split("\n")) if kept else (), tuple(rows), tuple(listed))


def _observation(match: re.Match[str]) -> Observation:
    return Observation(
        date=match["date"],
        run=match["run"].strip(),
        cycle=int(match["cycle"]),
        suite=match["suite"].strip(),
        policy=match["policy"].strip(),
        measured=_measurement(match["success"], match["episodes"]),
        decision=match["decision"].strip(),
        seed=_seed(match["seed"]),
    )


def _row(match: re.Match[str]) -> Row:
    ranges = [part.partition("-") for part in match["cycles"].split(", ")]
    counted = [part.rpartition(" ") for part in match["decisions"].split(", ")]
    decisions = tuple((name, int(count)) for name, _, count in counted if count.isdecimal())
    first, last = (
        None if match[name] is None else _measurement(match[name], match[f"{name}_n"])
        for name in ("first", "last")
    )
    if match["seed"] is None:  # an older row: ends of all candidates, refused ones among them
        first = first if decisions and decisions[0][0] in KEPT else None
        last = last if all(name in KEPT for name, _ in decisions) else first
    return Row(
        run=match["run"].strip(),
        suite=match["suite"].strip(),
        policy=match["policy"].strip(),
        cycles=tuple((int(a), int(b or a)) for a, _, b in ranges),
        first=first,
        last=last,
        decisions=decisions,
        date=match["date"],
        seed=_seed(match["seed"]),
    )


def _seed(text: str | None) -> int | None:
    return int(text) if text else None


def _cell(measured: Measurement | None) -> str:
    if measured is None:
        return "-"
    return f"{measured.rate:.1%}" + (f" of {measured.episodes}" if measured.episodes else "")


def _measurement(percent: str, episodes: str | None) -> Measurement:
    return measurement(min(1.0, float(percent) / 100.0), int(episodes or 0))


def _rolled_up(rows: Iterable[Row], oldest: Observation) -> tuple[Row, ...]:
    """Return the rows with an observation that leaves the list; its run's row moves to the end."""
    key = (oldest.run, oldest.suite, oldest.policy)
    others = tuple(row for row in rows if (row.run, row.suite, row.policy) != key)
    same = [row for row in rows if (row.run, row.suite, row.policy) == key]
    fresh = Row(
        run=oldest.run,
        suite=oldest.suite,
        policy=oldest.policy,
        cycles=((oldest.cycle, oldest.cycle),),
        first=oldest.measured if oldest.kept else None,
        last=oldest.measured if oldest.kept else None,
        decisions=((oldest.decision, 1),),
        date=oldest.date,
        seed=oldest.seed,
    )
    return (*others, same[0].with_observation(oldest) if same else fresh)


def _with_cycle(ranges: tuple[tuple[int, int], ...], cycle: int) -> tuple[tuple[int, int], ...]:
    """Return ranges that also hold ``cycle``, joined where they touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*ranges, (cycle, cycle)]):
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined[-_MAX_RANGES:])
