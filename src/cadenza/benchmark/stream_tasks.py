"""The tasks as streams: their worlds, scripted egos, and ready-made settings of the data engine.

`stream_config` names environment, partners and expert by import path, so that producers, which are
processes of their own, build them. The stream shows the ego alone: ``obs`` is its state, (D,),
``actions`` what it executed, (A,), after the safety filter.

Worlds:   see `cadenza.benchmark.ego_vector_env`.
swerve:   a = goal pull + sum over the other robots i of  g max(0, c - |m_i|) s_i, where
          m_i = r_i + w_i t_i  is how near robot i comes if nobody accelerates, t_i in [0, h], and
          s_i the unit vector across the line of sight, away from m_i; robots behind the ego and
          beyond its goal are left out.
cover:    v = k (l - p) towards the landmark l of the cheaper pairing of the two robots with the
          two landmarks (sum of distances).
carry:    co-carry's reference before it loses patience (`cadenza.benchmark.scripted_egos`).
take_turns: the reference at the door, which sees whose turn it is (there, too).
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
from numpy.typing import NDArray

from cadenza.aht.config import PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import (
    build_batched_safety_driver,
    build_partner,
    require_player,
    seat_players,
)
from cadenza.benchmark.ego_vector_env import EgoVectorEnv, Variation, make_batch, open_seat
from cadenza.benchmark.policies import EgoSeat, goal_pull
from cadenza.benchmark.populations import Members
from cadenza.benchmark.scripted_egos import carry, take_turns
from cadenza.benchmark.tasks import OptionValue, TaskSpec, adopt, get_task
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    UnknownNameError,
    refuse,
)
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation
from cadenza.learn.sampling import SamplerConfig, sampler_config
from cadenza.partners.registry import outside_modules
from cadenza.stream.config import OnlineDataEngineCfg

#: The partner of `ego_envs` whose seat is left open.
OPEN: Final = "open"


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
) -> EgoVectorEnv:
    """Return a batch of what `cadenza.benchmark.builders.ego_env` returns one of.

    It is what ``gymnasium.make_vec("cadenza/Crossing-v1", num_envs=8, ...)`` calls. ``sampler``
    says how ``partners`` are drawn; see `cadenza.learn.sampling`. The partner ``"open"`` leaves
    its seat to whoever takes it, in episodes that ``vary``, fields of
    `cadenza.benchmark.ego_vector_env.Variation`, if it is given.

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
    "take_turns": Expert(task="doorway", law=take_turns),
    "take_turns_on_wheels": Expert(task="doorway_diffdrive", law=take_turns),
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
