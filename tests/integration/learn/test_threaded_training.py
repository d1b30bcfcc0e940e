"""Learning from a thread that collects: warm-up, prefetching loader, errors, a clean end."""

import threading

import gymnasium
import pytest
import torch

from cadenza.learn import Trainer
from cadenza.learn.algorithms.dqn import EpsilonGreedyPolicy, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator, Checkpointer, CheckpointLoader
from cadenza.learn.collectors import SampleInsertRatio, ThreadedGymCollector
from cadenza.learn.env import DictGymWrapper, ReplayableEnv
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy, MemoryWarmup
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn.action_value_mlp import DiscreteQMlp
from cadenza.learn.proxies import GenericAgentProxy
from cadenza.learn.trainer import TrainingStartError
from tests.campaigns import size


class Breaks(gymnasium.Wrapper):
    """Fails at its 40th step."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 40:
            raise ZeroDivisionError("the simulator broke")
        return self.env.step(action)


def build(folder, *, steps, rows_wanted=64, wrap=lambda env: env, prefetch=0):
    def make(index):
        return lambda: ReplayableEnv(wrap(gymnasium.make("CartPole-v1")), root_seed=0, index=index)

    env = DictGymWrapper(
        gymnasium.vector.SyncVectorEnv([make(i) for i in range(2)], autoreset_mode="SameStep")
    )
    q_net = DiscreteQMlp(4, 2, [16], generator=torch.Generator().manual_seed(0))
    policy = EpsilonGreedyPolicy(q_net, epsilon=0.3)
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), False, env.dict_space)
    table = DictObsMemoryTable(
        spaces=env.dict_space, use_terminal_column=True, maxlen=2_000, device="cpu"
    )
    memory = MemoryTableProxy(table, use_terminal=True)
    collector = ThreadedGymCollector(
        env, agent, memory, ratio=SampleInsertRatio(16.0), pause_every=20
    )
    loader = MemoryLoader(table, rows_wanted, 1, "batch_size", prefetch=prefetch)
    losses = [
        QTarget(q_net=q_net),
        QLoss(name="q", q=q_net, opt=torch.optim.Adam(q_net.parameters(), 1e-3)),
    ]
    parts = [*losses, collector, memory]
    callbacks = [
        CheckpointLoader(
            restorees=parts, run_root=folder, checkpoint_index="latest", missing_ok=True
        ),
        collector,
        MemoryWarmup(loader, None, shutdown_signal=collector.shutdown_signal),
        *losses,
        Checkpointer(
            restorees=parts, run_root=folder, checkpoint_interval=20, checkpoint_index="latest"
        ),
        BackPropStepsTerminator(steps),
    ]
    return Trainer(callbacks, loader), collector, table


def no_thread_is_left():
    return not [t for t in threading.enumerate() if t.name == "ThreadedGymCollector"]


@pytest.mark.parametrize("prefetch", size([2], [0, 2]))
def test_training_waits_for_data_learns_and_goes_on_from_its_checkpoint(prefetch, tmp_path):
    trainer, collector, table = build(tmp_path, steps=60, prefetch=prefetch)
    trainer.train()
    assert trainer.state["bp_step"] == 60
    assert no_thread_is_left()
    # 60 batches of 64 rows ask for 240 transitions after those of the warm-up, at 16 rows each.
    assert collector.inf_step >= 64 + 60 * 64 // 16 - 8
    assert 0 < table.size() <= collector.inf_step
    before = collector.inf_step
    trainer, collector, table = build(tmp_path, steps=80, prefetch=prefetch)
    trainer.train()
    assert trainer.state["bp_step"] == 80
    assert collector.inf_step >= before - 16  # from the checkpoint of step 60, in which it rested
    assert no_thread_is_left()


def test_simulator_that_breaks_during_the_warm_up_ends_the_wait(tmp_path):
    trainer, _, _ = build(tmp_path, steps=60, rows_wanted=5_000, wrap=Breaks)
    with pytest.raises(TrainingStartError, match="the simulator broke") as caught:
        trainer.train()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert no_thread_is_left()


def test_simulator_that_breaks_during_training_ends_it(tmp_path):
    trainer, _, _ = build(tmp_path, steps=100_000, rows_wanted=8, wrap=Breaks)
    with pytest.raises((ZeroDivisionError, TrainingStartError), match="the simulator broke"):
        trainer.train()
    assert no_thread_is_left()
