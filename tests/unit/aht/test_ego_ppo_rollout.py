import numpy as np
import pytest
import torch

from cadenza.aht.ego_ppo_rollout import RolloutBuffer, RolloutShape
from tests.unit.aht.ego_ppo_fakes import MadeUpTask, advance, observation, trainer, weights

SHAPE = RolloutShape(capacity=4, num_envs=2, observation_dim=3, action_dim=1)
CPU = torch.device("cpu")


def states(value):
    return np.full((2, 3), value, dtype=np.float32)


def filled():
    """Three steps: environment 0 is cut at step 1, environment 1 terminates at step 0."""
    buffer = RolloutBuffer(SHAPE, CPU)
    for step, (ended, bounded) in enumerate([((0, 1), (0, 1)), ((0, 0), (1, 0)), ((0, 0), (0, 0))]):
        buffer.stage(states(step))
        buffer.stage_action(torch.zeros(2, 1), torch.ones(1), torch.Generator().manual_seed(step))
        if step == 1:
            buffer.add_final_states(np.array([0]), states(50)[:1])
        terminated, boundary = np.array(ended, dtype=bool), np.array(bounded, dtype=bool)
        buffer.commit(np.array([step, -step]), terminated, boundary, states(10 + step))
    return buffer


def test_critic_inputs_are_steps_then_newest_then_final_states():
    inputs = filled().critic_inputs()
    assert inputs[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 12, 12, 50]


def test_following_values_stop_at_ends_and_jump_at_time_limits():
    buffer = filled()
    # V equals ten times the first entry of the state it belongs to.
    current, following = buffer.split_values(10 * buffer.critic_inputs()[:, 0].numpy())
    assert current.tolist() == [[0, 0], [10, 10], [20, 20]]
    assert following.tolist() == [[10, 0], [500, 20], [120, 120]]


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
