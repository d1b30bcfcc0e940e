"""The ego's seat: environment, frozen partner and safety filter as one thing that is stepped.

One step:  the partner acts on what the ego saw, the filter changes the ego's action where it must,
           then both move. The next episode begins at the top of the next step, so a checkpoint
           never holds half of a reset. A batch of environments resets itself.
Seeds:     the first episode takes the run's seed itself, episode k >= 1 the integer of the stream
           ``training.episode.{k}``; environment and partner are reset with the same one.
Restored:  environments and partners are not asked to save their state. What is stored is the seed
           of the last reset and every ego action executed since; from them the same episode
           unfolds, the partner acting for itself. A digest of the observation proves that it did.
         What a sampler of partners knew then is stored, too, so that it draws the same ones; of a
         partner that the ego brings itself, what it did.
           The record of a batch goes back to the start of the run.
Cost:      actions take ``4 A`` bytes per frame in memory and in every training state.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.safety_telemetry import SafetyStation
from cadenza.aht.types import (
    EpisodeRecord,
    EvaluationRecord,
    RewardCurve,
    RowResettablePartner,
    ScoredPartner,
)
from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import CheckpointError, InputError, NonFiniteError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike

#: Flags of manipulation tasks and the names under which their share of steps is logged.
_STAGE_RATES: Final = {
    "is_grasped": "grasp_rate",
    "is_obj_placed": "place_rate",
    "is_robot_static": "static_rate",
    "success": "success_rate",
}
#: The task has stages if its info carries this flag.
_STAGE_MARKER: Final = "is_grasped"
#: Stored form of an episode's success flag.
_SUCCESS_CODES: Final = {None: -1, False: 0, True: 1}
#: Stream family of the episode seeds.
EPISODE_STREAM: Final = "training.episode"
#: Characters of the observation digest that an error shows.
_SHOWN_DIGITS: Final = 12


def episode_seed(run_seed: int, episode_index: int) -> int:
    """Return the seed of episode ``episode_index`` of the run."""
    if episode_index == 0:
        return run_seed
    return derive_substream(f"{EPISODE_STREAM}.{episode_index}", root_seed=run_seed).integer_seed()


class SeatStep(NamedTuple):
    """What followed one action: single values, or arrays (N,) of a batch.

    ``obs`` is what the ego sees next, after the automatic reset if batched; ``penalty`` is what the
    filter's change costs the learner, ``move`` what the partner did. Termination dominates: a step
    that also ran out of time is not ``truncated``.
    """

    obs: Observation
    reward: Any
    penalty: Any
    terminated: Any
    truncated: Any
    info: Mapping[str, Any]
    move: Any = None

    @property
    def done(self) -> Any:
        """Whose episodes ended."""
        return self.terminated | self.truncated

    @property
    def rewards(self) -> list[float]:
        """The environment's rewards, one for each environment."""
        return [self.reward] if isinstance(self.reward, float) else self.reward.tolist()

    @property
    def final_obs(self) -> Observation | None:
        """What was seen before the automatic reset, if any episode of a batch ended."""
        return self.info.get("final_observation")

    @property
    def ended(self) -> list[int]:
        """Numbers of the environments whose episodes ended."""
        done = self.done
        return [0] * done if isinstance(done, bool) else np.flatnonzero(done).tolist()

    def successes(self) -> list[bool | None]:
        """Return the task's flag for each of `ended`; None for tasks without one."""
        flags = self.info.get("success")
        if flags is None:
            return [None] * len(self.ended)
        return batch_of("success", flags, np.size(self.done), np.bool_)[self.ended].tolist()


class OpenPartner:
    """Stands for a partner that the ego brings itself: it is told what the partner does."""

    spec: Any = None

    def reset(self, *, seed: int | None = None) -> None:
        """Do nothing: who plays is told by `Seat.step`."""

    def act(self, obs: Observation, *, deterministic: bool = True) -> NDArray[Any]:
        """Refuse to act.

        Raises:
            NotReadyError: Always.
        """
        del obs, deterministic
        raise NotReadyError("OpenPartner.act: expected the ego's own partner to act.")


class Seat:
    """Drives one environment, or a batch, for the ego of a run.

    Attributes:
        episode_index: Resets after the first, over all environments.
        is_between_episodes: The last episode has ended and the next has not begun; never a batch.
        seed: Given to environment and partner at the last reset of both.
        first_episode: Number of the episode that began with it.
        scores: Success, or else the return, of the episodes that the last step ended, by row.
    """

    def __init__(
        self, config: EgoAHTConfig, env: Any, partner: PartnerLike, station: SafetyStation | None
    ) -> None:
        self._env, self._partner, self._station = env, partner, station
        self._run_seed, self._count = config.seed, config.env.num_envs
        self._ego_uid, self._partner_uid = config.env.agent_uids
        self._obs: Observation = {}
        self._actions: list[NDArray[Any]] = []
        self._told: list[NDArray[Any]] = []  # what a partner did that the ego brings itself
        self.scores: dict[int, float] = {}
        self._scored = partner if isinstance(partner, ScoredPartner) else None
        self._sampled: dict[str, Any] | None = None  # the sampler's state before the first draw
        self._returns: FloatArray = np.zeros(self._count)
        self.episode_index: int = 0
        self.is_between_episodes: bool = False
        self.seed: int = config.seed
        self.first_episode: int = 0

    def begin(self) -> None:
        """Reset everything for the run's first episode."""
        if self._station is not None:
            self._station.driver.begin_run(self._run_seed)
        self._restart()

    def begin_next(self) -> None:
        """Reset everything for the next episode."""
        self.episode_index += 1
        self._restart()

    def observe(self) -> Observation:
        """Return what the ego sees now; the next episode begins if the last has ended."""
        if self.is_between_episodes:
            self.begin_next()
        return self._obs

    def step(self, action: NDArray[Any], move: NDArray[Any] | None = None) -> SeatStep:
        """Move with the ego's nominal action, (A,), or (N, A), and its own partner's ``move``.

        Raises:
            InputError: The environment returns a reward that is not finite, or other shapes.
        """
        executed, penalty = action, np.zeros(())
        if move is None:
            move = self._partner.act(self._obs)
        else:
            self._told.append(move)
        if self._station is not None:
            executed, penalty = self._station.filter(action)
        step = self._move(executed, move)._replace(penalty=penalty, move=move)
        self._actions.append(executed.copy())
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return where the running episodes are: plain values and the actions as a tensor."""
        actions = np.stack(self._actions) if self._actions else np.zeros((0, 0), dtype=np.float32)
        sampler = None if self._scored is None else self._scored.sampler.state_dict()
        return {
            "episode_index": self.episode_index,
            "awaiting_reset": self.is_between_episodes,
            "replay": {
                "seed": self.seed,
                "actions": torch.as_tensor(actions),
                "first_episode": self.first_episode,
                **({} if sampler is None else {"sampler": self._sampled}),
                **({"moves": torch.as_tensor(np.stack(self._told))} if self._told else {}),
            },
            **({} if sampler is None else {"sampler": sampler}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; `replay` goes there."""
        record = state["replay"]
        self.episode_index = int(state["episode_index"])
        self.is_between_episodes = bool(state["awaiting_reset"])
        self.seed = int(record["seed"])
        self.first_episode = int(record.get("first_episode", 0))
        self._actions = list(cast("torch.Tensor", record["actions"]).numpy())
        self._told = list(record["moves"].numpy()) if "moves" in record else []
        if self._scored is not None:
            self._sampled = record["sampler"]
            known = state["sampler"] if self.is_between_episodes else self._sampled
            self._scored.sampler.load_state_dict(known)

    def digest(self) -> str | None:
        """Return the digest of what the ego sees; None between episodes."""
        return None if self.is_between_episodes else observation_digest(self._obs)

    def replay(self, expected_digest: str) -> None:
        """Play the record again, which must end in the observation of that digest.

        Raises:
            CheckpointError: The replayed episode took another course.
        """
        reached, self.episode_index = self.episode_index, self.first_episode
        self._reset()
        for number, action in enumerate(self._actions):
            move = self._told[number] if self._told else self._partner.act(self._obs)
            self._move(action, move, is_replay=True)
        self.episode_index = reached
        actual = observation_digest(self._obs)
        if actual != expected_digest:
            raise CheckpointError(
                "resume: expected the replayed episode to end in the stored observation "
                f"({expected_digest[:_SHOWN_DIGITS]}), got another ({actual[:_SHOWN_DIGITS]}): the "
                "environment or the partner does not repeat an episode from its seed, or its code "
                "changed since the run began; start the run again with overwrite."
            )

    def _restart(self) -> None:
        self.seed = episode_seed(self._run_seed, self.episode_index)
        self.first_episode, self._actions, self._told = self.episode_index, [], []
        self.is_between_episodes = False
        if self._scored is not None:
            self._sampled = self._scored.sampler.state_dict()
        self._reset()
        if self._station is not None:
            self._station.driver.begin_episode()

    def _score(self, step: SeatStep) -> None:
        """Tell the sampler of partners how the episodes went that a step ended."""
        self._returns += step.reward
        self.scores = {}
        for row, success in zip(step.ended, step.successes(), strict=True):
            self.scores[row] = float(self._returns[row] if success is None else success)
            if self._scored is not None:
                self._scored.score(row, self.scores[row])
            self._returns[row] = 0.0

    def _reset(self) -> None:
        self._returns[:] = 0.0
        self._obs = self._env.reset(seed=self.seed)[0]
        self._partner.reset(seed=self.seed)

    def _move(self, executed: NDArray[Any], move: Any, *, is_replay: bool = False) -> SeatStep:
        """Step the environment, and begin what a batch began."""
        uids = {self._ego_uid: executed, self._partner_uid: move}
        self._obs, raw_reward, raw_terminated, raw_truncated, info = self._env.step(uids)
        if self._count == 1:
            reward, terminated = finite_reward(raw_reward), bool(raw_terminated)
            truncated = bool(raw_truncated) and not terminated
            self.is_between_episodes = (terminated or truncated) and not is_replay
            step = SeatStep(self._obs, reward, 0.0, terminated, truncated, info)
            self._score(step)
            return step
        reward = batch_of("reward", raw_reward, self._count, np.float64)
        require_finite("train: rewards", reward)
        terminated = batch_of("terminated", raw_terminated, self._count, np.bool_)
        truncated = batch_of("truncated", raw_truncated, self._count, np.bool_) & ~terminated
        step = SeatStep(self._obs, reward, 0.0, terminated, truncated, info)
        self._score(step)
        ended = step.ended
        if ended and self._station is not None and not is_replay:
            self._station.driver.begin_rows(ended)
        for row in ended:
            self.episode_index += 1
            if isinstance(self._partner, RowResettablePartner):
                seed = episode_seed(self._run_seed, self.episode_index)
                self._partner.reset_row(row, seed=seed)
        return step


@dataclass
class RolloutWindow:
    """Sums over the steps since the last rollout boundary."""

    steps: int = 0
    reward_sum: float = 0.0
    last_reward: float = 0.0
    episodes: int = 0
    return_sum: float = 0.0
    judged: int = 0
    successes: int = 0
    has_stages: bool = False
    stage_sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STAGE_RATES, 0.0))

    def add_step(self, reward: float, info: Mapping[str, Any]) -> None:
        """Take in one control step; ``reward`` is the batch mean."""
        self.steps += 1
        self.reward_sum += reward
        self.last_reward = reward
        if _STAGE_MARKER in info:
            self.has_stages = True
            for flag in _STAGE_RATES:
                self.stage_sums[flag] += float(np.mean(info.get(flag, 0.0), dtype=np.float64))

    def add_episode(self, record: EpisodeRecord) -> None:
        """Take in one complete episode."""
        self.episodes += 1
        self.return_sum += record.episode_return
        self.judged += record.success is not None
        self.successes += record.success is True

    def figures(self) -> dict[str, float]:
        """Return what is logged at a rollout boundary."""
        figures: dict[str, float] = {"mean_reward": self.reward_sum / max(1, self.steps)}
        if self.episodes:
            figures["n_episodes"] = self.episodes
            figures["mean_episode_return"] = self.return_sum / self.episodes
        if self.judged:
            figures["episode_success_rate"] = self.successes / self.judged
        if self.has_stages:
            for flag, name in _STAGE_RATES.items():
                figures[name] = self.stage_sums[flag] / self.steps
        return figures


class History:
    """Counts frames, control steps of N frames each, and the running episodes, (N,)."""

    def __init__(self, run_id: str, num_envs: int) -> None:
        self.frames: int = 0
        self.iterations: int = 0
        self.returns: FloatArray = np.zeros(num_envs)
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.last_return: float | None = None
        self.curve: RewardCurve = RewardCurve(run_id)
        self.window: RolloutWindow = RolloutWindow()

    def record(self, step: SeatStep) -> None:
        """Count one control step and close the episodes that it ended."""
        rewards = step.rewards
        self.iterations += 1
        self.frames += len(rewards)
        mean_reward = sum(rewards) / len(rewards)
        self.curve.per_step_ego_rewards.append(mean_reward)
        self.window.add_step(mean_reward, step.info)
        self.lengths += 1
        self.returns += rewards
        ended = step.ended
        for row, success in zip(ended, step.successes() if ended else (), strict=True):
            closed = self._close(row, complete=True, success=success)
            self.curve.per_episode_ego_rewards.append(closed.episode_return)
            self.window.add_episode(closed)
            self.last_return = closed.episode_return

    def begin_window(self) -> None:
        """Start the next window of the log."""
        self.window = RolloutWindow()

    def forget_episodes(self) -> None:
        """Forget the running episodes; they do not continue."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def finish(self, *, upstream_list: bool) -> None:
        """Close the episodes that the end cuts off; upstream lists them, empty ones too."""
        for row in range(len(self.returns)):
            if upstream_list:
                self.curve.per_episode_ego_rewards.append(float(self.returns[row]))
            if self.lengths[row]:
                self._close(row, complete=False, success=None)

    def _close(self, row: int, *, complete: bool, success: bool | None) -> EpisodeRecord:
        record = EpisodeRecord(
            episode_return=float(self.returns[row]),
            length=int(self.lengths[row]),
            complete=complete,
            end_frame=self.frames,
            success=success,
        )
        self.curve.episodes.append(record)
        self.returns[row] = 0.0
        self.lengths[row] = 0
        return record

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""
        return {
            "frames": self.frames,
            "iterations": self.iterations,
            "returns": torch.tensor(self.returns),
            "lengths": torch.tensor(self.lengths),
            "last_return": self.last_return,
            "curve": _curve_state(self.curve),
            "window": asdict(self.window),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, paths: Sequence[Path]) -> None:
        """Continue from `state_dict`; ``paths`` are the policy checkpoints where they are now."""
        self.frames = int(state["frames"])
        self.iterations = int(state["iterations"])
        self.returns = cast("torch.Tensor", state["returns"]).numpy().copy()
        self.lengths = cast("torch.Tensor", state["lengths"]).numpy().copy()
        self.last_return = state["last_return"]
        self.curve = _stored_curve(self.curve.run_id, state["curve"], paths)
        self.window = RolloutWindow(**state["window"])


def _curve_state(curve: RewardCurve) -> dict[str, Any]:
    """Return a curve without its paths as tensors and plain values."""
    episodes, told = curve.episodes, curve.validations
    counts = [[e.length, e.complete, e.end_frame, _SUCCESS_CODES[e.success]] for e in episodes]
    return {
        "per_step": torch.tensor(curve.per_step_ego_rewards, dtype=torch.float64),
        "returns": torch.tensor([e.episode_return for e in episodes], dtype=torch.float64),
        "counts": torch.tensor(counts, dtype=torch.int64).reshape(-1, 4),
        "evaluations": [[e.frame, dict(e.results)] for e in curve.evaluations],
        **({"validations": [[e.frame, dict(e.results)] for e in told]} if told else {}),
    }


def _stored_curve(run_id: str, state: Mapping[str, Any], paths: Sequence[Path]) -> RewardCurve:
    """Return the curve that `_curve_state` stored, with the given checkpoint paths."""
    decoded = {code: flag for flag, code in _SUCCESS_CODES.items()}
    rows = zip(state["returns"].tolist(), state["counts"].tolist(), strict=True)
    episodes = [
        EpisodeRecord(
            episode_return=total,
            length=length,
            complete=bool(complete),
            end_frame=end_frame,
            success=decoded[success],
        )
        for total, (length, complete, end_frame, success) in rows
    ]
    return RewardCurve(
        run_id=run_id,
        per_step_ego_rewards=state["per_step"].tolist(),
        per_episode_ego_rewards=[e.episode_return for e in episodes if e.complete],
        checkpoint_paths=list(paths),
        episodes=episodes,
        evaluations=_stored_records(state["evaluations"]),
        validations=_stored_records(state.get("validations", ())),
    )


def _stored_records(pairs: Sequence[Any]) -> list[EvaluationRecord]:
    return [EvaluationRecord(frame=int(frame), results=dict(told)) for frame, told in pairs]


def finite_reward(reward: Any) -> float:
    """Return ``reward`` as a float.

    Raises:
        InputError: It is NaN or infinite.
    """
    value = float(reward)
    if not math.isfinite(value):
        raise NonFiniteError(
            f"train: expected a finite reward from the environment, got {value}; look for a "
            "division by zero or an exploding state in its step."
        )
    return value


def batch_of(name: str, values: Any, count: int, dtype: type[Any]) -> NDArray[Any]:
    """Return ``values`` as an array of shape (``count``,); a scalar stands for all.

    Raises:
        InputError: Another shape.
    """
    detach: Callable[[], Any] | None = getattr(values, "detach", None)
    plain = values if detach is None else detach().cpu().numpy()
    array = np.asarray(plain, dtype=dtype)
    if array.ndim == 0:
        return np.full(count, array, dtype=dtype)
    if array.shape != (count,):
        raise InputError(
            f"train: expected {name} of shape ({count},) from a batch of env.num_envs = {count} "
            f"environments, got {array.shape}; check env.num_envs."
        )
    return array


def observation_digest(obs: Observation) -> str:
    """Return the SHA-256 over every name, array and value of ``obs``, nested to any depth."""
    digest = hashlib.sha256()
    _feed(digest, obs)
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:
    """Add ``value`` to ``digest`` with its type and shape, so that no two values look alike."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, object]", value)
        digest.update(b"{%d" % len(mapping))
        for key in sorted(mapping):
            _feed(digest, key)
            _feed(digest, mapping[key])
    elif isinstance(value, str) or value is None:
        digest.update(repr(value).encode("utf-8"))
    elif isinstance(value, torch.Tensor):
        _feed(digest, value.detach().cpu().numpy())
    elif isinstance(value, np.ndarray | np.generic | bool | int | float):
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    elif isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        digest.update(b"[%d" % len(items))
        for item in items:
            _feed(digest, item)
    elif is_dataclass(value):
        for entry in fields(value):
            _feed(digest, entry.name)
            _feed(digest, getattr(value, entry.name))
    else:
        raise CheckpointError(
            "observation: expected mappings, sequences, dataclasses, arrays, numbers or text, got "
            f"{type(value).__name__}; convert it in the environment, or a resumed run cannot be "
            "compared with the stored one."
        )
