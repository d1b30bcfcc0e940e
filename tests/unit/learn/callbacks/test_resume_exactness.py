"""A run of 2N steps and one of N steps that is resumed for N more must give equal bits."""

import itertools

import pytest
import torch
from torch import nn

from cadenza.learn import Trainer
from cadenza.learn.callbacks import (
    BackPropStepsTerminator,
    Checkpointer,
    CheckpointLoader,
    LossCallback,
)

WIDTH = 4


class Regression(LossCallback):
    """Loss with dropout (global generator) and a decaying learning rate."""

    def loss(self, observation, target):
        return ((self.network(observation) - target) ** 2).mean()


class Rows:
    """A loader with its own generator, which is a restoree."""

    def __init__(self):
        self.name = "rows"
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self):
        while True:
            observation = torch.randn(8, WIDTH, generator=self.generator)
            target = observation.sum(1, keepdim=True)
            yield {"default": {"observation": observation, "target": target}, "batch_size": 8}

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state, load_network=True, load_optimizer=True, load_hparams=True):
        self.generator.set_state(state["generator"])


def parts():
    """Return a loss and a loader, always the same at the start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
    loss = Regression(
        schedule,
        name="fit",
        network=network,
        optimizer=optimizer,
        max_grad_norm=1.0,
        data_group="default",
    )
    return loss, Rows()


def run(root, steps, *, resume=False, **options):
    loss, rows = parts()
    saver = Checkpointer(restorees=[loss, rows], run_root=root, checkpoint_interval=5, **options)
    callbacks = [loss, saver, BackPropStepsTerminator(steps)]
    if resume:
        callbacks.append(
            CheckpointLoader(restorees=[loss, rows], run_root=root, checkpoint_index="latest")
        )
    trainer = Trainer(callbacks, rows)
    trainer.train()
    return loss, rows, trainer


def final_bits(loss, rows, trainer):
    """Return everything that must be equal at the end."""
    tensors = itertools.chain(loss.network.state_dict().values(), [rows.generator.get_state()])
    moments = [value for entry in loss.optimizer.state.values() for value in entry.values()]
    scalars = dict(loss.scalar_logs.items())
    numbers = (scalars, trainer.state["bp_step"], trainer.state["bp_samples"])
    return [tensor.clone() for tensor in (*tensors, *moments)], numbers, torch.get_rng_state()


@pytest.mark.parametrize("options", [{}, {"asynchronous": True}])
def test_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path, options):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        unbroken = final_bits(*run(tmp_path / "unbroken", 20))
    with torch.random.fork_rng():
        torch.manual_seed(7)
        run(tmp_path / "broken", 10, **options)
        torch.manual_seed(99)  # a new process has other global generators
        resumed = final_bits(*run(tmp_path / "broken", 20, resume=True, **options))
    assert unbroken[1] == resumed[1]
    assert all(torch.equal(a, b) for a, b in zip(unbroken[0], resumed[0], strict=True))
    assert torch.equal(unbroken[2], resumed[2])


def test_run_saved_at_its_end_goes_on_with_the_next_step(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        unbroken = final_bits(*run(tmp_path / "unbroken", 20))
        torch.manual_seed(7)
        run(tmp_path / "broken", 13, save_at_end=True)  # 13 is no multiple of the interval
        torch.manual_seed(1)
        resumed = final_bits(*run(tmp_path / "broken", 20, resume=True))
    assert unbroken[1] == resumed[1]
    assert all(torch.equal(a, b) for a, b in zip(unbroken[0], resumed[0], strict=True))
