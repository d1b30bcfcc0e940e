"""Memory, loader, loss, loggers and checkpoints together: a resumed run equals an unbroken one."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, DictResponse, EpisodeState, MetaData
from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import (
    BackPropStepsTerminator,
    Checkpointer,
    CheckpointLoader,
    JsonlLogger,
    LossCallback,
)
from cadenza.learn.memory import LoggingProxyWrapper, MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable

EPISODE = 6
SPACES = MDPSpace(
    rewards=BoxSpace(np.float32, (1,)),
    actions=BoxSpace(np.float32, (1,)),
    state=DictSpace({"obs": BoxSpace(np.float32, (2,))}),
)


class Silent:
    """A writer that keeps the names of what it is given."""

    def __init__(self):
        self.tags = set()

    def __getattr__(self, name):
        return lambda tag=None, *args, **kwargs: self.tags.add(tag)


class Walk(Callback):
    """Collects one step of a random walk per batch; its own state is a restoree too."""

    def __init__(self, proxy):
        super().__init__()
        self.proxy = proxy
        self.generator = torch.Generator().manual_seed(5)
        self.agent, self.age, self.resumed = 0, 0, False

    def begin_training(self):
        for _ in range(0 if self.resumed else 3 * EPISODE):
            self.collect()

    def begin_batch(self):
        self.collect()

    def collect(self):
        place = torch.randn(2, generator=self.generator).numpy()
        ended = self.age == EPISODE
        state = EpisodeState.TERMINAL if ended else EpisodeState.RUNNING
        state = EpisodeState.INITIAL if self.age == 0 else state
        reward = None if self.age == 0 else float(place[0])
        metadata = MetaData({"episode/place": float(place[1])}, {})
        observation = DictObservation({"reward": reward}, state, {"obs": place}, metadata)
        responses = {} if ended else {self.agent: DictResponse({"actions": [0.5]}, {})}
        self.proxy.add({self.agent: observation}, responses)
        self.agent, self.age = (self.agent + 1, 0) if ended else (self.agent, self.age + 1)

    def state_dict(self):
        return {
            "generator": self.generator.get_state(),
            "agent": self.agent,
            "age": self.age,
        }

    def load_state_dict(
        self, state_dict, load_network=True, load_optimizer=True, load_hparams=True
    ):
        self.generator.set_state(state_dict["generator"])
        self.agent, self.age, self.resumed = state_dict["agent"], state_dict["age"], True


class Reward(LossCallback):
    """Predicts the reward from the observation."""

    def loss(self, observation, rewards):
        return ((self.network(observation["obs"]) - rewards) ** 2).mean()


def run(root, steps, *, resume):
    table = DictObsMemoryTable(
        spaces=SPACES, use_terminal_column=True, maxlen=40, device="cpu", seed=11
    )
    writer = Silent()
    proxy = LoggingProxyWrapper(MemoryTableProxy(table, 1, True), writer, 5)
    network = nn.Linear(2, 1)
    nn.init.constant_(network.weight, 0.5)
    nn.init.constant_(network.bias, 0.0)
    loss = Reward(
        name="reward",
        network=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=0.05),
        max_grad_norm=1.0,
        data_group="default",
    )
    walk = Walk(proxy)
    log = JsonlLogger([loss, proxy], root / "log.jsonl", 3)
    parts = {"restorees": [loss, proxy, walk, log], "run_root": root}
    callbacks = [walk, loss, log, Checkpointer(**parts, checkpoint_interval=10, save_at_end=True)]
    if resume:
        callbacks.append(CheckpointLoader(**parts, checkpoint_index="latest"))
    loader = MemoryLoader(table, 4, 1, "batch_size")
    Trainer([*callbacks, BackPropStepsTerminator(steps)], loader).train()
    return loss, proxy, table


def log_of(root):
    lines = [json.loads(line) for line in (root / "log.jsonl").read_text().splitlines()]
    for line in lines:  # speeds differ from run to run
        line.pop("non_finite", None)
        line["scalars"] = {
            key: value
            for key, value in line["scalars"].items()
            if not any(word in key for word in ("per_sec", "timing"))
        }
    return lines


@pytest.mark.parametrize("broken_at", [20, 23])
def test_run_with_memory_and_logs_resumes_bit_for_bit(tmp_path, broken_at):
    loss, proxy, table = run(tmp_path / "whole", 50, resume=False)
    run(tmp_path / "parts", broken_at, resume=False)
    again, proxy_again, table_again = run(tmp_path / "parts", 50, resume=True)
    for name, value in loss.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
    assert table_again.size() == table.size() <= 40
    assert proxy_again.completed_inferences == proxy.completed_inferences == 3 * EPISODE + 50
    assert proxy_again.windowed_scalar == proxy.windowed_scalar
    assert proxy_again.windowed_scalar_cumulative == proxy.windowed_scalar_cumulative
    assert log_of(tmp_path / "parts") == log_of(tmp_path / "whole")
    assert len(log_of(tmp_path / "whole")) == 16
