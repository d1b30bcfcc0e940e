"""Everything the training loop itself must remember, in a form that can be stored.

`LoopState` holds counters, the running episodes, the reward curve and the open rollout window;
learner, safety filter and random generators keep their own state.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.aht.replay import EpisodeReplay
from cadenza.aht.types import EpisodeRecord, EvaluationRecord, RewardCurve
from cadenza.core.arrays import FloatArray

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


class RolloutWindow:
    """Sums over the steps since the last rollout boundary."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start a new window."""
        self.steps: int = 0
        self.reward_sum: float = 0.0
        self.last_reward: float = 0.0
        self.episodes: int = 0
        self.return_sum: float = 0.0
        self.judged: int = 0
        self.successes: int = 0
        self.has_stages: bool = False
        self.stage_sums: dict[str, float] = dict.fromkeys(_STAGE_RATES, 0.0)

    def add_step(self, reward: float, info: Mapping[str, Any]) -> None:
        """Take in one control step; ``reward`` is the batch mean."""
        self.steps += 1
        self.reward_sum += reward
        self.last_reward = reward
        if _STAGE_MARKER in info:
            self.has_stages = True
            for flag in _STAGE_RATES:
                values = np.asarray(info.get(flag, 0.0), dtype=np.float64)
                self.stage_sums[flag] += float(values.mean())

    def add_episode(self, record: EpisodeRecord) -> None:
        """Take in one complete episode."""
        self.episodes += 1
        self.return_sum += record.episode_return
        if record.success is not None:
            self.judged += 1
            self.successes += record.success

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

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {**vars(self), "stage_sums": dict(self.stage_sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a stored window."""
        for name in vars(self):
            setattr(self, name, state[name])
        self.stage_sums = dict(state["stage_sums"])


class LoopState:
    """Progress of one run: frames, control steps of N frames each, and the running episodes, (N,).

    ``episode_index`` counts resets after the first, over all environments; ``awaiting_reset``: the
    episode has ended and the next has not begun (one environment only).
    """

    def __init__(self, run_id: str, num_envs: int, first_seed: int) -> None:
        self.frames: int = 0
        self.iterations: int = 0
        self.episode_index: int = 0
        self.returns: FloatArray = np.zeros(num_envs)
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.awaiting_reset: bool = False
        self.last_return: float | None = None
        self.curve: RewardCurve = RewardCurve(run_id)
        self.window: RolloutWindow = RolloutWindow()
        self.replay: EpisodeReplay = EpisodeReplay(first_seed)

    def record_step(self, rewards: Sequence[float], info: Mapping[str, Any]) -> None:
        """Count one control step with one reward per environment."""
        self.iterations += 1
        self.frames += len(rewards)
        mean_reward = sum(rewards) / len(rewards)
        self.curve.per_step_ego_rewards.append(mean_reward)
        self.window.add_step(mean_reward, info)
        self.lengths += 1
        self.returns += rewards

    def finish_episode(self, row: int, success: bool | None) -> None:
        """Close the complete episode of environment ``row``."""
        record = self._close(row, complete=True, success=success)
        self.curve.per_episode_ego_rewards.append(record.episode_return)
        self.window.add_episode(record)
        self.last_return = record.episode_return

    def forget_episodes(self) -> None:
        """Forget the running episodes; they do not continue."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def finish_run(self, *, upstream_list: bool) -> None:
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
            "episode_index": self.episode_index,
            "returns": torch.tensor(self.returns),
            "lengths": torch.tensor(self.lengths),
            "awaiting_reset": self.awaiting_reset,
            "last_return": self.last_return,
            "curve": curve_state(self.curve),
            "window": self.window.state_dict(),
            "replay": self.replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, paths: Sequence[Path]) -> None:
        """Continue from `state_dict`; ``paths`` are the policy checkpoints where they are now."""
        self.frames = int(state["frames"])
        self.iterations = int(state["iterations"])
        self.episode_index = int(state["episode_index"])
        self.returns = cast("torch.Tensor", state["returns"]).numpy().copy()
        self.lengths = cast("torch.Tensor", state["lengths"]).numpy().copy()
        self.awaiting_reset = bool(state["awaiting_reset"])
        self.last_return = state["last_return"]
        self.curve = curve_from_state(self.curve.run_id, state["curve"], paths)
        self.window.load_state_dict(state["window"])
        self.replay.load_state_dict(state["replay"])


def curve_state(curve: RewardCurve) -> dict[str, Any]:
    """Return a curve without its paths as tensors and plain values."""
    episodes = curve.episodes
    counts = [[e.length, e.complete, e.end_frame, _SUCCESS_CODES[e.success]] for e in episodes]
    return {
        "per_step": torch.tensor(curve.per_step_ego_rewards, dtype=torch.float64),
        "returns": torch.tensor([e.episode_return for e in episodes], dtype=torch.float64),
        "counts": torch.tensor(counts, dtype=torch.int64).reshape(-1, 4),
        "evaluations": [[e.frame, dict(e.results)] for e in curve.evaluations],
    }


def curve_from_state(run_id: str, state: Mapping[str, Any], paths: Sequence[Path]) -> RewardCurve:
    """Return the curve that `curve_state` stored, with the given checkpoint paths."""
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
        evaluations=[
            EvaluationRecord(frame=int(frame), results=dict(results))
            for frame, results in state["evaluations"]
        ],
    )
