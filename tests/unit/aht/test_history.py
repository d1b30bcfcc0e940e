"""Counters, reward curve and rollout window of a run."""

import numpy as np

from cadenza.aht.seat import History, RolloutWindow, SeatStep
from cadenza.aht.types import EpisodeRecord, EvaluationRecord


def test_window_figures_of_a_hand_example():
    window = RolloutWindow()
    for reward, flags in [(1.0, {"is_grasped": True, "success": True}), (3.0, {"is_grasped": 0})]:
        window.add_step(reward, flags)
    window.add_episode(
        EpisodeRecord(episode_return=4.0, length=2, complete=True, end_frame=2, success=True)
    )
    window.add_episode(EpisodeRecord(episode_return=-2.0, length=2, complete=True, end_frame=4))
    assert window.figures() == {
        "mean_reward": 2.0,
        "n_episodes": 2,
        "mean_episode_return": 1.0,
        "episode_success_rate": 1.0,
        "grasp_rate": 0.5,
        "place_rate": 0.0,
        "static_rate": 0.0,
        "success_rate": 0.5,
    }
    assert window.last_reward == 3.0


def test_window_of_a_task_without_stages_has_no_stage_rates():
    window = RolloutWindow()
    window.add_step(1.0, {"success": True})
    assert window.figures() == {"mean_reward": 1.0}


def test_window_stage_flags_of_a_batch_are_averaged():
    window = RolloutWindow()
    window.add_step(0.0, {"is_grasped": np.array([True, False, False, False])})
    assert window.figures()["grasp_rate"] == 0.25


def step(rewards, ended=(False, False), info=None) -> SeatStep:
    """What two environments returned."""
    none = np.zeros(2, dtype=bool)
    return SeatStep({}, np.array(rewards), 0.0, np.array(ended), none, info or {})


def filled() -> History:
    history = History("run", 2)
    history.record(step((1.0, 2.0)))
    history.record(step((0.5, -1.0), ended=(False, True), info={"success": True}))
    history.curve.evaluations.append(EvaluationRecord(frame=4, results={"success_rate": 0.5}))
    history.record(step((0.0, 7.0)))
    return history


def test_history_counts_steps_frames_and_episodes():
    history = filled()
    assert (history.iterations, history.frames) == (3, 6)
    assert history.curve.per_step_ego_rewards == [1.5, -0.25, 3.5]
    assert history.curve.per_episode_ego_rewards == [1.0]
    assert history.curve.episodes == [
        EpisodeRecord(episode_return=1.0, length=2, complete=True, end_frame=4, success=True)
    ]
    assert (history.returns.tolist(), history.lengths.tolist()) == ([1.5, 7.0], [3, 1])
    assert history.last_return == 1.0
    assert history.window.figures()["episode_success_rate"] == 1.0


def test_history_at_the_end_with_the_upstream_list_has_even_empty_episodes():
    history = filled()
    history.record(step((0.0, 0.0), ended=(True, False)))
    history.finish(upstream_list=True)
    assert history.curve.per_episode_ego_rewards == [1.0, 1.5, 0.0, 7.0]
    assert [e.complete for e in history.curve.episodes] == [True, True, False]
