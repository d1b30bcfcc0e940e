"""Who meets whom from which initial state: episodes played and recorded, policies measured.

Pairing:  an episode follows from task, partner, seed, policy and filter alone, to the last bit:
          everybody begins it afresh, and the environment's root seed is fixed.
Rounds:   the partner of attempt i is entry i of an endless repetition of one round: every partner
          once, then the partners in focus `FOCUS_WEIGHT` - 1 times more. More attempts extend
          fewer ones.
Measured: episode j has the seed ``seed_start + j``, and its partner is number ``seed mod P`` of the
          P partners. So two policies that are given the same seeds meet the same partners from the
          same initial states, and each episode of one pairs with one of the other.
Axes:     L = steps of an episode, D = entries of the ego's state, A = action.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.episodes import EpisodeTag, EpisodeWorld, open_world, run_episode
from cadenza.benchmark.output_folder import Blocks, open_job_folder
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, open_policy
from cadenza.benchmark.tasks import TaskSpec, get_task
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.contracts import TaskContract
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError, UnknownNameError
from cadenza.core.types import Observation
from cadenza.evaluation.results import EpisodeResult
from cadenza.partners.registry import partner_card

#: Episodes of a partner in focus for each episode of another one.
FOCUS_WEIGHT: Final = 3
#: Root seed of every environment: initial-state seeds alone tell episodes apart.
ROOT_SEED: Final = 0
#: All partners of the task.
ALL: Final = "default"
#: Those of them that leave the ego a way to its goal.
LEAVING_WAY: Final = "leaving_way"


def job_task(task_id: str) -> TaskSpec:
    """Return a task that says which episodes succeed."""
    try:
        task = get_task(task_id)
    except UnknownNameError as error:
        raise ConfigurationError(f"--task: {error}") from error
    if not task.has_success:
        raise ConfigurationError(
            f"--task: expected a task with a success predicate, got {task_id!r}, which has none; "
            "see `cadenza tasks list`."
        )
    return task


def chosen_partners(task: TaskSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Return the partners of ``task`` that ``names`` mean.

    ``"default"`` alone, or nothing, means all of them, ``"leaving_way"`` those that leave a way.
    """
    if not names or list(names) == [ALL]:
        return task.partners
    if list(names) == [LEAVING_WAY]:
        return tuple(name for name in task.partners if partner_card(name).leaves_way)
    for name in names:
        if name not in task.partners:
            alone = " among others; it stands alone" if name in (ALL, LEAVING_WAY) else ""
            raise ConfigurationError(
                f"--partners: expected {ALL}, {LEAVING_WAY} or partners of {task.task_id!r} "
                f"({', '.join(task.partners)}), got {name!r}{alone}."
            )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"--partners: expected each partner once, got {','.join(names)}.")
    return tuple(names)


def partner_round(partners: Sequence[str], focus: Sequence[str]) -> tuple[str, ...]:
    """Return one round of partners; see the module."""
    for name in focus:
        if name not in partners:
            raise ConfigurationError(
                f"--focus: expected partners of this job ({', '.join(partners)}), got {name!r}."
            )
    if len(set(focus)) != len(focus):
        raise ConfigurationError(f"--focus: expected each partner once, got {','.join(focus)}.")
    chosen = tuple(name for name in partners if name in focus)
    if chosen == tuple(partners):
        return chosen
    return (*partners, *(chosen * (FOCUS_WEIGHT - 1)))


def is_filtered(text: str | None, task: TaskSpec) -> bool:
    """Return whether ``--filter`` turns the safety filter on; untold, wherever ``task`` has one."""
    if text is None:
        return task.supports_safety
    if text not in ("on", "off"):
        raise ConfigurationError(f"--filter: expected on or off, got {text!r}.")
    return text == "on"


@dataclass(slots=True)
class Recording:
    """What the ego saw, L + 1 entries (D,), did, L entries (A,), and got in one episode.

    ``terminated`` tells whether it ended by itself.
    """

    states: list[Float32Array] = field(default_factory=list[Float32Array])
    actions: list[Float32Array] = field(default_factory=list[Float32Array])
    rewards: list[float] = field(default_factory=list[float])
    terminated: bool = False


class _RecordedEnv:
    """An environment whose episode is written down."""

    def __init__(self, env: Any, seat: EgoSeat) -> None:
        self._env, self._seat = env, seat
        self.recording = Recording()

    def __getattr__(self, name: str) -> Any:
        """Forward what is not recorded."""
        return getattr(self._env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode and its recording."""
        obs, info = self._env.reset(seed=seed, options=options)
        self.recording = Recording(states=[self._state(obs)])
        return obs, info

    def step(self, action: Mapping[str, NDArray[Any]]) -> Any:
        """Advance one step."""
        done = np.clip(action[self._seat.uid], self._seat.low, self._seat.high)
        result = self._env.step(action)
        require_finite("reward", np.atleast_1d(np.asarray(result[1], dtype=np.float64)))
        self.recording.actions.append(done.astype(np.float32))
        self.recording.rewards.append(float(result[1]))
        self.recording.states.append(self._state(result[0]))
        self.recording.terminated = bool(result[2])
        return result

    def _state(self, obs: Observation) -> Float32Array:
        state = np.array(obs["agent"][self._seat.uid]["state"], dtype=np.float32)
        require_finite("state of the ego", state)
        return state


class Encounters(ExitStack):
    """Plays episodes of one ego with any of some partners; closes its environments on leaving."""

    def __init__(
        self, task: TaskSpec, *, filtered: bool, make_policy: Callable[[EgoSeat], EgoPolicy]
    ) -> None:
        if filtered and not task.supports_safety:
            raise ConfigurationError(
                f"--filter: expected off, got on; task {task.task_id!r} has no safety filter."
            )
        super().__init__()
        self._task, self._filtered, self._make_policy = task, filtered, make_policy
        self._worlds: dict[str, tuple[EpisodeWorld, _RecordedEnv]] = {}

    def play(self, partner: str, seed: int) -> tuple[EpisodeResult, Recording]:
        """Play the episode of ``seed`` with ``partner``."""
        world, recorded = self._world(partner)
        tag = EpisodeTag(
            seed=seed,
            episode_idx=0,
            initial_state_seed=seed,
            policy="ego",
            condition="filter_on" if self._filtered else "filter_off",
            partner=partner,
        )
        return run_episode(world, tag), recorded.recording

    def features(self) -> dict[str, list[int]]:
        """Return the shapes of what the ego sees and does."""
        seat = self._world(self._task.partners[0])[0].seat
        return {"observation.state": [seat.observation_dim], "action": [seat.action_dim]}

    def contract(self) -> TaskContract | None:
        """Return what the ego's numbers mean, if the task says it."""
        return self._world(self._task.partners[0])[0].seat.contract

    def control_rate_hz(self) -> int:
        """Return the steps per second, rounded."""
        env: Any = self._world(self._task.partners[0])[0].env
        return max(1, round(1.0 / float(env.control_timestep)))

    def _world(self, partner: str) -> tuple[EpisodeWorld, _RecordedEnv]:
        """Return the world with ``partner``, opened at its first use."""
        if partner not in self._worlds:
            world = self.enter_context(
                open_world(
                    env=EnvConfig(task=self._task.task_id),
                    partner=PartnerConfig(class_name=partner),
                    safety=SafetyConfig(enabled=self._filtered),
                    root_seed=ROOT_SEED,
                    make_policy=self._make_policy,
                )
            )
            recorded = _RecordedEnv(world.env, world.seat)
            self._worlds[partner] = (
                replace(world, env=recorded, control_timestep_s=None),
                recorded,
            )
        return self._worlds[partner]


#: Folder of the finished parts inside the job's folder.
BLOCKS: Final = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to measure; the flags of `cadenza job evaluate`."""

    policy: Path
    task: str
    partners: tuple[str, ...] = ()
    filtered: str | None = None
    seed_start: int
    episodes: int
    batch_size: int = 16
    out: Path
    result: Path
    report: Callable[[int, int], None] = lambda _done, _wanted: None

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.batch_size < 1 or self.seed_start < 0:
            raise ConfigurationError(
                "expected --episodes >= 1, --batch-size >= 1 and --seed-start >= 0, got "
                f"{self.episodes}, {self.batch_size} and {self.seed_start}."
            )


def evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Play every episode and return the result.

    Raises:
        CheckpointError: The policy is missing, damaged or of another task.
        ConfigurationError: A flag does not fit, or the folder belongs to another job.
        NotReadyError: Another process works in the folder.
    """
    task = job_task(evaluation.task)
    partners = chosen_partners(task, evaluation.partners)
    filtered = is_filtered(evaluation.filtered, task)
    digest, make_policy = open_policy(evaluation.policy, task=task.task_id)
    request = {
        "policy_sha256": digest,
        "task": task.task_id,
        "partners": list(partners),
        "filter": filtered,
        "seed_start": evaluation.seed_start,
        "episodes": evaluation.episodes,
    }
    with ExitStack() as stack:
        stack.enter_context(single_torch_thread())
        world = Encounters(task, filtered=filtered, make_policy=make_policy)
        encounters = stack.enter_context(world)
        features = encounters.features()
        code, result = code_digest(task, partners), evaluation.result
        folder = stack.enter_context(
            open_job_folder(evaluation.out, "evaluate", request, result=result, code_sha256=code)
        )
        blocks = Blocks(folder=folder.root / BLOCKS, request_sha256=folder.request_sha256)
        episodes = _play(evaluation, partners, encounters, blocks)
        facts = {
            "policy_sha256": digest,
            "task": task.task_id,
            "features": features,
            "seeds": {"start": evaluation.seed_start, "count": evaluation.episodes},
            "overall": summary(episodes),
            "per_task": {
                name: summary([e for e in episodes if e["partner"] == name])
                for name in partners
                if any(e["partner"] == name for e in episodes)
            },
            "episodes": episodes,
        }
        return folder.write_result(evaluation.result, facts)


def _play(
    evaluation: Evaluation, partners: Sequence[str], encounters: Encounters, blocks: Blocks
) -> list[dict[str, Any]]:
    """Play, or read what an earlier process has played."""
    episodes: list[dict[str, Any]] = []
    number = 0
    while len(episodes) < evaluation.episodes:
        stored = blocks.read(number)
        if stored is None:
            first = evaluation.seed_start + len(episodes)
            count = min(evaluation.batch_size, evaluation.episodes - len(episodes))
            played = [
                _episode(encounters, partners[seed % len(partners)], seed)
                for seed in range(first, first + count)
            ]
            stored = {"episodes": played}
            blocks.write(number, stored)
        episodes += stored["episodes"]
        evaluation.report(len(episodes), evaluation.episodes)
        number += 1
    return episodes


def _episode(encounters: Encounters, partner: str, seed: int) -> dict[str, Any]:
    result, _ = encounters.play(partner, seed)
    return {
        "partner": partner,
        "seed": seed,
        "success": result.success,
        "return": result.episode_return,
        "steps": result.n_steps,
        "contact": result.contact,
    }


def summary(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of some episodes, at least one."""
    count = len(episodes)
    return {
        "n_episodes": count,
        "success_rate": sum(bool(e["success"]) for e in episodes) / count,
        "mean_return": sum(float(e["return"]) for e in episodes) / count,
    }
