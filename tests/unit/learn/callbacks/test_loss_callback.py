import copy

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from cadenza.core.errors import CheckpointKeyError, InputError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.callbacks import LossCallback


class SquaredError(LossCallback):
    """Mean of ``(w x - y)^2``."""

    def loss(self, x, y):
        return ((self.network(x) - y) ** 2).mean()


class RowLoss(LossCallback):
    """The same, one value per row."""

    def loss(self, x, y):
        return ((self.network(x) - y) ** 2).squeeze(1)


def linear(weight=2.0):
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, weight)
    return network


def make(
    kind=SquaredError, schedule=None, weight=2.0, max_grad_norm=100.0, momentum=0.0, **options
):
    network = linear(weight)
    optimizer = optim.SGD(network.parameters(), lr=0.25, momentum=momentum)
    return kind(
        schedule(optimizer) if schedule else None,
        name="fit",
        network=network,
        optimizer=optimizer,
        max_grad_norm=max_grad_norm,
        data_group="default",
        **options,
    )


#: loss (2 * 1 - 5)^2 = 9, gradient 2 * (2 - 5) * 1 = -6, so w = 2 + 0.25 * 6 = 3.5
BATCH = {"x": torch.ones(3, 1), "y": torch.full((3, 1), 5.0)}


def test_backward_does_one_step_and_logs_it():
    loss = make()
    loss.backward(default=BATCH)
    assert loss.network.weight.item() == 3.5
    assert dict(loss.scalar_logs) == {
        "loss/fit_lr": 0.25,
        "loss/fit_loss": 9.0,
        "loss/fit_gradient_norm": 6.0,
    }


def test_long_gradient_is_shortened_and_logged_as_it_was():
    loss = make(max_grad_norm=2.0)
    loss.backward(default=BATCH)
    assert loss.network.weight.item() == pytest.approx(2.5, abs=1e-6)  # 2 + 0.25 * 2
    assert loss.scalar_logs["loss/fit_gradient_norm"] == 6.0


def test_loss_of_one_value_per_row_counts_as_its_mean():
    loss = make(RowLoss)
    loss.backward(default=BATCH)
    assert loss.network.weight.item() == 3.5
    assert loss.scalar_logs["loss/fit_loss"] == 9.0


class PlusConstant(RowLoss):
    """The same plus a constant, whose gradient is zero."""

    constant = float("inf")

    def loss(self, x, y):
        return super().loss(x, y) + self.constant


@pytest.mark.parametrize(
    ("kind", "x"), [(SquaredError, float("nan")), (SquaredError, 1e30), (PlusConstant, 1.0)]
)
def test_loss_that_is_not_finite_is_refused_before_the_step(kind, x):
    loss = make(kind)
    before = copy.deepcopy(loss.state_dict())
    with pytest.raises(
        InputError, match=r"fit: expected a finite loss and gradient, got (nan|inf)"
    ):
        loss.backward(default={**BATCH, "x": torch.full((3, 1), x)})
    assert loss.network.weight.item() == 2.0
    assert str(loss.state_dict()) == str(before)


def test_schedule_steps_once_per_batch_and_its_new_rate_is_logged():
    loss = make(schedule=lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    loss.backward(default=BATCH)
    assert loss.scalar_logs["loss/fit_lr"] == 0.125
    loss.backward(default=BATCH)
    assert loss.scalar_logs["loss/fit_lr"] == 0.0625


def test_loss_is_injected_by_group_position_and_keyword():
    loss = make()
    assert loss.loss(default=BATCH, bp_step=1).item() == 9.0
    assert loss.loss(BATCH["x"], BATCH["y"]).item() == 9.0
    assert loss.loss(**BATCH).item() == 9.0


def nested(**options):
    network = nn.Sequential()
    network.body = nn.Linear(2, 1)
    network.head = nn.Linear(1, 1)
    optimizer = optim.SGD([network.body.weight, network.head.bias], lr=0.0)
    return SquaredError(
        name="net",
        network=network,
        optimizer=optimizer,
        max_grad_norm=1e6,
        data_group=None,
        **options,
    )


def test_named_parameters_are_those_that_the_optimizer_steps():
    loss = nested()
    assert list(loss.named_parameters) == ["body.weight", "head.bias"]
    assert loss.named_parameters["body.weight"] is loss.network.body.weight
    assert len(loss.parameters) == 2
    without = SquaredError(
        name="n",
        network=None,
        optimizer=optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0),
        max_grad_norm=1.0,
        data_group=None,
    )
    assert without.named_parameters == {}
    assert "network_state_dict" not in without.state_dict()


def test_parameters_and_gradients_are_logged_when_switched_on():
    loss = nested(log_per_param_weights=True, log_per_param_grads=True)
    nn.init.constant_(loss.network.body.weight, 3.0)
    loss.backward(x=torch.ones(1, 2), y=torch.ones(1, 1))
    keys = {key for key in loss.scalar_logs if not key.startswith("loss/")}
    assert keys == {
        "weight_l2/net_body_1_2",
        "weight_grads_l2/net_body_1_2",
        "bias_l2/net_head_1",
        "bias_grads_l2/net_head_1",
    }
    assert loss.scalar_logs["weight_l2/net_body_1_2"] == pytest.approx(18.0**0.5)
    gradient = loss.network.body.weight.grad
    assert loss.scalar_logs["weight_grads_l2/net_body_1_2"] == pytest.approx(gradient.norm().item())
    assert torch.equal(loss.hist_logs["weight_grads/net_body_1_2"], gradient)
    assert torch.equal(loss.hist_logs["weight/net_body_1_2"], loss.network.body.weight.detach())


SCHEDULES = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "one_cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [2],
    ),
}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_saved_schedule_goes_on_where_it_was(name):
    unbroken, first, second = (make(schedule=SCHEDULES[name]) for _ in range(3))
    rates = []
    for _ in range(6):
        unbroken.backward(default=BATCH)
        rates.append(unbroken.scalar_logs["loss/fit_lr"])
    for _ in range(3):
        first.backward(default=BATCH)
    second.load_state_dict(deserialise(serialise(first.state_dict()), max_bytes=2**20))
    resumed = []
    for _ in range(3):
        second.backward(default=BATCH)
        resumed.append(second.scalar_logs["loss/fit_lr"])
    assert resumed == rates[3:]
    assert torch.equal(second.network.weight, unbroken.network.weight)


@pytest.mark.parametrize(
    ("switches", "weight", "momentum", "logs"),
    [
        ({}, 3.5, True, True),
        ({"load_network": False}, 1.0, True, True),
        ({"load_weights": False}, 1.0, True, True),
        ({"load_optimizer": False}, 3.5, False, True),
        ({"load_optimizers": False}, 3.5, False, True),
        ({"load_hparams": False}, 3.5, True, False),
    ],
)
def test_each_part_is_loaded_only_when_asked_for(switches, weight, momentum, logs):
    source, target = make(momentum=0.5), make(momentum=0.5, weight=1.0)
    source.backward(default=BATCH)
    target.load_state_dict(source.state_dict(), **switches)
    assert target.network.weight.item() == weight
    assert bool(target.optimizer.state) is momentum
    assert ("loss/fit_loss" in target.scalar_logs) is logs


@pytest.mark.parametrize("part", ["network_state_dict", "optimizer_state_dict"])
def test_missing_part_is_named(part):
    state = make().state_dict()
    del state[part]
    with pytest.raises(CheckpointKeyError, match=f"fit: expected '{part}' in the loaded state"):
        make().load_state_dict(state)


class Noisy(nn.Linear):
    """A network with a generator of its own."""

    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.generator = torch.Generator().manual_seed(0)

    def get_extra_state(self):
        return self.generator.get_state()

    def set_extra_state(self, state):
        self.generator.set_state(state)


def noisy_loss():
    network = Noisy()
    return SquaredError(
        name="noisy",
        network=network,
        optimizer=optim.SGD(network.parameters(), lr=0.1),
        max_grad_norm=1.0,
        data_group=None,
    )


def test_generator_of_a_network_goes_on_where_it_was():
    source, target = noisy_loss(), noisy_loss()
    torch.rand(3, generator=source.network.generator)
    target.load_state_dict(deserialise(serialise(source.state_dict()), max_bytes=2**20))
    assert torch.equal(
        torch.rand(3, generator=target.network.generator),
        torch.rand(3, generator=source.network.generator),
    )
