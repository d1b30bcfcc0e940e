"""Policies by import path, demonstrations, and weights on their board."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, StorageError
from cadenza.stream.policies import DemonstrationPolicy, make_policy
from cadenza.stream.policy_board import PolicyBoard
from tests.stream_worlds import CountingEnv, HalfPolicy, counting


def test_object_that_cannot_act_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected an object with act\(observations\)"):
        make_policy({"factory": "tests.stream_worlds:no_policy"}, counting(1), 0)


class OtherMethods(HalfPolicy):
    """Has methods of the names that producers know, with other parameters."""

    def __init__(self, env: Any, seed: int, name: str) -> None:
        super().__init__(env, seed)
        others = {
            "act": lambda: None,
            "reset": lambda: None,
            "segment_ids": lambda count: count,
            "success": 0.5,
            "load_parameters": lambda state_dict, strict: None,
        }
        setattr(self, name, others[name])


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("act", r"act\(observations\), got act\(\): too many positional arguments"),
        ("reset", r"reset\(rows\), got reset\(\): too many positional arguments"),
        ("segment_ids", r"segment_ids\(\), got segment_ids\(count\): missing a .* 'count'"),
        ("success", r"success\(infos\), got no method but 0.5"),
        ("load_parameters", r"load_parameters\(state_dict\), got .*: missing a .* 'strict'"),
    ],
)
def test_methods_with_other_parameters_are_refused(method: str, told: str) -> None:
    policy = {"factory": f"{__name__}:OtherMethods", "kwargs": {"name": method}}
    with pytest.raises(
        ConfigurationError, match=rf"OtherMethods\.{method} to be callable as {told}; change"
    ):
        make_policy(policy, counting(1), 0)


def test_demonstration_of_the_vector_environment_comes_first() -> None:
    env: Any = counting(2)
    env.create_demo_action_list = lambda: np.arange(4.0).reshape(2, 2, 1)
    played = DemonstrationPolicy(env)
    assert played.plan().tolist() == [2, 2]
    assert played.act(None).tolist() == [[0.0], [1.0]]
    assert played.act(None).tolist() == [[2.0], [3.0]]
    assert played.finished().all()
    env.create_demo_action_list = lambda: None
    assert played.plan().tolist() == [0, 0]


def test_segments_of_the_vector_environment_come_before_its_action_list() -> None:
    env: Any = counting(2)
    env.create_demo_action_list = lambda: np.zeros((9, 2, 1))
    env.create_demo_segments = lambda: [np.arange(4.0).reshape(2, 2, 1), None, [[[4.0], [5.0]]]]
    played = DemonstrationPolicy(env)
    assert played.plan().tolist() == [3, 3]
    answers = [(played.act(None).tolist(), played.segment_ids().tolist()) for _ in range(3)]
    assert answers == [([[0.0], [1.0]], [0, 0]), ([[2.0], [3.0]], [0, 0]), ([[4.0], [5.0]], [2, 2])]
    env.create_demo_segments = lambda: None
    assert played.plan().tolist() == [0, 0]
    assert played.segment_ids().tolist() == [-1, -1]


def test_demonstrations_of_another_form_are_refused() -> None:
    env: Any = counting(1)
    env.create_demo_segments = lambda: [0.5, 0.5]
    with pytest.raises(InputError, match=r"lists of actions from create_demo_segments\(\), got fl"):
        DemonstrationPolicy(env).plan()
    env.create_demo_segments = lambda: 7
    with pytest.raises(InputError, match="expected a list from a demonstration, got int"):
        DemonstrationPolicy(env).plan()


def test_error_of_a_demonstration_itself_is_not_hidden(monkeypatch) -> None:
    def broken(_: Any) -> None:
        raise AttributeError("no attribute 'gripper'")

    monkeypatch.setattr(CountingEnv, "create_demo_action_list", broken)
    with pytest.raises(AttributeError, match="gripper"):
        DemonstrationPolicy(counting(1)).plan()


def test_environment_without_demonstrations_gets_random_actions(monkeypatch) -> None:
    assert isinstance(make_policy(None, counting(1), 0), DemonstrationPolicy)
    monkeypatch.delattr(CountingEnv, "create_demo_action_list")
    env: Any = counting(3)
    drawn = make_policy(None, env, 7)
    actions = [drawn.act(None) for _ in range(20)]
    assert all(action in env.action_space for action in actions)
    assert len(np.unique(actions)) > 50
    again = make_policy(None, counting(3), 7)
    np.testing.assert_array_equal([again.act(None) for _ in range(20)], actions)


def test_weights_come_back_with_their_version() -> None:
    board = PolicyBoard()
    assert board.read() is None
    board.write(1, {"w": torch.arange(3.0)})
    board.write(2, {"w": torch.ones(1000), "name": "a"})
    board.write(3, {"w": torch.zeros(2)})
    found = board.read()
    assert found is not None
    assert found[0] == 3
    assert torch.equal(found[1]["w"], torch.zeros(2))


def test_half_written_weights_are_left_alone(monkeypatch) -> None:
    board, seen, pwrite = PolicyBoard(), [], os.pwrite

    def write_and_read(*arguments: Any) -> int:
        written = pwrite(*arguments)
        seen.append(board.read())
        return written

    board.write(1, {"w": torch.ones(100)})
    monkeypatch.setattr(os, "pwrite", write_and_read)
    board.write(2, {"w": torch.zeros(100)})
    *during, (version, _) = seen
    assert (during, version) == ([None], 2)


def test_weights_that_cannot_be_sent_are_refused(monkeypatch) -> None:
    board = PolicyBoard()
    with pytest.raises(CheckpointError, match="expected a tensor or a plain value"):
        board.write(1, {"w": object()})

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StorageError, match=r"expected room for \d+ bytes in shared memory"):
        board.write(1, {"w": torch.ones(1)})
