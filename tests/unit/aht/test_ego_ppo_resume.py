"""A learner that was saved, at any point, continues as if nothing had happened."""

import copy
import io

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, NotReadyError
from tests.unit.aht.ego_ppo_fakes import MadeUpTask, advance, observation, trainer, weights

ROLLOUT = 12
STEPS = 30


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def play(learner, task, state, first, last):
    """Take steps ``first`` ... ``last`` - 1 of a run with its updates."""
    actions = []
    for step in range(first, last):
        taken, state = advance(learner, task, state, 1)
        actions.append(taken)
        if (step + 1) % ROLLOUT == 0:
            learner.update()
    return actions, state


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


@pytest.mark.parametrize(("stop", "num_envs"), [(0, 3), (7, None), (7, 3), (12, None), (29, 3)])
def test_resumed_run_equals_unbroken_run(stop, num_envs):
    settings = {"num_envs": num_envs, "extras": {"lr_decay": True}, "total_frames": 100}
    unbroken, task = trainer(**settings), MadeUpTask(2, num_envs)
    expected, _ = play(unbroken, task, task.state(), 0, STEPS)

    task = MadeUpTask(2, num_envs)
    first = trainer(**settings)
    before, state = play(first, task, task.state(), 0, stop)
    saved = through_a_file(first.training_state())
    play(first, copy.deepcopy(task), state, stop, STEPS)  # the old process lives on, unseen
    second = trainer(**settings)
    second.load_training_state(saved)
    after, _ = play(second, task, state, stop, STEPS)

    assert np.array_equal(np.array(before + after), np.array(expected))
    final, other = weights(unbroken), weights(second)
    assert all(torch.equal(final[name], other[name]) for name in final)
    one, two = leaves(unbroken.training_state()), leaves(second.training_state())
    for mine, theirs in zip(one, two, strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_drawn_action_that_waits_cannot_be_saved():
    learner, task = trainer(), MadeUpTask(2)
    learner.act(observation(task.state()))
    with pytest.raises(NotReadyError, match=r"observe\(\) after act\(\)"):
        learner.training_state()


def test_training_state_is_a_snapshot():
    learner, task = trainer(), MadeUpTask(2)
    _, state = play(learner, task, task.state(), 0, 14)
    saved = learner.training_state()
    copied = copy.deepcopy(saved)
    play(learner, task, state, 14, STEPS)
    for mine, theirs in zip(leaves(saved), leaves(copied), strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_loading_into_a_used_learner_forgets_its_rollout():
    fresh, used, task = trainer(), trainer(), MadeUpTask(2)
    advance(used, task, task.state(), 5)
    used.load_training_state(trainer().training_state())
    actions = []
    for learner in (fresh, used):
        task = MadeUpTask(3)
        actions.append(advance(learner, task, task.state(), ROLLOUT)[0])
    assert np.array_equal(*actions)


def test_loading_a_policy_checkpoint_forgets_the_rollout():
    learner, task = trainer(), MadeUpTask(2)
    advance(learner, task, task.state(), 5)
    learner.load_state_dict(trainer(seed=5).state_dict())
    before = weights(learner)
    learner.update()
    after = weights(learner)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_states_that_do_not_fit_are_refused():
    learner, task = trainer(), MadeUpTask(2)
    advance(learner, task, task.state(), 10)
    whole = learner.training_state()
    attempts = [
        ({}, whole | {"version": 99}, "expected a state of version 1, got 99"),
        ({"rollout_length": 6}, whole, "belongs to another configuration"),
        ({"hidden_dim": 16}, whole, "complete state of this configuration"),
    ]
    for name in whole.keys() - {"version"}:
        rest = {key: value for key, value in whole.items() if key != name}
        attempts.append(({}, rest, "expected a complete state"))
    for settings, state, told in attempts:
        with pytest.raises(CheckpointError, match=told):
            trainer(**settings).load_training_state(state)
