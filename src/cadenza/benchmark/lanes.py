"""Episodes side by side: an environment of N lanes, refilled as episodes end.

A lane plays what `cadenza.benchmark.episodes` plays alone: reset, act, filter, step, record. An
episode's bytes depend on its tag, task, policy, partner and filter alone, neither on the number of
lanes nor on the lane, the order or the neighbours, because
- every episode is prescribed (`EpisodeBatch.reset_rows`) and begins a run of its own in the filter,
- networks are computed on blocks of `BLOCK_ROWS` rows, the last one padded, and
- the filter decides at most `FILTER_ROWS` lanes in one pass.
Against the scalar loop, counts and flags are equal and numbers close: products and the filter round
otherwise, and rounding grows in closed loop. Conformal lambda, a step function, may differ more.

Axes:   N = lanes, two at least; A = action; P = partners that the filter watches.
Units:  as in `cadenza.benchmark.episodes`.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import (
    build_batched_safety_driver,
    build_env,
    build_partner,
    decides_in_lanes,
)
from cadenza.benchmark.episodes import (
    INTERVENTION_TOLERANCE,
    MAX_STEPS,
    EpisodeTag,
    Tally,
    Trajectory,
    episode_result,
    touches,
)
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, LanePolicy, ego_seat, lane_policy
from cadenza.benchmark.tasks import TaskSpec, get_task
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.types import Observation
from cadenza.evaluation.results import EpisodeResult
from cadenza.partners.interface import FrozenPartner, PartnerBase
from cadenza.safety.record import StepRecord

if TYPE_CHECKING:
    from cadenza.safety.batched.driver import BatchedSafetyDriver
    from cadenza.safety.batched.robot_driver import BatchedRobotDriver

#: Lanes unless told otherwise: below 64 the filter's fixed cost per step dominates.
DEFAULT_LANES: Final = 128
#: Fewest lanes: tasks build a scalar environment of one.
MIN_LANES: Final = 2
#: Lanes that the filter decides in one pass: the largest number whose bits depend on no neighbour.
FILTER_ROWS: Final = 128


def has_lanes(task: TaskSpec, env: EnvConfig, partner: PartnerConfig, safety: SafetyConfig) -> bool:
    """Return whether ``task`` can be played in lanes; builds and closes two of them.

    Raises:
        ConfigurationError: The filter has settings that are not for the robots of ``task``.
    """
    if not task.supports_batches:
        return False
    many = env.model_copy(update={"num_envs": MIN_LANES})
    with closing(build_env(many, root_seed=0, partner=partner)) as lanes:
        guarded = decides_in_lanes(lanes, safety)
        return guarded and callable(getattr(lanes, "reset_rows", None))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: holds live objects
class LaneWorld:
    """Everything that takes part in the episodes of one policy and one partner."""

    env: Any
    seat: EgoSeat
    partner_uid: str
    policy: LanePolicy
    partner: "PartnerBase | _PartnerPerLane"
    guard: "BatchedSafetyDriver | BatchedRobotDriver | None"
    has_success: bool

    @property
    def lanes(self) -> int:
        """N."""
        return self.env.num_envs


@contextmanager
def open_lanes(
    *,
    env: EnvConfig,
    partner: PartnerConfig,
    safety: SafetyConfig,
    lanes: int,
    make_policy: Callable[[EgoSeat], EgoPolicy],
    weights_sha256: str | None = None,
    root_seed: int = 0,
) -> Generator[LaneWorld]:
    """Yield a world of ``lanes`` lanes; without ``weights_sha256`` the partner's may be any."""
    many = env.model_copy(update={"num_envs": max(lanes, MIN_LANES)})
    with closing(build_env(many, root_seed=root_seed, partner=partner)) as live_env:
        seat = ego_seat(live_env, live_env.ego_uid)
        if partner.extra.get("uid") not in live_env.agent_uids:  # robots with names of their own
            seated = {**partner.extra, "uid": live_env.partner_uid}
            partner = partner.model_copy(update={"extra": seated})

        def made() -> FrozenPartner:
            return build_partner(partner, env=live_env, weights_sha256=weights_sha256)

        player = made()
        yield LaneWorld(
            env=live_env,
            seat=seat,
            partner_uid=live_env.partner_uid,
            policy=lane_policy(lambda: make_policy(seat), seat.uid),
            partner=player if isinstance(player, PartnerBase) else _PartnerPerLane(made),
            guard=build_batched_safety_driver(live_env, safety, max_rows=FILTER_ROWS),
            has_success=get_task(env.task).has_success,
        )


class _PartnerPerLane:
    """As many partners as there are lanes, for those that know one episode at a time."""

    def __init__(self, make: Callable[[], FrozenPartner]) -> None:
        self._make, self._partners = make, dict[int, Any]()

    @property
    def playing_ids(self) -> str:
        """Who plays every row."""
        return self._partners[0].spec.partner_id

    def reset(self, *, seed: int) -> None:
        """Nothing to do: `reset_row` starts each."""

    def verify_weights(self) -> None:
        """Nothing to do: each checks its own."""

    def reset_row(self, row: int, *, seed: int) -> None:
        """See `PartnerBase.reset_row`."""
        if row not in self._partners:
            self._partners[row] = self._make()
        self._partners[row].reset(seed=seed)

    def stratum_of(self, row: int) -> str | None:
        """See `PartnerBase.stratum_of`."""
        return getattr(self._partners[row], "stratum", None)

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the actions of all, (N, A)."""
        rows = sorted(self._partners)
        return np.stack([self._partners[row].act(observation_of(obs, row)) for row in rows])


def observation_of(obs: Observation, row: int) -> Observation:
    """Return what one lane sees."""
    agents = obs["agent"]
    return {"agent": {uid: {k: v[row] for k, v in agents[uid].items()} for uid in agents}}


class _Tallies(Tally):
    """`Tally` of every lane."""

    def add_lanes(self, reward: FloatArray, info: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Count one step; return where reward and distance are numbers, (N,)."""
        distance = np.asarray(info.get("min_distance", np.inf), dtype=np.float64)
        self.n_steps += 1
        self.episode_return += reward
        self.min_distance = np.minimum(self.min_distance, distance)
        self.min_wall_gap = np.minimum(self.min_wall_gap, info.get("wall_gap", np.inf))
        self.contact |= info.get("contact", False)
        self.wall_contact |= info.get("wall_contact", False)
        return np.isfinite(reward) & ~np.isnan(distance)


def intervention_sizes(nominal: NDArray[Any], executed: FloatArray, seat: EgoSeat) -> FloatArray:
    """Return `cadenza.benchmark.episodes.intervention_size` of every lane, (N,)."""
    clipped = np.minimum(np.maximum(nominal, seat.low), seat.high)
    sizes = np.zeros(len(clipped))
    for row in np.flatnonzero((clipped != executed).any(axis=1)).tolist():
        distance = math.dist(clipped[row].tolist(), executed[row].tolist())
        sizes[row] = distance if distance > INTERVENTION_TOLERANCE else 0.0
    return sizes


def play_lanes(world: LaneWorld, tags: Sequence[EpisodeTag]) -> Iterator[tuple[int, EpisodeResult]]:
    """Play the episodes of ``tags``, one policy's with one partner, each lane one at a time.

    Yields (index in ``tags``, record) in the order in which they end. Lanes for which there is no
    episode left play another one again, of which nothing is taken.

    Raises:
        InputError: An action, a reward or a distance is not a number, or the environment refuses
            an action; the message names the episode where it is known.
        NotReadyError: An episode did not end within `MAX_STEPS`.
    """
    yield from _Play(world, tags).run()


def record_in_lanes(
    world: LaneWorld, tag: EpisodeTag
) -> tuple[EpisodeResult, Trajectory, list[dict[str, NDArray[Any]]]]:
    """Play one episode; return its record, where everyone was, and the actions of each step.

    Where the environment cannot tell positions, the trajectory has no frames.
    """
    play = _Play(world, [tag], records=True)
    ((_, result),) = play.run()
    return result, play.trajectory(), play.actions


class _Play:
    """One run of `play_lanes`."""

    def __init__(
        self, world: LaneWorld, tags: Sequence[EpisodeTag], *, records: bool = False
    ) -> None:
        self._world, self._tags = world, tags
        self._next = 0  # first episode that no lane has begun
        self._playing = [0] * world.lanes  # index of the episode in each lane
        self._live = [False] * world.lanes  # whether its result is wanted
        self._tallies = _Tallies.of_lanes(world.lanes)
        self._record = StepRecord.of_lanes(world.lanes)
        self._records = records
        self.actions: list[dict[str, NDArray[Any]]] = []
        self._frames: list[dict[str, FloatArray]] = []
        self._interventions: list[float] = []
        self._contact_index: int | None = None

    def run(self) -> Iterator[tuple[int, EpisodeResult]]:
        """Play until every episode has ended."""
        world, first = self._world, self._tags[0].initial_state_seed
        world.partner.reset(seed=first)  # once per call: it checks the weights
        world.policy.reset(seed=first)
        obs = self._begin(range(world.lanes))
        self._look(0.0, {})
        while any(self._live):
            obs, info, ended, truncated = self._step(obs)
            rows = np.flatnonzero(ended).tolist()
            for row in rows:
                if self._live[row]:
                    yield self._playing[row], self._result(row, info, bool(truncated[row]))
            if rows and (self._next < len(self._tags) or any(self._live)):
                obs = self._begin(rows)
        world.partner.verify_weights()

    def _begin(self, rows: Sequence[int]) -> Observation:
        """Start the next episodes in ``rows``, or, where none is left, the last one again."""
        world = self._world
        for row in rows:
            self._live[row] = self._next < len(self._tags)
            self._playing[row] = min(self._next, len(self._tags) - 1)
            self._next += self._live[row]
            self._tallies.begin(row)
            self._record.begin(row)
        tags = [self._tags[self._playing[row]] for row in rows]
        seeds = [tag.initial_state_seed for tag in tags]
        obs = world.env.reset_rows(list(rows), seeds, [tag.seed for tag in tags])
        for row, seed in zip(rows, seeds, strict=True):
            world.partner.reset_row(row, seed=seed)
            world.policy.reset_row(row, seed=seed)
        if world.guard is not None:
            world.guard.begin_run_rows(rows, seeds)
        return obs

    def _step(
        self, obs: Observation
    ) -> tuple[Observation, Mapping[str, Any], NDArray[np.bool_], NDArray[np.bool_]]:
        """Advance every lane; return what it sees, info, who has ended, and who by the limit."""
        world = self._world
        action = world.policy.act_rows(obs["agent"][world.seat.uid]["state"])
        self._require(
            np.asarray(np.isfinite(action).all(axis=1)),
            "finite actions of the ego",
            "NaN or infinite ones",
        )
        partner_action = world.partner.act(obs)
        size = np.zeros(world.lanes)
        if world.guard is not None:
            step = world.guard.step(action, world.partner.playing_ids)
            size = intervention_sizes(world.guard.reachable(action), step.action, world.seat)
            self._record.observe(step.decision, size)
            action = step.action
        actions = {world.seat.uid: action, world.partner_uid: partner_action}
        obs, reward, terminated, truncated, info = world.env.step(actions)
        self._require(
            self._tallies.add_lanes(reward, info),
            "a finite reward and a distance from the environment",
            "others; its simulation has diverged",
        )
        ended = np.asarray(terminated | truncated)
        if int(self._tallies.n_steps.max()) >= MAX_STEPS and not ended.all():
            fine = np.asarray(ended | (self._tallies.n_steps < MAX_STEPS))
            self._require(fine, f"an end within {MAX_STEPS} steps", "none", error=NotReadyError)
        if self._records:
            self.actions.append({uid: values[0].copy() for uid, values in actions.items()})
            self._look(float(size[0]), info)
        return obs, info, ended, np.asarray(truncated & ~terminated)

    def _require(
        self,
        fine: NDArray[np.bool_],
        expected: str,
        got: str,
        *,
        error: type[InputError | NotReadyError] = InputError,
    ) -> None:
        """Raise for the first lane that is not ``fine``, by its episode."""
        if fine.all():
            return
        row = int(np.flatnonzero(~fine)[0])
        label, step = self._tags[self._playing[row]].label, int(self._tallies.n_steps[row])
        raise error(f"{label}, step {step}: expected {expected}, got {got}.")

    def _result(self, row: int, info: Mapping[str, Any], truncated: bool) -> EpisodeResult:
        world = self._world
        return episode_result(
            self._tags[self._playing[row]],
            self._tallies.lane(row),
            {name: values[row] for name, values in info.items()},
            truncated=truncated,
            record=None if world.guard is None else self._record.lane(row),
            control_timestep_s=None if world.guard is None else float(world.env.control_timestep),
            has_success=world.has_success,
            adapts=world.guard is not None and world.guard.lambda_bound is not None,
            stratum=world.partner.stratum_of(row),
        )

    def _look(self, intervention: float, info: Mapping[str, Any]) -> None:
        """Note where everyone in the first lane is."""
        positions = getattr(self._world.env, "robot_positions", None)
        if not self._records or positions is None:
            return
        self._frames.append({uid: points[0] for uid, points in positions().items()})
        self._interventions.append(intervention)
        if self._contact_index is None and np.atleast_1d(touches(info))[0]:
            self._contact_index = len(self._frames) - 1

    def trajectory(self) -> Trajectory:
        """Return where everyone was."""
        goals: dict[str, FloatArray] = getattr(self._world.env, "goal_positions", dict)()
        return Trajectory.of(
            self._world.env,
            self._frames,
            {name: points[0] for name, points in goals.items()},
            self._interventions if self._world.guard is not None else (),
            self._contact_index,
        )
