"""The tasks as streams: their worlds, scripted egos, and ready-made settings of the data engine.

`stream_config` names environment, partners and expert by import path, so that producers, which are
processes of their own, build them. The stream shows the ego alone: ``obs`` is its state, (D,),
``actions`` what it executed, (A,), after the safety filter.

Worlds:   row i of E plays the episodes s + i + e d, e = 0, 1, ..., of the task, s from ``reset``,
          d the batch's ``stride``, E unless it was set.
          In the episode k the stream ``benchmark.stream.<uid>`` under root k chooses who drives
          seat ``uid``; the partner's seat begins with seed k, a background robot with
          `background_seed`. So k and the experiment seed repeat an episode in a scalar
          environment to the last bit.
swerve:   a = goal pull + sum over the other robots i of  g max(0, c - |m_i|) s_i, where
          m_i = r_i + w_i t_i  is how near robot i comes if nobody accelerates, t_i in [0, h], and
          s_i the unit vector across the line of sight, away from m_i; robots behind the ego and
          beyond its goal are left out.
cover:    v = k (l - p) towards the landmark l of the cheaper pairing of the two robots with the
          two landmarks (sum of distances).
carry:    co-carry's reference before it loses patience (`cadenza.benchmark.scripted_egos`).
noise:    with a standard deviation > 0 every wanted action is disturbed before the filter sees
          it, so that episodes also show how to get back; a clone that never saw that drifts away.
          Source: noise injection, arXiv:1703.09327.
Axes:     E = environments, D = entries of the ego's state, A = action.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.aht.config import PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import (
    SEAT_STREAM,
    background_seed,
    build_batched_safety_driver,
    build_partner,
    partner_spec,
    require_player,
    seat_players,
)
from cadenza.benchmark.open_seat import OpenSeatEnv, Variation, open_seat
from cadenza.benchmark.policies import EgoSeat, goal_pull
from cadenza.benchmark.populations import Members
from cadenza.benchmark.scripted_egos import carry
from cadenza.benchmark.tasks import EnvRequest, OptionValue, TaskSpec, adopt, get_task
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    NotReadyError,
    UnknownNameError,
    refuse,
)
from cadenza.core.files import sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, companions_of
from cadenza.learn.sampling import PartnerSampler, SamplerConfig, sampler_config
from cadenza.partners.pool import PartnerPool
from cadenza.partners.registry import load_partner, outside_modules
from cadenza.stream.config import OnlineDataEngineCfg

#: The partner of `ego_envs` whose seat is left open.
OPEN: Final = "open"
#: Keys of a batch's info that hold the observation before an automatic reset.
_FINAL_KEYS: Final = ("final_observation", "final_obs")


class EgoVectorEnv(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """The ego's seat in E environments that reset themselves in the step that ends an episode.

    Observation: the ego's `state`, (E, D). Action: the ego's action, (E, A). Partners act on what
    they saw before the step, then all move at once. ``env`` is the batch inside, where safety
    filters find their hooks.

    Raises:
        ConfigurationError: No partner is given, or an option of one is wrong.
        UnknownNameError: The class of a partner is not registered.
    """

    def __init__(
        self, env: Any, partners: Sequence[PartnerConfig], *, sampler: SamplerConfig | None = None
    ) -> None:
        if not partners:
            raise ConfigurationError(
                "EgoVectorEnv: expected at least one partner, got none; name some of the task's."
            )
        self._env = env
        self.num_envs: int = env.num_envs
        self.ego_uid, *others = env.agent_uids
        self.metadata: dict[str, Any] = {
            "render_modes": [],
            "autoreset_mode": AutoresetMode.SAME_STEP,
        }
        seen, done = env.single_observation_space["agent"], env.single_action_space
        self.single_observation_space: Any = seen[self.ego_uid]["state"]
        self.single_action_space: Any = done[self.ego_uid]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        #: What the partner decides on, and does, in one environment.
        self.partner_observation_space: Any = seen[others[0]]["state"]
        self.partner_action_space: Any = done[others[0]]
        #: Who plays the partner's seat; background robots draw uniformly.
        self.pool: PartnerPool = _pool(env, others[0], partners)
        self.sampler: PartnerSampler = PartnerSampler(len(partners), sampler)
        self._partner_uid: str = others[0]
        self._pools = {others[0]: self.pool, **{u: _pool(env, u, partners) for u in others[1:]}}
        #: Keywords with which `ego_envs` makes the same again, if it made this.
        self.made_with: dict[str, Any] = {}
        self._samplers = dict.fromkeys(others, PartnerSampler(len(partners)))
        self._samplers[others[0]] = self.sampler
        self._next_seeds: NDArray[np.int64] = np.arange(self.num_envs, dtype=np.int64)
        self._returns: FloatArray = np.zeros(self.num_envs)
        self._observation: Mapping[str, Any] | None = None
        self._ages: NDArray[np.int64] = np.zeros(self.num_envs, dtype=np.int64)
        self._record: list[NDArray[Any]] = []  # the ego's actions of the longest running episode

    @property
    def env(self) -> Any:
        """The batch inside."""
        return self._env

    @property
    def task_contract(self) -> TaskContract | None:
        """What the ego's numbers mean, if the batch inside says it."""
        return contract_at(self.env, self.ego_uid)

    @property
    def stride(self) -> int:
        """By how much the number of an environment's episode grows from one to the next."""
        return getattr(self.env, "stride", self.num_envs)

    @property
    def companions(self) -> list[str]:
        """How those are known who may play beside the ego."""
        return companions_of(self.pool.members)

    @property
    def partner_ids(self) -> list[str]:
        """Identity of everyone whom the ego of each environment meets in this episode, (E,)."""
        playing = [pool.playing_ids for pool in self._pools.values()]
        return ["+".join(ids) for ids in zip(*playing, strict=True)]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode in every environment.

        ``seed`` is the first episode of environment 0, or one per environment; None moves every
        environment to its next episode.

        Raises:
            InputError: A seed is not an integer in [0, 2^62), or there is not one each.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation = observation
        self._record.clear()
        if isinstance(seed, int):
            self._next_seeds = seed + np.arange(self.num_envs, dtype=np.int64)
        elif seed is not None:
            self._next_seeds = np.array(seed, dtype=np.int64)
        self._begin(range(self.num_envs))
        return self._state(observation), dict(info)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance every environment with the ego's ``actions``, (E, A).

        The info holds what only learning may read, ``partner_observation``, (E, P), on which the
        partner decided in this step, and ``partner_action``, (E, A') or choices (E,), what it did;
        where episodes end also ``final_obs``, the ego's `state` before the reset.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: ``actions`` have another shape or are not finite.
        """
        if self._observation is None:
            raise NotReadyError("EgoVectorEnv.step: expected episodes in progress; call reset().")
        before = self._state(self._observation, partner=True)
        (observation, reward, terminated, truncated, said), did = self._move(actions)
        self._record.append(np.array(actions))
        self._ages += 1
        self._returns += reward
        ended = np.flatnonzero(terminated | truncated)
        scores = said.get("success", self._returns)
        finals = {key: self._state(said[key]) for key in _FINAL_KEYS if key in said}
        for row in ended.tolist():
            self.sampler.report(int(self.pool.chosen[row]), float(scores[row]))
        self._begin(ended.tolist())
        del self._record[: len(self._record) - int(self._ages.max())]
        if isinstance(self.partner_action_space, Discrete):
            did = did[:, 0].astype(np.int64)
        told = {"partner_observation": before, "partner_action": did}
        info: dict[str, Any] = {**said, **told, **finals}
        if "final_info" in info:
            info["final_info"] = {**info["final_info"], **told}
        return self._state(observation), reward, terminated, truncated, info

    def _move(self, actions: NDArray[Any]) -> tuple[tuple[Any, ...], NDArray[Any]]:
        """Step the batch; return what it answers and what the partner did."""
        seen = cast("Mapping[str, Any]", self._observation)
        commands: dict[str, NDArray[Any]] = {self.ego_uid: actions}
        for uid, pool in self._pools.items():
            commands[uid] = pool.act({"agent": {uid: {"state": seen["agent"][uid]["state"]}}})
        answer = self.env.step(commands)
        self._observation = answer[0]
        return answer, commands[self._partner_uid]

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives episodes: what the sampler knows."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.sampler.load_state_dict(state)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return what a method answers, as `gymnasium.vector.SyncVectorEnv.call` does."""
        return getattr(self, name)(*arguments, **options)

    def has_wrapper_attr(self, name: str) -> list[bool]:
        """Return whether there is such an attribute; replays need a batch with snapshots."""
        return [hasattr(self, name) and hasattr(self.env, "snapshot")]

    def replay_state(self) -> list[dict[str, Any]]:
        """Return what brings the running episodes back: one entry, tensors and plain values.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self._observation is None:
            raise NotReadyError("EgoVectorEnv.replay_state: expected episodes; call reset().")
        state = {
            "episodes": (self._next_seeds - self.stride).tolist(),
            "ages": self._ages.tolist(),
            "chosen": {uid: pool.chosen.tolist() for uid, pool in self._pools.items()},
            "returns": self._returns.tolist(),
            "actions": torch.tensor(np.array(self._record)),
            "observation_sha256": self._seen_sha256(),
        }
        return [state]

    def try_replay_state(
        self, states: Sequence[Mapping[str, Any]], *, go_on: bool = True
    ) -> list[tuple[str, list[str]]]:
        """Do the recorded episodes again; return how they differed, if they did.

        Without ``go_on`` nothing is stepped. What outlives episodes comes back by `state_dict`.
        """
        if not go_on:
            return [("", [])]
        (state,) = states
        episodes, actions = np.array(state["episodes"]), state["actions"].numpy()
        begins = len(actions) - np.array(state["ages"])  # steps before the episode of each row
        self._observation, _ = self.env.reset(seed=episodes.tolist())
        first = self.env.snapshot(range(self.num_envs))
        for number, action in enumerate([*actions, None]):
            rows = np.flatnonzero(begins == number) if number else np.arange(self.num_envs)
            if len(rows):
                kept = {name: values[rows] for name, values in first.items()}
                self._observation = self.env.restore(rows.tolist(), kept)
                self._start(rows.tolist(), episodes[rows].tolist(), state["chosen"])
            if action is not None:
                self._move(action)
        self._next_seeds = episodes + self.stride
        self._returns, self._ages = np.array(state["returns"]), np.array(state["ages"])
        self._record = list(actions)
        if self._seen_sha256() == state["observation_sha256"]:
            return [("", [])]
        told = f"EgoVectorEnv: expected the saved observations after {len(actions)} steps, done"
        told += " again, got others; the task or a partner is not the one that was saved"
        return [(told, [])]

    def _seen_sha256(self) -> str:
        """Return the digest of what everybody sees."""
        agents = cast("Mapping[str, Any]", self._observation)["agent"]
        states = [np.ascontiguousarray(agents[uid]["state"]) for uid in sorted(agents)]
        return sha256_bytes(b"".join(state.tobytes() for state in states))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the batch inside."""
        self.env.close(**kwargs)

    def _begin(self, rows: Sequence[int]) -> None:
        """Choose and start the partners of new episodes."""
        if not rows:
            return
        episodes: list[int] = self._next_seeds[rows].tolist()
        drawn: dict[str, list[int]] = {}
        for uid, sampler in self._samplers.items():
            name = SEAT_STREAM.format(uid=uid)
            streams = [derive_substream(name, root_seed=episode) for episode in episodes]
            drawn[uid] = self.pool.chosen.tolist()
            for row, stream in zip(rows, streams, strict=True):
                drawn[uid][row] = sampler.draw(stream.default_rng())
        self._start(rows, episodes, drawn)
        self._next_seeds[rows] += self.stride
        self._returns[rows], self._ages[rows] = 0.0, 0

    def _start(
        self, rows: Sequence[int], episodes: Sequence[int], chosen: Mapping[str, Sequence[int]]
    ) -> None:
        """Let the partners ``chosen``, (E,) of each seat, begin ``episodes`` in ``rows``."""
        for uid, pool in self._pools.items():
            is_partner = uid == self._partner_uid
            seeds = [e if is_partner else background_seed(uid, e) for e in episodes]
            pool.begin(rows, [chosen[uid][row] for row in rows], seeds)

    def _state(self, observation: Mapping[str, Any], *, partner: bool = False) -> NDArray[Any]:
        """Return what the ego sees, (E, D), or the partner."""
        return observation["agent"][self._partner_uid if partner else self.ego_uid]["state"]


def _pool(env: Any, uid: str, partners: Sequence[PartnerConfig]) -> PartnerPool:
    """Return who may play the seat ``uid`` of a batch."""
    members = [load_partner(partner_spec(partner, uid=uid)) for partner in partners]
    pool = PartnerPool(members, rows=env.num_envs)
    pool.bind(env.single_action_space[uid])
    pool.bind_contract(contract_at(env, uid))
    return pool


def make_ego_worlds(
    num_envs: int,
    *,
    task: str,
    partners: Sequence[Mapping[str, Any]],
    episode_length: int,
    root_seed: int,
    options: Mapping[str, OptionValue],
    registered: Mapping[str, Any] | None = None,
    sampler: SamplerConfig | None = None,
) -> EgoVectorEnv:
    """Return the ego's seat in ``num_envs`` environments of ``task``; producers call it.

    ``partners`` are fields of `PartnerConfig`, drawn by ``sampler``; ``registered`` is what the
    process that asks has registered: ``task``, the fields of its `TaskSpec`, and ``modules`` to
    import for its partners.
    """
    if registered is not None:
        adopt(TaskSpec.model_validate(registered["task"]), registered["modules"])
    env = make_batch(
        task, num_envs, episode_length=episode_length, root_seed=root_seed, options=options
    )
    players = [PartnerConfig.model_validate(partner) for partner in partners]
    return EgoVectorEnv(env, players, sampler=sampler)


def ego_envs(
    num_envs: int,
    *,
    task: str,
    partner: str | None = None,
    partner_options: Mapping[str, str] | None = None,
    partners: Members | None = None,
    sampler: str | Mapping[str, Any] | SamplerConfig | None = None,
    episode_length: int | None = None,
    root_seed: int = 0,
    vary: Mapping[str, Any] | None = None,
    **options: OptionValue,
) -> "EgoVectorEnv | OpenSeatEnv":
    """Return a batch of what `cadenza.benchmark.builders.ego_env` returns one of.

    It is what ``gymnasium.make_vec("cadenza/Crossing-v1", num_envs=8, ...)`` calls. ``sampler``
    says how ``partners`` are drawn; see `cadenza.learn.sampling`. The partner ``"open"`` leaves
    its seat to whoever takes it, in episodes that ``vary``, fields of
    `cadenza.benchmark.open_seat.Variation`, if it is given.

    Raises:
        ConfigurationError: As `seat_players`; or an argument has no effect beside the others.
    """
    closed = {"partner_options": partner_options, "partners": partners, "sampler": sampler}
    for name, value in (closed if partner == OPEN else {"vary": vary}).items():
        if value is not None:
            expected = f"{'another partner than' if name in closed else 'the partner'} {OPEN!r}"
            refuse(ConfigurationError, name, expected=expected, got=f"partner={partner!r}")
    if partner == OPEN:
        variation = None if vary is None else Variation.model_validate(vary)
        given: dict[str, Any] = {"task": task, "episode_length": episode_length}
        return open_seat(
            num_envs, root_seed=root_seed, variation=variation, options=options, **given
        )
    found = get_task(task)
    crowd = seat_players(found, partner, partner_options, partners)
    drawn = sampler_config(sampler)
    length = episode_length or crowd.episode_length or found.episode_length
    own: dict[str, Any] = {**(crowd.options or {}), **options}
    players = [player.model_dump(mode="json") for player in crowd.partners]
    envs = make_ego_worlds(
        num_envs,
        task=task,
        partners=players,
        episode_length=length,
        root_seed=root_seed,
        options=own,
        sampler=drawn,
    )
    kept = {"partners": players, "sampler": drawn.model_dump(mode="json")}
    envs.made_with = {**kept, "episode_length": length, "root_seed": root_seed, **own}
    return envs


def make_batch(
    task: str,
    num_envs: int,
    *,
    episode_length: int,
    root_seed: int,
    options: Mapping[str, OptionValue],
    stride: int | None = None,
) -> Any:
    """Return ``num_envs`` environments of ``task`` as a batch; arguments as `make_ego_worlds`.

    Episode numbers grow by ``stride``, ``num_envs`` if it is None; see `EpisodeBatch`.
    """
    found = get_task(task)
    request = EnvRequest(
        episode_length=episode_length,
        num_envs=num_envs,
        root_seed=root_seed,
        options=found.complete_options(options),
        batched=True,
        condition_id=next(iter(found.conditions), None),
    )
    env: Any = found.make_env(request)
    mode = getattr(env, "metadata", {}).get("autoreset_mode")
    if getattr(env, "num_envs", None) != num_envs or mode is not AutoresetMode.SAME_STEP:
        raise ConfigurationError(
            f"task {task!r}: expected {found.env_factory} to return a batch of {num_envs} "
            f"environments that reset themselves in the same step, got {type(env).__name__}; heed "
            "EnvRequest.batched there."
        )
    if stride is not None:
        env.stride = whole_number("make_batch.stride", stride, least=1)
    return env


#: Distance c of two centres that `swerve` keeps, m: contact is at 0.4 m, the rest is for what the
#: other one does meanwhile.
CLEARANCE_M: Final = 0.7
#: Gain g of `swerve`, 1/s^2: a head-on course asks for far more than the ego's 2 m/s^2, so it
#: turns fully until the clearance is all but there.
SWERVE_GAIN: Final = 16.0
#: How far `swerve` looks ahead, h, s: a way of 4 m takes about 5 s.
HORIZON_S: Final = 3.0
#: Gain k of `cover`, 1/s: one over the control step, so the last step arrives exactly.
COVER_GAIN: Final = 10.0
#: Smallest squared speed and distance divided by, m^2/s^2 and m.
_MIN_DIVISOR: Final = 1e-9
#: Numbers about the ego itself, and about each other robot, in a state of the crossing task.
_OWN_SIZE: Final = 6
_OTHER_SIZE: Final = 4

#: States (E, D) to nominal actions (E, A), both float64.
Law = Callable[[FloatArray], FloatArray]


def swerve(states: FloatArray) -> FloatArray:
    """Return the crossing ego's acceleration, (E, 2), m/s^2; see the module."""
    goal = states[:, 4:6]
    others = states[:, _OWN_SIZE:].reshape(len(states), -1, _OTHER_SIZE)  # (E, n - 1, 4)
    offset, rate = others[..., :2], others[..., 2:]
    squared_speed = np.maximum((rate * rate).sum(-1), _MIN_DIVISOR)
    time_s = np.clip(-(offset * rate).sum(-1) / squared_speed, 0.0, HORIZON_S)
    miss = offset + rate * time_s[..., None]
    shortfall = np.maximum(0.0, CLEARANCE_M - np.linalg.norm(miss, axis=-1))
    distance = np.maximum(np.linalg.norm(offset, axis=-1, keepdims=True), _MIN_DIVISOR)
    left = np.stack((-offset[..., 1], offset[..., 0]), axis=-1) / distance
    to_the_right = np.where((miss * left).sum(-1) >= 0.0, -1.0, 1.0)
    way = np.linalg.norm(goal, axis=-1)[:, None]
    in_the_way = ((goal[:, None] * offset).sum(-1) > 0.0) & (distance[..., 0] < way)
    push = SWERVE_GAIN * shortfall * to_the_right * in_the_way
    return goal_pull(states) + (push[..., None] * left).sum(axis=1)


def cover(states: FloatArray) -> FloatArray:
    """Return the velocity command of the ego in cooperative push, (E, 2); see the module."""
    first, second, other = states[:, 4:6], states[:, 6:8], states[:, 8:10]
    if_first = _length(first) + _length(second - other)
    if_second = _length(second) + _length(first - other)
    return COVER_GAIN * np.where((if_first <= if_second)[:, None], first, second)


def _length(vectors: FloatArray) -> FloatArray:
    return np.linalg.norm(vectors, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """A scripted ego."""

    task: str
    law: Law


#: Every scripted ego by name.
EXPERTS: Final[Mapping[str, Expert]] = {
    "swerve": Expert(task="crossing", law=swerve),
    "goal_pd": Expert(task="crossing", law=goal_pull),
    "cover": Expert(task="mpe_cooperative_push", law=cover),
    "carry": Expert(task="cocarry_mj", law=carry),
}


def find_expert(name: str) -> Expert:
    """Return the scripted ego called ``name``."""
    expert = EXPERTS.get(name)
    if expert is None:
        raise UnknownNameError(f"Expert {name!r}: expected one of {', '.join(EXPERTS)}.")
    return expert


class LawPolicy:
    """A law that plays one ego's seat; with ``noise`` > 0 disturbed, other ones every episode."""

    def __init__(self, seat: EgoSeat, law: Law, *, noise: float = 0.0) -> None:
        self._seat, self._law, self._noise = seat, law, noise
        self.reset(seed=0)

    def reset(self, *, seed: int) -> None:
        """Begin the noise of the episode."""
        self._rng = derive_substream("benchmark.jobs.noise", root_seed=seed).default_rng()

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return what is wanted, float32, (A,); leaves the bounds by the noise alone."""
        state = np.asarray(obs["agent"][self._seat.uid]["state"], dtype=np.float64)
        wanted: FloatArray = np.clip(self._law(state[None])[0], self._seat.low, self._seat.high)
        if self._noise:
            wanted = wanted + self._noise * self._rng.standard_normal(wanted.shape)
        return wanted.astype(np.float32)


class GuardedExpert:
    """Plays a law in all environments, behind the safety filter where there is one."""

    def __init__(
        self, env: EgoVectorEnv, law: Law, *, safety: SafetyConfig, noise: float, seed: int
    ) -> None:
        self._env = env
        self._law = law
        self._noise = noise
        self._rng = derive_substream("benchmark.stream.noise", root_seed=seed).default_rng()
        self._driver = build_batched_safety_driver(env.env, safety)
        if self._driver is not None:
            self._driver.begin_run(seed)

    def reset(self, rows: NDArray[np.int64]) -> None:
        """Note that the environments ``rows`` begin an episode."""
        if self._driver is not None:
            self._driver.begin_rows(rows.tolist())

    def act(self, observations: NDArray[Any]) -> Float32Array:
        """Return the actions to execute, (E, A), for the ego's states, (E, D)."""
        nominal = self._law(observations.astype(np.float64))
        box = cast("Any", self._env).single_action_space
        wanted = np.clip(nominal, box.low, box.high)
        wanted += self._noise * self._rng.standard_normal(wanted.shape)
        if self._driver is not None:
            wanted = self._driver.step(wanted, self._env.partner_ids).action
        executed = np.clip(wanted, box.low, box.high)
        return executed.astype(np.float32)


def make_expert(
    env: EgoVectorEnv, *, seed: int, expert: str, safety: Mapping[str, Any], noise: float = 0.0
) -> GuardedExpert:
    """Return a scripted ego for ``env``; producers call it."""
    settings = SafetyConfig.model_validate(safety)
    return GuardedExpert(env, find_expert(expert).law, safety=settings, noise=noise, seed=seed)


#: A partner of a stream: a class name, or everything about it.
PartnerChoice = str | PartnerConfig

#: What producers call.
_WORLDS: Final = "cadenza.benchmark.stream_tasks:make_ego_worlds"
_EXPERT: Final = "cadenza.benchmark.stream_tasks:make_expert"
#: Fields of the engine that follow from the task.
_GIVEN: Final = ("gym_config", "action_config", "policy", "max_episode_steps", "state_dim")


def _partner(class_name: str, **extra: str) -> PartnerConfig:
    return PartnerConfig(class_name=class_name, extra=extra)


#: Partners of a stream that names none: several kinds, at many speeds. The task's other partners
#: stay strangers, for evaluations.
_PARTNERS: Final[Mapping[str, tuple[PartnerConfig, ...]]] = {
    "crossing": (
        _partner("crossing_goal_seeker", max_speed="0.8", speed_spread="0.75"),
        _partner("crossing_wanderer"),
        _partner("crossing_wanderer", max_speed="0.4", knot_interval="1.0"),
    ),
    "mpe_cooperative_push": (
        _partner("scripted_heuristic"),
        _partner("scripted_heuristic", target_xy="0.5,0.5", gain="2.0"),
        _partner("scripted_heuristic", target_xy="-0.5,0.5", max_speed="0.5"),
        _partner("scripted_heuristic", target_xy="0.5,-0.5"),
        _partner("scripted_heuristic", target_xy="-0.5,-0.5", gain="2.0"),
    ),
}


def stream_partners(task_id: str) -> tuple[PartnerConfig, ...]:
    """Return the partners of a stream of ``task_id`` that names none.

    Raises:
        UnknownNameError: Unknown task.
    """
    task = get_task(task_id)
    return _PARTNERS.get(task_id, (PartnerConfig(class_name=task.seen_partner),))


def stream_config(
    task_id: str,
    *,
    partners: Sequence[PartnerChoice] | None = None,
    expert: str | Mapping[str, Any] | None = None,
    safety: SafetyConfig | None = None,
    noise: float = 0.0,
    options: Mapping[str, OptionValue] | None = None,
    episode_length: int | None = None,
    num_envs: int = 8,
    producers: int = 2,
    seed: int = 0,
    **engine: Any,
) -> OnlineDataEngineCfg:
    """Return the settings of an engine that streams an expert's episodes of a task.

    Args:
        task_id: Registered task that can be stepped as a batch.
        partners: Who may meet the ego, drawn anew for every episode; None as `stream_partners`.
        expert: Name of a scripted ego of the task, one of `EXPERTS`; or a
            policy of your own as the engine takes it, ``{"factory": ..., "kwargs": ...}``, called
            with an `EgoVectorEnv`. None takes the task's first one.
        safety: Filter between a scripted ego and the environment; None turns it on, with its
            defaults, where the task supports it.
        noise: Standard deviation of what is added to every action a scripted ego wants, before the
            filter, unit of the action, >= 0; shows clones how to get back.
        options: Further settings of the task, e.g. ``{"num_robots": 3}``.
        episode_length: Steps until truncation; None takes the task's.
        num_envs: Environments of each producer.
        producers: Processes that simulate.
        seed: Root of all random streams.
        engine: Further fields of `OnlineDataEngineCfg`.

    Raises:
        ConfigurationError: Something does not exist or does not fit the task.
        ConfigurationTypeError: A further field is unknown, or follows from the task.
        UnknownNameError: Unknown task, expert or partner.
    """
    task = get_task(task_id)
    if not task.supports_batches:
        raise ConfigurationError(
            f"stream_config: expected a task that can be stepped as a batch, got {task_id!r}."
        )
    _refuse_given(engine)
    length = task.episode_length if episode_length is None else episode_length
    chosen = _partners(task, partners)
    modules = outside_modules(partner["class_name"] for partner in chosen)
    kwargs: dict[str, Any] = {
        "task": task_id,
        "partners": chosen,
        "episode_length": length,
        "root_seed": seed,
        "options": task.complete_options({} if options is None else options),
        "registered": {"task": task.model_dump(mode="json"), "modules": list(modules)},
    }
    return OnlineDataEngineCfg(
        gym_config={
            "factory": _WORLDS,
            "num_envs": num_envs,
            "max_episode_steps": length,
            "kwargs": kwargs,
        },
        policy=_policy(task, expert, safety, noise),
        producers=producers,
        seed=seed,
        **engine,
    )


def _refuse_given(engine: Mapping[str, Any]) -> None:
    """Raise for a field that the engine does not have or that the task determines."""
    known = {entry.name for entry in fields(OnlineDataEngineCfg)} - set(_GIVEN)
    for name in engine:
        if name not in known:
            raise ConfigurationTypeError(
                f"stream_config: expected further fields among {sorted(known)}, got {name!r}; "
                f"{', '.join(_GIVEN)} follow from the task."
            )


def _partners(task: TaskSpec, chosen: Sequence[PartnerChoice] | None) -> list[dict[str, Any]]:
    """Return the fields of every partner, checked."""
    named = stream_partners(task.task_id) if chosen is None else chosen
    if not named:
        raise ConfigurationError(
            f"stream_config: expected at least one partner, got none; task {task.task_id!r} has "
            f"{', '.join(task.partners)}."
        )
    configs = [PartnerConfig(class_name=one) if isinstance(one, str) else one for one in named]
    for config in configs:
        require_player(task, config.class_name)
        build_partner(config)  # refuses unknown and wrong options before a producer starts
    return [config.model_dump(mode="json") for config in configs]


def _policy(
    task: TaskSpec,
    expert: str | Mapping[str, Any] | None,
    safety: SafetyConfig | None,
    noise: float,
) -> dict[str, Any]:
    """Return the engine's policy."""
    if not (math.isfinite(noise) and noise >= 0.0):
        raise ConfigurationError(
            f"stream_config.noise: expected a standard deviation >= 0, got {noise}."
        )
    if isinstance(expert, Mapping):
        if safety is not None or noise:
            raise ConfigurationError(
                "stream_config: expected neither safety nor noise with a policy of your own, got "
                "them; they change scripted egos, yours must do both itself."
            )
        return dict(expert)
    own = [name for name, known in EXPERTS.items() if known.task == task.task_id]
    if expert is None and not own:
        raise ConfigurationError(
            f"stream_config: expected an expert for {task.task_id!r}, which has no scripted ego; "
            "give a policy of your own: expert={'factory': 'module:function'}."
        )
    name = own[0] if expert is None else expert
    if find_expert(name).task != task.task_id:
        raise ConfigurationError(
            f"stream_config: expected an expert of {task.task_id!r} ({', '.join(own) or 'none'}), "
            f"got {name!r}, which plays {find_expert(name).task!r}."
        )
    guard = SafetyConfig(enabled=task.supports_safety) if safety is None else safety
    if guard.enabled and not task.supports_safety:
        raise ConfigurationError(
            f"stream_config: expected safety disabled, got it enabled; task {task.task_id!r} has "
            "no safety filter."
        )
    kwargs = {"expert": name, "safety": guard.model_dump(mode="json"), "noise": noise}
    return {"factory": _EXPERT, "kwargs": kwargs}
