"""Q-learning targets, losses and gradients against hand calculations; target updates; resume."""

import pytest
import torch
from torch import Tensor, nn

from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.algorithms.dqn import QLoss, QTarget, chosen_values, regression_loss


class Table(nn.Module):
    """Q-values by state index: Q(s)_a = values[s, a]."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, obs: Tensor) -> Tensor:
        return self.values[obs.long().reshape(-1)]


ONLINE = [[1.0, 2.0], [8.0, 6.0]]
TARGET = [[5.0, 3.0], [10.0, 20.0]]


def column(*values: float) -> Tensor:
    return torch.tensor(values).reshape(-1, 1)


def target(**options) -> QTarget:
    options = {"q_net": Table(ONLINE), "target_q_net": Table(TARGET), **options}
    return QTarget(**options)


def q_targets(callback: QTarget, *, states, rewards, masks) -> list[float]:
    state = {
        "default": {
            "next_observation": {"obs": column(*states)},
            "rewards": column(*rewards),
            "masks": column(*masks),
        }
    }
    assert callback.begin_batch(**state) == {}  # merged into the group
    q_target = state["default"]["q_target"]
    assert not q_target.requires_grad
    return q_target[:, 0].tolist()


def test_one_step_target_is_reward_plus_discounted_best_value_unless_the_episode_ended():
    callback = target(gamma=0.9)
    got = q_targets(callback, states=(0, 1, 1), rewards=(1.0, 1.0, 1.0), masks=(1.0, 1.0, 0.0))
    assert got == pytest.approx([1 + 0.9 * 5, 1 + 0.9 * 20, 1.0])


def test_double_target_lets_the_learning_network_choose():
    callback = target(gamma=0.9, double=True)
    got = q_targets(callback, states=(0, 1), rewards=(0.0, 0.0), masks=(1.0, 1.0))
    assert got == pytest.approx([0.9 * 3, 0.9 * 10])  # argmax of ONLINE is action 1, then 0


def test_several_step_target_discounts_along_the_rollout_and_masks_by_its_last_row():
    callback = target(gamma=0.5, roll_length=3)
    got = q_targets(
        callback,
        states=(0, 1),
        rewards=(1.0, 2.0, 3.0, 1.0, 2.0, 3.0),
        masks=(1.0, 1.0, 1.0, 1.0, 1.0, 0.0),
    )
    # First rollout, V = 5: r3 + γV, r2 + γ(...), r1 + γ(...); second: V is masked.
    assert got == pytest.approx([3.375, 4.75, 5.5, 2.75, 3.5, 3.0])


def test_reward_scale_multiplies_rewards_but_not_values():
    callback = target(gamma=0.5, reward_scale=0.1)
    assert q_targets(callback, states=(0,), rewards=(10.0,), masks=(1.0,)) == [1.0 + 2.5]
    assert callback.scalar_logs["training/scaled_reward"] == pytest.approx(1.0)
    assert callback.scalar_logs["training/q_target"] == pytest.approx(3.5)


def test_missing_target_network_is_a_copy_that_does_not_learn_by_itself():
    network = Table(ONLINE)
    callback = QTarget(q_net=network)
    assert torch.equal(callback.target_q_net.values, network.values)
    assert callback.target_q_net.values is not network.values
    assert not callback.target_q_net.values.requires_grad
    assert network.values.requires_grad


def test_target_follows_the_parameters_that_its_networks_hold_now():
    callback = target(target_q_tau=0.25)
    for network, value in ((callback.q_net, 8.0), (callback.target_q_net, 4.0)):
        network.load_state_dict({"values": torch.full_like(network.values, value)}, assign=True)
    callback.end_batch()
    assert callback.target_q_net.values.unique().tolist() == [5.0]  # a quarter of the way to 8


def test_hard_update_copies_at_every_period_only():
    callback = target(target_q_tau=1.0, target_period=3)
    for step in range(1, 7):
        with torch.no_grad():
            callback.q_net.values.fill_(float(step))
        callback.end_batch()
        expected = {1: 5.0, 2: 5.0, 3: 3.0, 4: 3.0, 5: 3.0, 6: 6.0}[step]
        assert callback.target_q_net.values[0, 0].item() == expected


def test_target_state_resumes_network_and_period():
    callback = target(target_q_tau=1.0, target_period=2)
    callback.end_batch()
    callback.log_scalar("x/y", 3.0)
    state = deserialise(serialise(callback.state_dict()), max_bytes=2**20)
    resumed = target(target_q_net=Table([[0.0] * 2] * 2), target_q_tau=1.0, target_period=2)
    resumed.load_state_dict(state)
    assert resumed.target_q_net.values.tolist() == TARGET
    assert resumed.scalar_logs["x/y"] == 3.0
    resumed.end_batch()  # the second step since the start
    assert resumed.target_q_net.values.tolist() == ONLINE


@pytest.mark.parametrize(
    "actions", [column(1, 0), torch.tensor([1, 0]), torch.tensor([[1], [0]], dtype=torch.uint8)]
)
def test_values_of_actions_are_picked_by_index_of_any_type(actions):
    assert chosen_values(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), actions).tolist() == [[2.0], [3.0]]


def test_squared_error_and_hubers_loss_by_hand():
    predicted, wanted = column(0.0, 0.0, 0.0), column(0.5, -3.0, 1.0)
    assert regression_loss(predicted, wanted)[:, 0].tolist() == [0.25, 9.0, 1.0]
    # Huber with δ = 1: e²/2 up to δ, δ(|e| - δ/2) above.
    huber = regression_loss(predicted, wanted, huber_delta=1.0)[:, 0]
    assert huber.tolist() == [0.125, 2.5, 0.5]
    # δ = 2: e²/2 for 0.5 and 1, 2 (3 - 1) for 3.
    huber = regression_loss(predicted, wanted, huber_delta=2.0)[:, 0]
    assert huber.tolist() == [0.125, 4.0, 0.5]


def loss_callback(network: nn.Module, **options) -> QLoss:
    return QLoss(name="q", q=network, opt=torch.optim.SGD(network.parameters(), lr=1.0), **options)


def batch(**more) -> dict:
    return {
        "default": {
            "observation": {"obs": column(0, 1)},
            "actions": column(1.0, 0.0),
            "q_target": column(4.0, 5.0),
            **more,
        }
    }


def test_loss_and_gradient_by_hand():
    network = Table(ONLINE)
    callback = loss_callback(network)
    loss = callback.loss(**batch())
    assert loss.item() == pytest.approx(((2 - 4) ** 2 + (8 - 5) ** 2) / 2)
    loss.backward()
    # d/dQ of (Q - y)²/2 rows: (Q - y); only the chosen entries move.
    assert network.values.grad.tolist() == [[0.0, -2.0], [3.0, 0.0]]
    assert callback.scalar_logs["training/q_prediction"] == pytest.approx(5.0)


def test_importance_weights_scale_the_rows_of_their_rollout():
    network = Table(ONLINE)
    loss_callback(network).loss(**batch(sample_weights=torch.tensor([0.5, 2.0]))).backward()
    assert network.values.grad.tolist() == [[0.0, -1.0], [6.0, 0.0]]
    network = Table(ONLINE)  # one rollout of two rows
    loss_callback(network).loss(**batch(sample_weights=torch.tensor([3.0]))).backward()
    assert network.values.grad.tolist() == [[0.0, -6.0], [9.0, 0.0]]
