"""What memory returns is what happened: rows agree with the environment's own motion."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors import SimpleGymCollector
from cadenza.learn.env import DictGymWrapper
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.proxies import GenericAgentProxy
from tests.campaigns import size
from tests.unit.learn.env.counting_env import (
    MODES,
    TERMINATED,
    TRUNCATED,
    VECTOR_CLASSES,
    CountingEnv,
    vector,
)


class RandomPolicy(nn.Module):
    """Uniform actions in [-1, 1]."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, *inputs):
        draws = torch.rand(len(inputs[0]), self.size, generator=self.generator)
        return 2.0 * draws - 1.0


class EveryBatch(Callback):
    """Gives each batch to a function."""

    def __init__(self, check):
        super().__init__()
        self.data_group = "default"
        self.check = check

    def backward(self, observation, next_observation, actions, rewards, masks, terminal):
        self.check(
            {key: value.numpy() for key, value in observation.items()},
            {key: value.numpy() for key, value in next_observation.items()},
            actions.numpy(),
            rewards.numpy()[:, 0],
            masks.numpy()[:, 0],
            terminal.numpy(),
        )


def train(env, check, *, keys=("obs",), steps=500, count=5, length=1, maxlen=1000):
    """Collect and check batches for some steps; return the number of rows checked."""
    space = env.dict_space
    agent = GenericAgentProxy(
        RandomPolicy(space.actions.shape[0]), "cpu", keys, ("actions",), False, space
    )
    table = DictObsMemoryTable(spaces=space, use_terminal_column=True, maxlen=maxlen, device="cpu")
    memory = MemoryTableProxy(table, use_terminal=True)
    collector = SimpleGymCollector(env, agent, memory, warmup_steps=100, bp_steps_per_inf=2)
    loader = MemoryLoader(table, count, length, "batch_size")
    trainer = Trainer([collector, EveryBatch(check), BackPropStepsTerminator(steps)], loader)
    trainer.train()
    env.close()
    return trainer.state["bp_samples"]


#: How (environment, episode, step) changes in one step.
ONE_STEP = np.array([0, 0, 1])
PLAN = ((1, TERMINATED), (4, TRUNCATED), (7, TERMINATED), (2, TRUNCATED), (5, TRUNCATED))


@pytest.mark.parametrize("kind", VECTOR_CLASSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", size([2], [1, 2, 5]))
def test_windows_of_a_counting_environment_are_exact(kind, mode, length):
    """Each row is one step of one episode; only a terminated end has mask 0."""
    ends = set()

    def check(observation, following, actions, rewards, masks, terminal):
        now, then = observation["position"].astype(int), following["position"].astype(int)
        np.testing.assert_array_equal(then, now + ONE_STEP)
        np.testing.assert_array_equal(observation["kind"], now[:, 0])
        np.testing.assert_array_equal(rewards, 100.0 * now[:, 1] + now[:, 2] + 1)
        for window in now.reshape(-1, length, 3):
            np.testing.assert_array_equal(window, window[0] + np.arange(length)[:, None] * ONE_STEP)
        for (_, episode, t), mask in zip(then, masks, strict=True):
            steps, (terminated, _) = PLAN[episode % len(PLAN)]
            assert mask == (0.0 if t == steps and terminated else 1.0)
            ends.add((t == steps, terminated))
        assert terminal.shape == (len(now) // length,)

    makers = [partial(CountingEnv, index, PLAN, as_dict=True) for index in range(2)]
    env = DictGymWrapper(vector(*makers, mode=mode, kind=kind))
    rows = train(env, check, keys=("position", "kind"), steps=60, count=8, length=length)
    assert rows == 60 * 8 * length
    assert ends == {(True, True), (True, False), (False, True), (False, False)}
