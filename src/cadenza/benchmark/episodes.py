"""One evaluation episode: who takes part, then reset, act, filter, step, record.

Pairing:   the start depends on ``initial_state_seed`` alone, so every condition and partner meets
           the same starts; partner, policy and filter begin each episode afresh, so no episode
           depends on the ones before it.
Units:     m, m/s, m/s^2, s; interventions in the unit of the action.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.aht.types import playing_ids_of
from cadenza.benchmark.builders import build_env, build_partner, build_safety_driver
from cadenza.benchmark.ego_link import EgoLink, LinkConfig
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, ego_seat
from cadenza.benchmark.tasks import get_task
from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.types import EnvLike, PartnerLike
from cadenza.evaluation.results import EpisodeResult, SafetyRecord
from cadenza.safety.geometry import Obstacles
from cadenza.safety.record import Figure, Figures, StepRecord
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.env_hooks import hook
from cadenza.safety.runtime.robot_driver import RobotDriver
from cadenza.safety.snapshot import AgentBatch

#: Longest episode we accept, control steps: an environment that never ends is an error.
MAX_STEPS: Final = 100_000
#: Changes of an action below this are rounding of float32 bounds, not interventions.
INTERVENTION_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTag:
    """What an episode is called in the results."""

    seed: int
    episode_idx: int
    initial_state_seed: int
    policy: str
    condition: str
    partner: str

    @property
    def label(self) -> str:
        """Name of the episode for people."""
        return (
            f"episode {self.episode_idx} of seed {self.seed} "
            f"(initial_state_seed {self.initial_state_seed})"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: holds live objects
class EpisodeWorld:
    """Everything that takes part in an episode.

    Without a ``guard`` the policy's actions are executed as they are, without its
    ``control_timestep_s`` nothing about its assumptions is recorded, without a ``link`` the ego
    sees the truth.
    """

    env: EnvLike
    seat: EgoSeat
    partner_uid: str
    policy: EgoPolicy
    partner: PartnerLike
    guard: SafetyDriver | RobotDriver | None
    has_success: bool = True
    control_timestep_s: float | None = None
    link: EgoLink | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class Trajectory:
    """Where everyone was, for pictures.

    Attributes:
        frames: Positions by robot, shape (2,) each, m: the start, then one entry per step.
        goals: Goal by robot or name, shape (2,), m.
        interventions: Size of the filter's change on the step that leads to each frame, first
            entry 0; empty without a filter.
        contact_index: First frame at which the ego touches someone or a wall, if any.
        control_timestep_s: Time from one frame to the next, s.
        radii: Radius of every robot, m; empty where the environment does not tell.
        obstacles: What stands around.
    """

    frames: tuple[Mapping[str, FloatArray], ...]
    goals: Mapping[str, FloatArray]
    interventions: tuple[float, ...]
    contact_index: int | None
    control_timestep_s: float
    radii: Mapping[str, float]
    obstacles: Obstacles

    @classmethod
    def of(
        cls,
        env: Any,
        frames: Sequence[Mapping[str, FloatArray]],
        goals: Mapping[str, FloatArray],
        interventions: Sequence[float],
        contact_index: int | None,
    ) -> Self:
        """Return what was seen in ``env``, with what it tells of its robots and walls."""
        radii: dict[str, float] = {}
        if hasattr(env, "build_agent_batch"):
            batch: AgentBatch = env.build_agent_batch()
            radii = dict(zip(batch.uids, batch.radii.tolist(), strict=True))
        elif hasattr(env, "build_agent_snapshots"):
            radii = {uid: float(s.radius) for uid, s in env.build_agent_snapshots().items()}
        return cls(
            frames=tuple(frames),
            goals=goals,
            interventions=tuple(interventions),
            contact_index=contact_index,
            control_timestep_s=float(env.control_timestep),
            radii=radii,
            obstacles=Obstacles(()).joined(getattr(env, "build_obstacles", tuple)()),
        )


def touches(info: Mapping[str, Any]) -> Any:
    """Return whether the ego touches someone or a wall, by lane if ``info`` is of a batch."""
    return np.logical_or(info.get("contact", False), info.get("wall_contact", False))


@dataclass(slots=True)
class Tally(Figures):
    """Figures of one episode so far, the filter's aside; of a batch, one per lane, (N,)."""

    n_steps: Figure = 0
    episode_return: Figure = 0.0
    min_distance: Figure = float("inf")
    min_wall_gap: Figure = float("inf")
    contact: Figure = False
    wall_contact: Figure = False

    def add_step(self, reward: float, info: Mapping[str, Any]) -> None:
        """Count one step.

        Raises:
            InputError: The reward is NaN or infinite, or the distance is NaN.
        """
        self.n_steps += 1
        distance = float(info.get("min_distance", np.inf))
        if not math.isfinite(reward) or math.isnan(distance):
            raise InputError(
                f"step {self.n_steps} of an episode: expected a finite reward and a distance from "
                f"the environment, got {reward} and {distance}; its simulation has diverged."
            )
        self.episode_return += float(reward)
        self.min_distance = min(self.min_distance, distance)
        self.min_wall_gap = min(self.min_wall_gap, float(info.get("wall_gap", np.inf)))
        self.contact = self.contact or bool(info.get("contact", False))
        self.wall_contact = self.wall_contact or bool(info.get("wall_contact", False))


@dataclass(slots=True)
class _Recorder:
    """Positions seen so far."""

    env: Any
    frames: list[Mapping[str, FloatArray]] = field(default_factory=list[Mapping[str, FloatArray]])
    interventions: list[float] = field(default_factory=list[float])
    contact_index: int | None = None

    def record(self, intervention: float, info: Mapping[str, Any]) -> None:
        self.frames.append(self.env.robot_positions())
        self.interventions.append(intervention)
        if self.contact_index is None and touches(info):
            self.contact_index = len(self.frames) - 1

    def trajectory(self, *, filtered: bool) -> Trajectory:
        return Trajectory.of(
            self.env,
            self.frames,
            self.env.goal_positions(),
            self.interventions if filtered else (),
            self.contact_index,
        )


def run_episode(world: EpisodeWorld, tag: EpisodeTag) -> EpisodeResult:
    """Play one episode and return its record.

    Raises:
        InputError: The policy's action is not finite, or the environment refuses it.
        NotReadyError: The episode did not end within `MAX_STEPS`.
    """
    return _play(world, tag, recorder=None)


def record_episode(world: EpisodeWorld, tag: EpisodeTag) -> tuple[EpisodeResult, Trajectory]:
    """Play one episode and return its record and where everyone was; errors as `run_episode`."""
    recorder = _Recorder(world.env)
    result = _play(world, tag, recorder=recorder)
    return result, recorder.trajectory(filtered=world.guard is not None)


def _play(world: EpisodeWorld, tag: EpisodeTag, *, recorder: _Recorder | None) -> EpisodeResult:
    obs, info = _begin(world, tag.initial_state_seed)
    link = world.link
    seen = obs if link is None else link.begin(tag.initial_state_seed, obs)
    if recorder is not None:
        recorder.record(0.0, info)
    tally, record = Tally(), StepRecord()
    terminated = truncated = False
    while not (terminated or truncated):
        if tally.n_steps >= MAX_STEPS:
            raise NotReadyError(
                f"run_episode: expected an end within {MAX_STEPS} steps, got none; set the "
                "environment's episode_length."
            )
        action = world.policy.act(seen)
        require_finite("ego action", action)
        partner_action = world.partner.act(obs)
        intervention = 0.0
        if world.guard is not None:
            step = world.guard.step(action, partner_id=playing_id(world.partner))
            wanted = world.guard.reachable(action)
            intervention = intervention_size(wanted, step.action, world.seat)
            record.observe(step.decision(world.seat.uid), intervention)
            action = step.action
        obs, reward, terminated, truncated, info = world.env.step(
            {world.seat.uid: action, world.partner_uid: partner_action}
        )
        seen = obs if link is None else link.observe(obs)
        tally.add_step(reward, info)
        if recorder is not None:
            recorder.record(intervention, info)
    return episode_result(
        tag,
        tally,
        info,
        truncated=truncated and not terminated,
        record=None if world.guard is None else record,
        control_timestep_s=world.control_timestep_s,
        has_success=world.has_success,
        adapts=world.guard is not None and world.guard.lambda_bound is not None,
        stratum=getattr(world.partner, "stratum", None),
        link=None if link is None else link.record(),
    )


def playing_id(partner: PartnerLike) -> str | None:
    """Return who plays now; the filter's adaptation begins anew where it changes."""
    ids = playing_ids_of(partner, 1)
    return ids[0] if isinstance(ids, list) else ids


def intervention_size(nominal: NDArray[Any], executed: FloatArray, seat: EgoSeat) -> float:
    """Return how far the filter moved the action from the one the environment would have executed.

    The environment clips every action to the seat's bounds, so clipping is not an intervention.
    The distance is Euclidean, in the unit of the action; 0 below `INTERVENTION_TOLERANCE`.
    """
    clipped = np.minimum(np.maximum(nominal, seat.low), seat.high)
    distance = math.dist(clipped.tolist(), executed.tolist())
    return distance if distance > INTERVENTION_TOLERANCE else 0.0


def _begin(world: EpisodeWorld, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    obs, info = world.env.reset(seed=seed)
    world.partner.reset(seed=seed)
    world.policy.reset(seed=seed)
    if world.guard is not None:
        world.guard.begin_run(seed)
        world.guard.begin_episode()
    return obs, info


def episode_result(
    tag: EpisodeTag,
    tally: Tally,
    info: Mapping[str, Any],
    *,
    truncated: bool,
    record: StepRecord | None,
    control_timestep_s: float | None,
    has_success: bool,
    adapts: bool = True,
    stratum: str | None = None,
    link: Mapping[str, float] | None = None,
) -> EpisodeResult:
    """Return the record of an episode that ended with ``info``.

    ``record`` is of its filtered steps, None without a filter, which ``adapts`` lambda or has none;
    without ``control_timestep_s`` nothing about the filter's assumptions is stored.
    """
    steps, filtered = record or StepRecord(), record is not None
    distance = info.get("goal_distance")
    metadata: dict[str, JsonValue] = {"policy": tag.policy}
    if link is not None:
        metadata["link"] = dict(link)
    if stratum is not None:
        metadata["stratum"] = stratum
    return EpisodeResult(
        seed=tag.seed,
        episode_idx=tag.episode_idx,
        initial_state_seed=tag.initial_state_seed,
        condition=tag.condition,
        partner=tag.partner,
        metadata=metadata,
        success=has_success and bool(info["success"]),
        n_steps=tally.n_steps,
        truncated=truncated,
        episode_return=tally.episode_return,
        contact=tally.contact if "contact" in info else None,
        wall_contact=tally.wall_contact if "wall_contact" in info else None,
        force_peak=float(info["max_force"]) if "max_force" in info else None,
        min_distance_m=tally.min_distance if np.isfinite(tally.min_distance) else None,
        min_wall_gap_m=tally.min_wall_gap if np.isfinite(tally.min_wall_gap) else None,
        goal_distance_m=None if distance is None else float(distance),
        constraint_violation_peak=steps.max_violation,
        fallback_fired=steps.braked,
        violating_steps=steps.violating if filtered else None,
        interventions=steps.changed if filtered else None,
        intervention_mean=steps.change_mean if filtered else None,
        intervention_peak=steps.max_change if filtered else None,
        infeasible_steps=steps.infeasible if filtered else None,
        uncertified_steps=steps.uncertified if filtered else None,
        static_uncertified_steps=steps.static_uncertified
        if math.isfinite(steps.min_static_margin)
        else None,
        safety=safety_record(steps, control_timestep_s, adapts=adapts)
        if filtered and control_timestep_s
        else None,
    )


def safety_record(
    record: StepRecord, control_timestep_s: float, *, adapts: bool = True
) -> SafetyRecord:
    """Return what an archive keeps of the filter's assumptions; lambda if it ``adapts``.

    Partners' accelerations are measured between two steps: what follows the last is not seen.
    """
    return SafetyRecord(
        control_timestep_s=control_timestep_s,
        overlapping_steps=record.overlapping,
        accel_checks=max(0, record.steps - 1),
        accel_breaches=record.partner_breaches,
        lambda_mean=record.lambda_mean if adapts else None,
        lambda_var=record.lambda_var if adapts else None,
        slack_peak=record.max_slack,
        brake_reasons=dict(sorted(record.reasons.items())),
        ego_breaches=record.ego_breaches or None,
    )


@contextmanager
def open_world(
    *,
    env: EnvConfig,
    partner: PartnerConfig,
    safety: SafetyConfig,
    root_seed: int,
    make_policy: Callable[[EgoSeat], EgoPolicy],
    link: LinkConfig | None = None,
    weights_sha256: str | None = None,
) -> Generator[EpisodeWorld]:
    """Yield a world whose safety driver watches the very environment that is stepped.

    Without a ``link`` the ego sees the truth; without ``weights_sha256`` the partner's weights may
    be any.
    """
    live_env = build_env(env, root_seed=root_seed, partner=partner)
    with closing(live_env):
        seat = ego_seat(live_env, live_env.ego_uid)
        if partner.extra.get("uid") not in live_env.agent_uids:  # robots with names of their own
            seated = {**partner.extra, "uid": live_env.partner_uid}
            partner = partner.model_copy(update={"extra": seated})
        ego_link = None if link is None else EgoLink(live_env, link)
        yield EpisodeWorld(
            env=live_env,
            seat=seat,
            partner_uid=live_env.partner_uid,
            policy=make_policy(seat),
            partner=build_partner(partner, env=live_env, weights_sha256=weights_sha256),
            guard=build_safety_driver(live_env, safety, link=ego_link),
            has_success=get_task(env.task).has_success,
            control_timestep_s=hook(live_env, "control_timestep") if safety.enabled else None,
            link=ego_link,
        )
