"""What the report shows, as plain values; the renderer reads nothing else.

Every episode and rollout of a view names a known condition and partner. All statistics are computed
from ``episodes`` by the renderer; recorded episodes go to the player as JSON.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from markupsafe import Markup
from pydantic import Field

from cadenza.core.errors import InputError
from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import BestResponses
from cadenza.evaluation.report.svg import Figure
from cadenza.evaluation.results import Archive, EpisodeResult
from cadenza.safety.geometry import Obstacles
from cadenza.safety.maps import obstacles_of, outlines

#: A point of the plane, m.
Point = tuple[float, float]

#: There are colours for this many conditions.
MAX_CONDITIONS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One provenance row, e.g. commit or command; ``code`` is something to copy."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a bundle's verification, e.g. ``"manifest:plan.json"``, and what was seen."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One plain sentence for a reader who knows none of the terms."""

    kind: Literal["measured", "not_measured", "caution"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionView:
    """One way of running the ego, or one method, with the identifier that episodes carry.

    ``row_id`` names the baseline that it is, if any.
    """

    condition_id: str
    label: str
    filtered: bool
    description: str = ""
    row_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerView:
    """One partner of the ego, with the identifier that episodes carry.

    ``seen`` is whether an ego trained with it, None if that is not known; ``seen_by`` says it of
    conditions one by one, where they are egos.
    """

    partner_id: str
    label: str
    seen: bool | None
    leaves_way: bool = True
    description: str = ""
    family: str = ""
    seen_by: Mapping[str, bool] = field(default_factory=dict[str, bool])

    @property
    def met(self) -> str:
        """Whether the ego trained with it, in words; empty if that is not known."""
        return {True: "trained with", False: "never met", None: ""}[self.seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One evaluation on held-out episodes after ``step`` environment steps of training.

    ``n_success`` is None for a task without a success predicate.
    """

    step: int
    n_episodes: int
    n_success: int | None = None
    mean_return: float | None = None

    @property
    def success_rate(self) -> float | None:
        """Share of solved episodes, if the task says when one is."""
        return None if self.n_success is None else self.n_success / self.n_episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """Training returns of one run, at the environment steps at which episodes ended, ascending.

    ``window`` episodes are in the moving mean.
    """

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    window: int = 50
    evaluations: tuple[EvaluationPoint, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One recorded episode, for the player; equal starts are shown side by side.

    Attributes:
        frames: Position of every robot at each time, m; at least one frame, the start.
        goals: Goal of every robot that has one, m.
        contact_index: First frame at which the ego touches someone or a wall, if any.
        pick: How the start was chosen, one of the view's ``picks``.
        alike: How many starts end like this one, e.g. ``"31 of 50 starts"``.
        interventions: Size of the filter's change on the step that leads to each frame, in the unit
            of the action; empty without a filter, else as long as ``frames`` (first entry 0).
        obstacles: What stands around, as the entries of a map file (`cadenza.safety.maps`).
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
    pick: str
    alike: str
    interventions: tuple[float, ...] = ()
    obstacles: Sequence[Mapping[str, Any]] = ()

    def walls(self) -> Obstacles:
        """Return what stands around.

        Raises:
            InputError: An entry is no shape of the plane.
        """
        return obstacles_of(self.obstacles, dim=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading of the page, with its anchor, its name in the navigation, and what is below it.

    ``fold`` are words that unfold its tables; empty shows them at once.
    """

    identity: str
    nav: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    player: bool = False
    fold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """Everything the report shows; partners and rows in display order.

    Attributes:
        verification: Checks of the bundle; empty when it was not verified.
        conditions: Conditions of one method, of which filtered is compared with unfiltered, or
            methods, best first.
        compared: What ``conditions`` are, as a heading.
        episodes: Every evaluation episode; each carries ``condition`` and ``partner``.
        has_success: Whether the task has a success predicate; otherwise returns are shown.
        success_meaning: What success means in this task, as the end of "Success means ...".
        contact_distance_m: Centre distance at which robots touch; None where there is no contact.
        control_timestep_s: Length of a control step; None shows no times to the goal.
        learning: One curve per training.
        rollouts: At most one per pick, partner and condition.
        picks: Ways in which recorded starts were chosen, in display order: name to rule, a sentence
            for the reader.
        tables: Further tables, e.g. the filter's settings.
        best_responses: Best responses to the partners, which scores are measured against.
        sections: Further parts of the page, after those of methods and partners.
        stress_limit: Peak force that the task allows, N.
        seed_kind: What a seed is: drawn to train a policy, or to choose starts.
    """

    title: str
    task: str
    statements: tuple[Statement, ...]
    provenance: tuple[Fact, ...]
    verification: tuple[Check, ...]
    conditions: tuple[ConditionView, ...]
    partners: tuple[PartnerView, ...]
    episodes: tuple[EpisodeResult, ...]
    compared: Literal["Condition", "Method"] = "Condition"
    subtitle: str = ""
    has_success: bool = True
    success_meaning: str = ""
    contact_distance_m: float | None = None
    ego_uid: str = "ego"
    learning: tuple[LearningCurve, ...] = ()
    control_timestep_s: float | None = None
    rollouts: tuple[Rollout, ...] = ()
    picks: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: tuple[Table, ...] = ()
    repro_command: str = ""
    best_responses: BestResponses | None = None
    sections: tuple[Section, ...] = ()
    stress_limit: float | None = None
    seed_kind: Literal["evaluation seed", "training seed"] = "evaluation seed"
    #: Filled in: the filtered condition and the one it is compared with, when both exist.
    treatment: ConditionView | None = field(init=False, default=None)
    baseline: ConditionView | None = field(init=False, default=None)

    @property
    def is_filtered(self) -> bool:
        """Whether a filter ran under any condition."""
        return any(condition.filtered for condition in self.conditions)

    @property
    def has_walls(self) -> bool:
        """Whether something stands around in a recorded episode."""
        return any(rollout.obstacles for rollout in self.rollouts)

    def __post_init__(self) -> None:
        conditions = _unique("conditions", [c.condition_id for c in self.conditions])
        partners = _unique("partners", [p.partner_id for p in self.partners])
        if len(conditions) > MAX_CONDITIONS:
            raise InputError(
                f"ReportView.conditions: expected at most {MAX_CONDITIONS}, got {len(conditions)}; "
                "write several reports."
            )
        for episode in self.episodes:
            _known("episodes", episode.condition, conditions, episode.partner, partners)
        for rollout in self.rollouts:
            _known("rollouts", rollout.condition_id, conditions, rollout.partner_id, partners)
        filtered = [c for c in self.conditions if c.filtered]
        unfiltered = [c for c in self.conditions if not c.filtered]
        if filtered and unfiltered:
            object.__setattr__(self, "treatment", filtered[0])
            object.__setattr__(self, "baseline", unfiltered[0])


def condition_css(view: ReportView) -> tuple[str, ...]:
    """Return the class of each condition.

    ``"on"`` is drawn filled, ``"off"`` hollow; several methods are ``"m m0"``, ``"m m1"`` and on.
    """
    if view.treatment is not None and len(view.conditions) == 2:
        return tuple("on" if c.filtered else "off" for c in view.conditions)
    if len(view.conditions) == 1:
        return ("on",)
    return tuple(f"m m{index}" for index in range(len(view.conditions)))


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


#: File beside a report that holds its recorded episodes.
RECORDINGS_NAME: Final = "recordings.json"
#: Most frames of all recorded episodes in it, and largest coordinate, m.
MAX_FRAMES, MAX_COORDINATE_M = 100_000, 1e6
#: Most shapes around a recorded episode.
MAX_SHAPES: Final = 1_000


class Recordings(Archive):
    """Recorded episodes of one policy, and how their starts were chosen; see `ReportView`."""

    schema_version: Literal[1] = 1
    policy_id: str
    picks: dict[str, str]
    contact_distance_m: float | None = Field(None, ge=0.0)
    rollouts: tuple[Rollout, ...]

    def shown_in(self, view: ReportView) -> ReportView:
        """Return ``view`` with these episodes.

        Raises:
            InputError: One is incomplete, or of another condition, partner or way to choose; or
                there is more than a page can show.
        """
        if sum(len(one.frames) for one in self.rollouts) > MAX_FRAMES:
            raise InputError(f"recordings: expected at most {MAX_FRAMES} frames, got more.")
        for one in self.rollouts:
            robots = {view.ego_uid, *(one.frames[0] if one.frames else ())}
            last = len(one.frames) - 1
            if (
                not one.frames
                or any(set(frame) != robots for frame in one.frames)
                or set(one.radii) != robots
                or not all(0.0 < radius < MAX_COORDINATE_M for radius in one.radii.values())
                or not all(map(_is_near, (*one.frames, one.goals)))
                or not one.control_timestep_s > 0.0
                or not 0 <= (one.contact_index or 0) <= last
                or len(one.interventions) not in (0, last + 1)
                or one.pick not in self.picks
                or len(one.obstacles) > MAX_SHAPES
            ):
                raise InputError(
                    f"recordings: expected whole episodes of {sorted(robots)}, got another at "
                    f"start {one.initial_state_seed}; write them again."
                )
            one.walls()
        return replace(
            view,
            rollouts=self.rollouts,
            picks=self.picks,
            contact_distance_m=self.contact_distance_m,
        )


def _is_near(points: Mapping[str, Point]) -> bool:
    return all(abs(x) < MAX_COORDINATE_M for point in points.values() for x in point)


class Extent(NamedTuple):
    """Part of the plane that every picture shows, m."""

    x_low: float
    y_low: float
    x_high: float
    y_high: float


def extent_of(rollouts: Sequence[Rollout]) -> Extent:
    """Return the smallest square that holds every robot and goal, with a small margin."""
    points: list[Point] = []
    for rollout in rollouts:
        for frame in (*rollout.frames, rollout.goals):
            points += frame.values()
    radius = max(r for rollout in rollouts for r in rollout.radii.values())
    xs, ys = [x for x, _ in points], [y for _, y in points]
    half = max(max(xs) - min(xs), max(ys) - min(ys)) / 2 + 1.3 * radius
    x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return Extent(x - half, y - half, x + half, y + half)


def robot_roles(rollout: Rollout, ego_uid: str) -> dict[str, str]:
    """Return ``"ego"``, ``"partner"`` or ``"other"`` for every robot, the ego first.

    The partner is the first robot that is not the ego; the rest are others.
    """
    rest = [uid for uid in rollout.frames[0] if uid != ego_uid]
    roles = {ego_uid: "ego"}
    for index, uid in enumerate(rest):
        roles[uid] = "partner" if index == 0 else "other"
    return roles


def ego_distances(rollout: Rollout, ego_uid: str) -> list[float]:
    """Return the distance from the ego to the nearest other robot at each frame, m."""
    distances: list[float] = []
    for frame in rollout.frames:
        ego = frame[ego_uid]
        others = [math.dist(ego, point) for uid, point in frame.items() if uid != ego_uid]
        distances.append(min(others, default=0.0))
    return distances


def wall_gaps(rollout: Rollout, ego_uid: str) -> list[float]:
    """Return the gap between the ego and the nearest wall at each frame, m; empty without walls."""
    walls = rollout.walls()
    if not len(walls):
        return []
    gaps, _ = walls.gaps(np.array([frame[ego_uid] for frame in rollout.frames]))
    return (gaps.min(axis=1) - rollout.radii[ego_uid]).tolist()


def outcome_text(rollout: Rollout) -> str:
    """Return how the episode ended, with the time."""
    step = rollout.control_timestep_s
    if rollout.contact_index is not None:
        return f"contact at {rollout.contact_index * step:.2f} s"
    end = (len(rollout.frames) - 1) * step
    return f"goal reached at {end:.2f} s" if rollout.success else f"not solved in {end:.2f} s"


def player_data(view: ReportView) -> Markup:
    """Return the player's data as JSON that is safe inside a script element.

    Positions are whole millimetres: finer than a pixel at any zoom the player offers.
    """
    data = {
        "contact": view.contact_distance_m,
        "conditions": [
            {"id": c.condition_id, "label": c.label, "css": css}
            for c, css in zip(view.conditions, condition_css(view), strict=True)
        ],
        "partners": [
            {"id": p.partner_id, "label": p.label}
            for p in view.partners
            if any(r.partner_id == p.partner_id for r in view.rollouts)
        ],
        "runs": [_run(rollout, view) for rollout in view.rollouts],
    }
    return script_json(data)


def script_json(data: Any) -> Markup:
    """Return ``data`` as JSON without any character that could end or open markup.

    Raises:
        ValueError: ``data`` holds NaN or infinity.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for mark, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("'", "\\u0027")):
        text = text.replace(mark, code)
    return Markup(text)  # noqa: S704 -- no markup character is left


def _run(rollout: Rollout, view: ReportView) -> dict[str, Any]:
    """Return one rollout in the player's form; those of one start share their extent."""
    shown = (rollout.pick, rollout.partner_id)
    extent = extent_of([r for r in view.rollouts if (r.pick, r.partner_id) == shown])
    return {
        "extent": extent,
        "p": rollout.partner_id,
        "c": rollout.condition_id,
        "pick": rollout.pick,
        "alike": rollout.alike,
        "seed": rollout.seed,
        "start": rollout.initial_state_seed,
        "dt": rollout.control_timestep_s,
        "robots": [
            {
                "uid": uid,
                "role": role,
                "r": rollout.radii[uid],
                "goal": list(rollout.goals[uid]) if uid in rollout.goals else None,
                "path": [_mm(value) for frame in rollout.frames for value in frame[uid]],
            }
            for uid, role in robot_roles(rollout, view.ego_uid).items()
        ],
        "walls": [
            [_mm(value) for value in corners.ravel()]
            for corners in outlines(rollout.walls(), extent)
        ],
        "d": [_mm(value) for value in ego_distances(rollout, view.ego_uid)],
        "w": [_mm(value) for value in wall_gaps(rollout, view.ego_uid)],
        "act": [round(value, 3) for value in rollout.interventions],
        "contact": rollout.contact_index,
        "end": outcome_text(rollout),
        "success": rollout.success,
    }


def _mm(value: float) -> int:
    """Return metres as whole millimetres."""
    return round(1000.0 * value)
