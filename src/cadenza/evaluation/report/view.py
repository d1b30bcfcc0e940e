"""What the report shows, as plain values; the renderer reads nothing else.

A view is complete and checked when it is built: every episode and rollout names a known condition
and partner, so the renderer has no error branches. All statistics are computed from ``episodes``
by the renderer; the caller supplies only what was observed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cadenza.core.errors import InputError
from cadenza.evaluation.results import EpisodeResult

#: A point of the plane, m.
Point = tuple[float, float]

#: Colours, markers and table columns are laid out for this many conditions.
MAX_CONDITIONS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One provenance row, e.g. commit, command, library versions.

    Attributes:
        label: What it is.
        value: Its value; shown in a monospaced face when ``code``.
        code: Whether the value is something to copy: a hash, a command, a path.
    """

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the bundle verification.

    Attributes:
        name: Name of the check.
        ok: Whether it passed.
        detail: What was compared.
    """

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One plain sentence for a reader who knows none of the terms.

    Attributes:
        kind: ``"measured"``, ``"not_measured"`` or ``"caution"``.
        text: The sentence.
    """

    kind: Literal["measured", "not_measured", "caution"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionView:
    """One way of running the ego.

    Attributes:
        condition_id: Identifier the episodes carry.
        label: Short name, e.g. ``"with filter"``.
        filtered: Whether the safety filter was on.
        description: One sentence.
    """

    condition_id: str
    label: str
    filtered: bool
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerView:
    """One partner of the ego.

    Attributes:
        partner_id: Identifier the episodes carry.
        label: Short name.
        seen: Whether the ego trained with it.
        leaves_way: Whether it leaves the ego a way to its goal.
        description: One sentence.
    """

    partner_id: str
    label: str
    seen: bool
    leaves_way: bool = True
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One evaluation on held-out episodes during training.

    Attributes:
        step: Environment steps trained so far.
        n_episodes: Episodes played, > 0.
        n_success: Episodes solved; ``None`` for a task without a success predicate.
        mean_return: Mean undiscounted return; ``None`` when not recorded.
    """

    step: int
    n_episodes: int
    n_success: int | None = None
    mean_return: float | None = None

    def __post_init__(self) -> None:
        if self.n_episodes < 1 or not 0 <= (self.n_success or 0) <= self.n_episodes:
            raise InputError(
                "EvaluationPoint: expected n_episodes >= 1 and 0 <= n_success <= n_episodes, got "
                f"{self.n_episodes} and {self.n_success}."
            )
        _finite("EvaluationPoint.mean_return", [self.mean_return or 0.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """Training returns of one run.

    Attributes:
        steps: Environment steps at the end of each training episode, ascending.
        returns: Undiscounted return of each training episode.
        window: Episodes in the moving mean, >= 1.
        evaluations: Held-out evaluations, by step.
        label: What was trained, e.g. ``"seed 0, partner goal-seeker"``.
    """

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    window: int = 50
    evaluations: tuple[EvaluationPoint, ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.returns):
            raise InputError(
                "LearningCurve: expected one step per return, got "
                f"{len(self.steps)} steps and {len(self.returns)} returns."
            )
        if any(b < a for a, b in zip(self.steps, self.steps[1:], strict=False)):
            raise InputError("LearningCurve.steps: expected ascending steps; sort the episodes.")
        if self.window < 1:
            raise InputError(f"LearningCurve.window: expected >= 1, got {self.window}.")
        _finite("LearningCurve.returns", self.returns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One recorded episode, for the player.

    Attributes:
        condition_id: Condition it was played under.
        partner_id: Partner it was played with.
        seed: Root seed of the episode.
        initial_state_seed: Seed of the start; equal seeds show the same start side by side.
        control_timestep_s: Time between frames, s, > 0.
        frames: Position of every robot at each time, m; at least one frame, the start.
        goals: Goal of every robot that has one, m.
        radii: Radius of every robot, m.
        contact_index: First frame at which the ego touches someone, if any.
        success: Whether the ego reached its goal.
        interventions: Size of the filter's change on the step that leads to each frame, in the unit
            of the action; empty without a filter, else as long as ``frames`` (first entry 0).
    """

    condition_id: str
    partner_id: str
    seed: int
    initial_state_seed: int
    control_timestep_s: float
    frames: tuple[Mapping[str, Point], ...]
    goals: Mapping[str, Point]
    radii: Mapping[str, float]
    contact_index: int | None
    success: bool
    interventions: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        name = f"Rollout({self.partner_id}, {self.condition_id})"
        if not self.frames:
            raise InputError(f"{name}.frames: expected at least the start, got none.")
        if not self.control_timestep_s > 0.0:
            raise InputError(
                f"{name}.control_timestep_s: expected > 0 s, got {self.control_timestep_s}."
            )
        robots = set(self.frames[0])
        if any(set(frame) != robots for frame in self.frames) or set(self.radii) != robots:
            raise InputError(
                f"{name}: expected every frame and radii to hold the robots {sorted(robots)}."
            )
        if self.contact_index is not None and not 0 <= self.contact_index < len(self.frames):
            raise InputError(
                f"{name}.contact_index: expected a frame in 0..{len(self.frames) - 1}, got "
                f"{self.contact_index}."
            )
        if self.interventions and len(self.interventions) != len(self.frames):
            raise InputError(
                f"{name}.interventions: expected {len(self.frames)} values or none, got "
                f"{len(self.interventions)}."
            )
        for frame in (*self.frames, self.goals):
            _finite(f"{name} positions", [x for point in frame.values() for x in point])
        _finite(f"{name}.interventions", self.interventions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A further table, shown as it is.

    Attributes:
        title: Heading.
        columns: Column headings.
        rows: Cells, one tuple per row, as many as columns.
        caption: One sentence under the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise InputError(f"Table {self.title!r}: expected {len(self.columns)} cells per row.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """Everything the report shows.

    Attributes:
        title: Headline of the page.
        task: Task identifier with version.
        statements: What was measured, what not, what to beware of.
        provenance: Commit, command, versions, hashes; the caller also puts the date here if wanted.
        verification: Checks of the bundle; empty when it was not verified.
        conditions: One or two conditions; the comparison is filtered minus unfiltered.
        partners: Partners in display order.
        episodes: Every evaluation episode; each carries ``condition`` and ``partner``.
        subtitle: One sentence under the headline.
        has_success: Whether the task has a success predicate; otherwise returns are shown.
        success_meaning: What success means in this task, as the end of "Success means ...".
        contact_distance_m: Centre distance at which robots touch, the sum of radii; ``None``
            where the task has no contact.
        action_unit: Unit of the ego's action, for intervention sizes.
        ego_uid: The ego's name in rollouts.
        learning: Training run behind the ego, if known.
        rollouts: At most one per partner and condition.
        rollouts_note: How the recorded episodes were chosen, one sentence.
        tables: Further tables, e.g. the filter's settings.
        repro_command: Command line that repeats everything.
    """

    title: str
    task: str
    statements: tuple[Statement, ...]
    provenance: tuple[Fact, ...]
    verification: tuple[Check, ...]
    conditions: tuple[ConditionView, ...]
    partners: tuple[PartnerView, ...]
    episodes: tuple[EpisodeResult, ...]
    subtitle: str = ""
    has_success: bool = True
    success_meaning: str = ""
    contact_distance_m: float | None = None
    action_unit: str = "m/s²"
    ego_uid: str = "ego"
    learning: LearningCurve | None = None
    rollouts: tuple[Rollout, ...] = ()
    rollouts_note: str = ""
    tables: tuple[Table, ...] = ()
    repro_command: str = ""
    #: Filled in: the filtered condition and the one it is compared with, when both exist.
    treatment: ConditionView | None = field(init=False, default=None)
    baseline: ConditionView | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        conditions = _unique("conditions", [c.condition_id for c in self.conditions])
        partners = _unique("partners", [p.partner_id for p in self.partners])
        if len(conditions) > MAX_CONDITIONS:
            raise InputError(
                f"ReportView.conditions: expected at most {MAX_CONDITIONS}, got {len(conditions)}; "
                "write one report per pair."
            )
        for episode in self.episodes:
            _known("episodes", episode.condition, conditions, episode.partner, partners)
        for rollout in self.rollouts:
            _known("rollouts", rollout.condition_id, conditions, rollout.partner_id, partners)
            if self.ego_uid not in rollout.radii:
                raise InputError(
                    f"ReportView.ego_uid: expected one of {sorted(rollout.radii)}, got "
                    f"{self.ego_uid!r}."
                )
        if self.rollouts:
            _unique("rollouts", [f"{r.partner_id} {r.condition_id}" for r in self.rollouts])
        filtered = [c for c in self.conditions if c.filtered]
        unfiltered = [c for c in self.conditions if not c.filtered]
        if filtered and unfiltered:
            object.__setattr__(self, "treatment", filtered[0])
            object.__setattr__(self, "baseline", unfiltered[0])


def condition_css(view: ReportView) -> tuple[str, ...]:
    """Return the class of each condition: ``"on"`` is drawn filled, ``"off"`` hollow."""
    if view.treatment is not None:
        return tuple("on" if c.filtered else "off" for c in view.conditions)
    return ("on", "off")[: len(view.conditions)]


def _unique(name: str, ids: list[str]) -> set[str]:
    """Return ``ids`` as a set if there is at least one and none repeats."""
    if not ids or len(set(ids)) != len(ids):
        raise InputError(f"ReportView.{name}: expected at least one and no repeats, got {ids}.")
    return set(ids)


def _known(
    name: str, condition: str | None, conditions: set[str], partner: str | None, partners: set[str]
) -> None:
    """Raise unless the condition and the partner are declared."""
    if condition not in conditions or partner not in partners:
        raise InputError(
            f"ReportView.{name}: expected conditions {sorted(conditions)} and partners "
            f"{sorted(partners)}, got ({condition!r}, {partner!r}); declare it or leave it out."
        )


def _finite(name: str, values: Iterable[float]) -> None:
    """Raise if a value is NaN or infinite."""
    bad = [value for value in values if not math.isfinite(value)]
    if bad:
        raise InputError(f"{name}: expected finite numbers, got {bad[0]}.")
