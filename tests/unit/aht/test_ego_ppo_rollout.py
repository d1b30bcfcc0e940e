import numpy as np
import pytest
import torch

from tests.unit.aht.ego_ppo_fakes import MadeUpTask, advance, observation, trainer, weights


def train_once(*, host_views):
    """Return actions and weights of one update; without host views as on an accelerator."""
    learner, task = trainer(num_envs=3), MadeUpTask(0, 3)
    state = task.state()
    if not host_views:
        generator = learner._generator.get_state()
        learner.act(observation(state))  # allocates the rollout; its draw is taken back
        learner._generator.set_state(generator)
        learner._buffer._host_rows = learner._buffer._host_actions = None
        state = torch.tensor(state)
    actions, _ = advance(learner, task, state, 12)
    learner.update()
    return actions, weights(learner)


def test_rollout_without_host_views_gives_the_same_training():
    actions, plain = train_once(host_views=True)
    others, other = train_once(host_views=False)
    assert np.array_equal(actions, others)
    assert all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_envs", [None, 3])
def test_training_on_cuda_moves_weights_and_resumes(num_envs):
    learner, task = trainer(num_envs=num_envs, runtime={"device": "cuda"}), MadeUpTask(0, num_envs)
    before = weights(learner)
    start = weights(trainer(num_envs=num_envs))
    assert all(torch.equal(value.cpu(), start[name]) for name, value in before.items())
    _, state = advance(learner, task, task.state(), 12)
    learner.update()
    assert all(not torch.equal(value, before[name]) for name, value in weights(learner).items())
    other = trainer(num_envs=num_envs, runtime={"device": "cuda"})
    other.load_training_state(learner.training_state())
    assert np.array_equal(learner.act(observation(state)), other.act(observation(state)))
