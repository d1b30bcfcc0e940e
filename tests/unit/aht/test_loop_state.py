"""Counters, reward curve and rollout window of the training loop."""

import numpy as np

from cadenza.aht.loop_state import LoopState, RolloutWindow
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


def filled_state() -> LoopState:
    state = LoopState("run", 2, 9)
    state.record_step((1.0, 2.0), {})
    state.record_step((0.5, -1.0), {})
    state.finish_episode(1, success=True)
    state.curve.evaluations.append(EvaluationRecord(frame=4, results={"success_rate": 0.5}))
    state.record_step((0.0, 7.0), {})
    state.replay.append(np.array([[1.0], [2.0]], dtype=np.float32))
    return state


def test_state_counts_steps_frames_and_episodes():
    state = filled_state()
    assert (state.iterations, state.frames) == (3, 6)
    assert state.curve.per_step_ego_rewards == [1.5, -0.25, 3.5]
    assert state.curve.per_episode_ego_rewards == [1.0]
    assert state.curve.episodes == [
        EpisodeRecord(episode_return=1.0, length=2, complete=True, end_frame=4, success=True)
    ]
    assert (state.returns.tolist(), state.lengths.tolist()) == ([1.5, 7.0], [3, 1])
    assert state.last_return == 1.0


def test_state_end_of_run_with_the_upstream_list_appends_even_empty_episodes():
    state = filled_state()
    state.finish_episode(0, success=None)
    state.finish_run(upstream_list=True)
    assert state.curve.per_episode_ego_rewards == [1.0, 1.5, 0.0, 7.0]
    assert [e.complete for e in state.curve.episodes] == [True, True, False]
