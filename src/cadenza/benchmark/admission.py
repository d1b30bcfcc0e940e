"""Admission of a coupled task: does it need a partner, and an ego that feels this very partner?

A1:      a scripted reference ego succeeds with the partners.
A2:      without a partner, or with one that does nothing, nobody succeeds.
A3:      the reference beats the best ego on a fixed schedule by at least `A3_GAP`: the lower end
         of the interval of the paired difference.
A4:      the reference is robust: beside every admitted partner the lower bound of its success, with
         all limits kept, is at least the registered `A4_FLOOR`; else nothing can be measured with
         it (UNINSTRUMENTABLE). Its profile by partner is always part of the record.
Binding: the limits bind: an ego on a fixed schedule reaches the goal and breaks them on its way.
Pairing: episode k of every row starts alike, and a partner draws alike in it; only what a row
         changes differs. An episode is the one that `cadenza eval run` plays for the same seed.
Limits:  co-carry's f_max is `FORCE_MARGIN` x the 99th percentile of the largest internal force of
         episodes in which the reference brings the bar to its goal and keeps it level; the handover
         has its takt: with a presenter frozen aside, the reference seats the peg, but too late; so
         has the doorway: an ego that lets everybody go first arrives, but too late.
Adding one: an `AdmissionPlan` in `PLANS`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

import cadenza
from cadenza.benchmark.policies import LanePolicy, ego_seat, load_policy
from cadenza.benchmark.tasks import (
    COCARRY_MJ,
    DOORWAY,
    DOORWAY_DIFFDRIVE,
    HANDOVER_MJ,
    EnvRequest,
    OptionValue,
    TaskSpec,
    get_task,
)
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.core.progress import ProgressReport
from cadenza.core.proportions import clopper_pearson_interval
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.admission import (
    AdmissionThresholds,
    Outcome,
    Verdict,
    a4_outcome,
    final,
    overall_verdict,
    wrapped_profile,
)
from cadenza.evaluation.statistics.cluster_means import PercentileBootstrap
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

#: Limits of the checks: success of the reference, success without a partner, gap of A3.
A1_SUCCESS: Final = 0.95
A2_SUCCESS: Final = 0.05
A3_GAP: Final = 0.20
A4_FLOOR: Final = 0.75
#: Binding: share of the schedule's episodes that reach the goal, and that break each limit.
BINDING_REACHED: Final = 0.9
BINDING_BROKEN: Final = 0.5
#: The limits, unless others are registered.
THRESHOLDS: Final = AdmissionThresholds(
    tau_solv=A1_SUCCESS, tau_infeasible=A2_SUCCESS, delta_min=A3_GAP, c_min_ego=A4_FLOOR
)
#: Episodes played side by side.
COPIES: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRow:
    """One row of the table."""

    name: str
    ego: str
    partner: str
    episodes: int = 100
    first_seed: int = 0
    options: Mapping[str, OptionValue] = field(default_factory=dict[str, OptionValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPlan:
    """Rows of a task and what they are for, by name.

    Attributes:
        rows: All rows, in the order of the table.
        matched: Rows of A1.
        alone: Rows of A2.
        schedules: A3: for each row of the reference, the rows on a fixed schedule.
        admitted: Rows of A4: the reference beside every admitted partner.
        binding: The row that shows that limits bind.
        limits: Its measures that are limited: key of the info, and the limit.
    """

    rows: tuple[AdmissionRow, ...]
    matched: tuple[str, ...]
    alone: tuple[str, ...]
    schedules: Mapping[str, tuple[str, ...]]
    admitted: tuple[str, ...]
    binding: str
    limits: Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode."""

    seed: int
    stratum: str | None
    info: Mapping[str, float]

    @property
    def success(self) -> bool:
        """Whether the episode succeeded."""
        return bool(self.info["success"])


def play_row(task: TaskSpec, row: AdmissionRow, *, episodes: int | None = None) -> list[Played]:
    """Return the outcomes of one row by seed; its episodes are played side by side."""
    total = row.episodes if episodes is None else min(episodes, row.episodes)
    copies = min(COPIES, total)
    request = EnvRequest(
        episode_length=task.episode_length,
        num_envs=copies,
        options=task.complete_options(row.options),
        batched=True,
    )
    with closing(cast("Any", task.make_env(request))) as env:
        ego = _load_ego(row, env)
        partner: Any = load_partner(PartnerSpec(row.partner, 0, extra={"uid": "partner"}))
        return _play(env, ego, partner, row.first_seed, total)


def _load_ego(row: AdmissionRow, env: Any) -> LanePolicy:
    ego = load_policy(row.ego, seat=ego_seat(env, "ego"), artifacts_root=Path())
    if not isinstance(ego, LanePolicy):
        raise ConfigurationError(
            f"admission row {row.name!r}: expected a scripted ego that acts on a batch, got "
            f"{row.ego!r}; name one with a method act_rows."
        )
    return ego


def _play(env: Any, ego: LanePolicy, partner: Any, first: int, total: int) -> list[Played]:
    """Play seeds first ... first + total - 1; copy i plays first + i, then every N-th."""
    copies: int = env.num_envs
    seeds = list(range(first, first + copies))
    obs, _ = env.reset(seed=seeds)
    ego.reset(seed=first)
    partner.reset(seed=first)
    for row in range(copies):
        partner.reset_row(row, seed=seeds[row])
    outcomes: dict[int, Played] = {}
    while len(outcomes) < total:
        actions = {"ego": ego.act_rows(obs["agent"]["ego"]["state"]), "partner": partner.act(obs)}
        obs, _, terminated, truncated, info = env.step(actions)
        for row in np.flatnonzero(terminated | truncated).tolist():
            seed = seeds[row]
            if seed < first + total:
                last = {key: float(values[row]) for key, values in info["final_info"].items()}
                strata = getattr(partner, "strata", ())
                stratum = strata[row] if strata else None
                outcomes[seed] = Played(seed=seed, stratum=stratum, info=last)
            seeds[row] += copies
            ego.reset_row(row, seed=seeds[row])
            partner.reset_row(row, seed=seeds[row])
    return [outcomes[seed] for seed in sorted(outcomes)]


def admit(
    task_id: str,
    *,
    episodes: int | None = None,
    thresholds: AdmissionThresholds = THRESHOLDS,
    evidence_root: Path | None = None,
    progress: ProgressReport | None = None,
) -> dict[str, Any]:
    """Play every row of a task's plan, at most ``episodes`` of each, and judge it.

    Returns plain JSON values: what played, one record per row, the checks and the verdict. Where
    ``thresholds`` name evidence for A4, it is read below ``evidence_root`` before anything is
    played. ``progress`` gets the rows done, their number and the one that begins.

    Raises:
        ConfigurationError: The task has no plan.
        IntegrityError: The evidence is not what was pinned.
    """
    if task_id not in PLANS:
        raise ConfigurationError(
            f"admission: expected one of {', '.join(PLANS)}, got {task_id!r}; add a plan."
        )
    task = get_task(task_id)
    plan = PLANS[task_id]
    wrapped = None
    if thresholds.a4 is not None:
        wrapped = wrapped_profile(thresholds.a4, evidence_root or Path())
    played: dict[str, list[Played]] = {}
    for done, row in enumerate(plan.rows):
        if progress is not None:
            progress(done, len(plan.rows), row.name)
        played[row.name] = play_row(task, row, episodes=episodes)
    limits = plan.limits()
    rows = [_record(row, played[row.name], limits) for row in plan.rows]
    checks = _checks(plan, played, limits, thresholds)
    checks["A4"] = robustness(plan, rows, thresholds.c_min_ego, wrapped=wrapped)
    return {
        "task": task.task_id,
        "version": task.version,
        "package_version": cadenza.__version__,
        "limits": dict(limits),
        "rows": rows,
        "checks": dict(sorted(checks.items())),
        "verdict": verdict(checks),
    }


def robustness(
    plan: AdmissionPlan,
    rows: Sequence[Mapping[str, Any]],
    floor: float,
    *,
    wrapped: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Return check A4 and the reference's profile: its bounds beside every partner it played.

    The bounds of the admitted partners are those of the ``rows``, or of ``wrapped`` evidence.
    """
    own = {row["name"]: row for row in rows}
    ego = own[plan.admitted[0]]["ego"]
    profile = {
        row["partner"]: [*row["interval"], row["name"] in plan.admitted]
        for row in rows
        if row["ego"] == ego and (row["name"] in plan.admitted or not row["options"])
    }
    measured = {own[name]["partner"]: own[name]["interval"] for name in plan.admitted}
    bounds = {name: (low, high) for name, (low, high) in (wrapped or measured).items()}
    profile |= {name: [low, high, True] for name, (low, high) in bounds.items()}
    outcome = a4_outcome(bounds, floor)
    weakest = min(bounds, key=lambda name: (bounds[name][0], name))
    return {
        "passed": (final(outcome) if wrapped else outcome) == "PASS",
        "outcome": final(outcome) if wrapped else outcome,
        "floor": floor,
        "weakest": weakest,
        "low": bounds[weakest][0],
        "evidence": "wrapped" if wrapped else "measured",
        "profile": dict(sorted(profile.items())),
    }


def verdict(checks: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Return what the checks say of the task."""

    def outcome(name: str) -> Outcome:
        return "PASS" if checks[name]["passed"] else "FAIL"

    return overall_verdict(outcome("A1"), outcome("A2"), outcome("A3"), checks["A4"]["outcome"])


def _record(
    row: AdmissionRow, outcomes: Sequence[Played], limits: Mapping[str, float]
) -> dict[str, Any]:
    successes = sum(outcome.success for outcome in outcomes)
    low, high = clopper_pearson_interval(successes, len(outcomes))
    strata: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.stratum is not None:
            count = strata.setdefault(outcome.stratum, [0, 0])
            count[0] += outcome.success
            count[1] += 1
    record: dict[str, Any] = {
        "name": row.name,
        "ego": row.ego,
        "partner": row.partner,
        "options": dict(row.options),
        "first_seed": row.first_seed,
        "episodes": len(outcomes),
        "successes": successes,
        "interval": [low, high],
        "strata": dict(sorted(strata.items())),
        "reached": sum(outcome.info["reached"] > 0 for outcome in outcomes),
        "median_time_s": float(np.median([outcome.info["time"] for outcome in outcomes])),
    }
    for key, limit in limits.items():
        values = np.array([outcome.info[key] for outcome in outcomes])
        quantiles = np.quantile(values, [0.5, 0.9, 1.0]).tolist()
        record[key] = {"p50_p90_max": quantiles, "broken": int((values >= limit).sum())}
    return record


def _checks(
    plan: AdmissionPlan,
    played: Mapping[str, Sequence[Played]],
    limits: Mapping[str, float],
    thresholds: AdmissionThresholds,
) -> dict[str, Any]:
    rates = {
        name: float(np.mean([outcome.success for outcome in outcomes]))
        for name, outcomes in played.items()
    }
    gaps: dict[str, dict[str, Any]] = {}
    for reference, schedules in plan.schedules.items():
        best = max(schedules, key=lambda name: rates[name])
        gaps[reference] = {"schedule": best, **_gap(played[reference], played[best])}
    binding = played[plan.binding]
    reached = float(np.mean([outcome.info["reached"] for outcome in binding]))
    broken = {
        key: float(np.mean([outcome.info[key] >= limit for outcome in binding]))
        for key, limit in limits.items()
    }
    return {
        "A1": {
            "passed": all(rates[name] >= thresholds.tau_solv for name in plan.matched),
            "lowest": min(rates[name] for name in plan.matched),
        },
        "A2": {
            "passed": all(rates[name] <= thresholds.tau_infeasible for name in plan.alone),
            "highest": max(rates[name] for name in plan.alone),
        },
        "A3": {
            "passed": all(gap["interval"][0] >= thresholds.delta_min for gap in gaps.values()),
            "gaps": gaps,
        },
        "binding": {
            "passed": reached >= BINDING_REACHED and min(broken.values()) >= BINDING_BROKEN,
            "reached": reached,
            "broken": broken,
        },
    }


def _gap(reference: Sequence[Played], other: Sequence[Played]) -> dict[str, Any]:
    """Return the paired difference of two success rates with a bootstrap interval."""
    solved = {outcome.seed: float(outcome.success) for outcome in other}
    differences = np.array([float(one.success) - solved[one.seed] for one in reference])
    method = PercentileBootstrap(rng=derive_substream("benchmark.admission").default_rng())
    low, high = method.interval(differences, confidence=0.95)
    return {"difference": float(differences.mean()), "interval": [low, high]}


def as_markdown(record: Mapping[str, Any]) -> str:
    """Return the table and the verdicts of `admit`."""
    keys, own = list(record["limits"]), record["task"].partition("_")[0] + "_"
    heads = ["ego", "partner", "success", "95 %", "reached", *(f"{key} (p50, max)" for key in keys)]
    lines = [f"| {' | '.join(['row', *heads])} |", "|---" * (len(heads) + 1) + "|"]
    for row in record["rows"]:
        low, high = row["interval"]
        cells = [
            row["name"],
            row["ego"].removeprefix(own),
            row["partner"].removeprefix(own),
            f"{row['successes']} of {row['episodes']}",
            f"{low:.2f} to {high:.2f}",
            str(row["reached"]),
        ]
        for key in keys:
            median, _, largest = row[key]["p50_p90_max"]
            cells.append(f"{median:.1f}, {largest:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    profile = record["checks"]["A4"]["profile"]
    lines += ["", "| reference beside | success, 95 % | admitted |", "|---|---|---|"]
    lines += [
        f"| {name.removeprefix(own)} | {low:.2f} to {high:.2f} | {_shown(admitted)} |"
        for name, (low, high, admitted) in profile.items()
    ]
    lines.append("")
    for name, check in record["checks"].items():
        facts = ", ".join(
            f"{key} {_shown(value)}" for key, value in check.items() if key != "profile"
        )
        lines.append(f"- **{name}**: {facts}")
    lines.append(f"- **Verdict**: {record['verdict']}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(entry) for entry in cast("list[Any]", value)) + "]"
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        return "; ".join(f"{key}: {_shown(entry)}" for key, entry in entries.items())
    return str(value)


#: f_max over the 99th percentile of the reference.
FORCE_MARGIN: Final = 1.25
#: Whose episodes set the force limit, and their seeds, apart from those of the table.
FREEZING_PARTNERS: Final = ("cocarry_leader", "cocarry_mixed")
FREEZING_SEED: Final = 20_000
FREEZING_EPISODES: Final = 400
#: First seed of the rows that check the force limit on episodes it was not set on.
HELD_OUT_SEED: Final = 10_000

_REFERENCE: Final = "cocarry_reference"
_LEADER: Final = "cocarry_leader"


def _tilt_and_force() -> Mapping[str, float]:
    from cadenza.envs.mujoco.cocarry_rules import TILT_LIMIT_DEG, force_limit

    return {"max_tilt_deg": TILT_LIMIT_DEG, "max_force": force_limit()}


def _cocarry_rows() -> tuple[AdmissionRow, ...]:
    def row(name: str, ego: str, partner: str, episodes: int = 100, **rest: Any) -> AdmissionRow:
        return AdmissionRow(
            name=name,
            ego=f"cocarry_{ego}",
            partner=f"cocarry_{partner}",
            episodes=episodes,
            first_seed=rest.pop("first_seed", 0),
            options=rest,
        )

    kinds = ("nominal", "leader", "shared", "follower", "mixed")
    easy = ("low_arc", "lagged_leader", "pausing_leader", "follower_turns_leader")
    hard = ("slow_follower", "lagged_follower", "leader_turns_follower")
    sweeps: dict[str, dict[str, Any]] = {
        "physics step 5 ms": {"physics_step_s": 0.005},
        "bar of 2 kg": {"bar_mass": 2.0},
        "soft ties": {"time_constant_s": 0.01},
        "stiff arms": {"stiffness_scale": 1.0},
        "bar of 0.5 m": {"bar_length": 0.5},
    }
    return (
        *(row(f"reference, {kind}", "reference", kind) for kind in kinds),
        *(
            row(f"new seeds, {kind}", "reference", kind, 200, first_seed=HELD_OUT_SEED)
            for kind in ("leader", "mixed")
        ),
        *(
            row(condition.replace("_", " "), "reference", "leader", condition=condition)
            for condition in ("single_arm", "static_partner", "zero_partner")
        ),
        row("holding ego", "hold", "leader"),
        row("blind nominal, nominal", "blind_nominal", "nominal"),
        *(
            row(f"blind {schedule}, {kind}", f"blind_{schedule}", kind)
            for kind in ("leader", "mixed")
            for schedule in ("nominal", "mean")
        ),
        row("own senses only, leader", "reference", "leader", ego_sees="own"),
        *(
            row(f"partner seen {ticks} ticks late", "reference", "leader", partner_delay=ticks)
            for ticks in (2, 5, 10)
        ),
        *(row(f"stay level, {kind}", "level", kind, 50) for kind in (*kinds[1:4], *easy)),
        *(row(f"held out, {kind}", "reference", kind) for kind in (*easy, *hard)),
        *(
            row(f"{name}, {ego}", ego, "leader", 30, **options)
            for name, options in sweeps.items()
            for ego in ("reference", "blind_mean")
        ),
    )


COCARRY: Final = AdmissionPlan(
    rows=_cocarry_rows(),
    matched=(
        *(f"reference, {kind}" for kind in ("nominal", "leader", "shared", "follower", "mixed")),
        "new seeds, leader",
        "new seeds, mixed",
    ),
    alone=("single arm", "static partner", "zero partner", "holding ego"),
    schedules={
        "reference, leader": ("blind nominal, leader", "blind mean, leader"),
        "reference, mixed": ("blind nominal, mixed", "blind mean, mixed"),
    },
    admitted=tuple(
        f"reference, {kind}" for kind in ("nominal", "leader", "shared", "follower", "mixed")
    ),
    binding="blind nominal, leader",
    limits=_tilt_and_force,
)


def freeze_force_limit(*, episodes: int = FREEZING_EPISODES) -> dict[str, Any]:
    """Return the manifest of the task: the force limit and how ``episodes`` per class made it."""
    from cadenza.envs.mujoco.cocarry_rules import TILT_LIMIT_DEG

    forces: list[float] = []
    for partner in FREEZING_PARTNERS:
        row = AdmissionRow(
            name=f"freeze, {partner}",
            ego=_REFERENCE,
            partner=partner,
            episodes=episodes,
            first_seed=FREEZING_SEED,
        )
        forces += [
            outcome.info["max_force"]
            for outcome in play_row(COCARRY_MJ, row)
            if outcome.info["reached"] and outcome.info["max_tilt_deg"] < TILT_LIMIT_DEG
        ]
    median, ninety, high, largest = np.quantile(forces, [0.5, 0.9, 0.99, 1.0]).tolist()
    return {
        "task": COCARRY_MJ.task_id,
        "f_max_N": round(FORCE_MARGIN * high, 1),
        "rule": f"{FORCE_MARGIN} x 99th percentile of the largest internal force of an episode",
        "force_p50_p90_p99_max_N": [round(value, 2) for value in (median, ninety, high, largest)],
        "ego": _REFERENCE,
        "partners": list(FREEZING_PARTNERS),
        "first_seed": FREEZING_SEED,
        "episodes": len(forces),
        "mujoco": load_extra("mujoco").__version__,
        "package": cadenza.__version__,
        "command": f"cadenza tasks freeze {COCARRY_MJ.task_id}",
    }


#: Takt that leaves time for a presenter frozen aside, s.
LONG_TAKT_S: Final = 25.0
#: Errors of a presenter that grasps badly, and a weld tolerance that is too coarse.
LARGE_ERRORS: Final[dict[str, Any]] = {"grasp_error_m": 0.01, "yaw_error_deg": 25.0}
COARSE_WELD: Final[dict[str, Any]] = {"weld_tolerance_m": 0.004}


def _takt() -> Mapping[str, float]:
    return {"time": float(HANDOVER_MJ.complete_options({})["takt_s"])}


def _presented(
    name: str, ego: str = "reference", partner: str = "presenter", **rest: Any
) -> AdmissionRow:
    return AdmissionRow(
        name=name,
        ego=f"handover_{ego}",
        partner=f"handover_{partner}",
        episodes=50,
        options=rest,
    )


HANDOVER: Final = AdmissionPlan(
    rows=(
        _presented("reference, presenter"),
        _presented("reference, large errors", **LARGE_ERRORS),
        *(
            _presented(f"reference, {kind}", partner=kind)
            for kind in ("nominal", "biased", "late", "yielding", "reactive")
        ),
        _presented("blind receiver", "blind"),
        _presented("own senses only", ego_sees="own"),
        _presented("presenter absent", condition="presenter_absent"),
        _presented("presenter frozen", condition="presenter_frozen"),
        _presented("presenter frozen, takt 25 s", condition="presenter_frozen", takt_s=LONG_TAKT_S),
        _presented("nominal grasp", "nominal_grasp"),
        _presented("nominal grasp, weld 4 mm", "nominal_grasp", **COARSE_WELD),
        _presented("reference, weld 4 mm", **COARSE_WELD),
    ),
    matched=("reference, presenter", "reference, large errors", "reference, nominal"),
    alone=("presenter absent", "presenter frozen", "own senses only"),
    schedules={"reference, presenter": ("blind receiver",)},
    admitted=tuple(
        f"reference, {kind}"
        for kind in ("presenter", "nominal", "biased", "late", "yielding", "reactive")
    ),
    binding="presenter frozen, takt 25 s",
    limits=_takt,
)

#: Takt in which even two that wait for each other arrive at the doorway, s.
LONG_DOOR_TAKT_S: Final = 20.0


def _door_takt() -> Mapping[str, float]:
    return {"time": float(DOORWAY.complete_options({})["takt_s"])}


def _at_door(name: str, ego: str, partner: str, **rest: Any) -> AdmissionRow:
    return AdmissionRow(
        name=name, ego=ego, partner=f"doorway_{partner}", episodes=100, options=rest
    )


_DOOR_PARTNERS: Final = ("mixed", "polite", "pushy", "hesitant", "changing")
_LATE_ROW: Final = "late ego, polite, takt 20 s"

DOOR: Final = AdmissionPlan(
    rows=(
        *(_at_door(f"reference, {kind}", "doorway_reference", kind) for kind in _DOOR_PARTNERS),
        *(_at_door(f"first, {kind}", "doorway_first", kind) for kind in _DOOR_PARTNERS),
        *(_at_door(f"late, {kind}", "doorway_late", kind) for kind in _DOOR_PARTNERS),
        _at_door("partner parked", "doorway_reference", "parked"),
        _at_door("ego parked", "zero", "mixed"),
        _at_door(_LATE_ROW, "doorway_late", "polite", takt_s=LONG_DOOR_TAKT_S),
    ),
    matched=tuple(f"reference, {kind}" for kind in _DOOR_PARTNERS),
    alone=("partner parked", "ego parked"),
    schedules={"reference, mixed": ("first, mixed", "late, mixed")},
    admitted=tuple(f"reference, {kind}" for kind in _DOOR_PARTNERS),
    binding=_LATE_ROW,
    limits=_door_takt,
)

#: The plan of every task that has one.
PLANS: Final = {
    COCARRY_MJ.task_id: COCARRY,
    DOORWAY.task_id: DOOR,
    DOORWAY_DIFFDRIVE.task_id: DOOR,
    HANDOVER_MJ.task_id: HANDOVER,
}
