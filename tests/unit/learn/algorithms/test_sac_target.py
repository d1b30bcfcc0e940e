"""Targets of the soft critics, against hand calculations."""

import math
import warnings

import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.sac import QLoss, QTarget
from tests.unit.learn.algorithms.sac_parts import FixedPolicy, SumCritic, batch


def target(**kwargs):
    """Return a target with a' = 0.5, log π = -1, Q1t = 2 o' + 0.5, Q2t = 3 o' + 0.5, α = 0.2."""
    return QTarget(
        pi=FixedPolicy(0.5, -2.0),
        ln_alpha=torch.tensor(math.log(0.2)),
        **{
            "q1": SumCritic(2.0),
            "q2": SumCritic(3.0),
            "gamma": 0.5,
            "use_terminal_masking": True,
            **kwargs,
        },
    )


def target_of(callback, data):
    callback.begin_batch(default=data)
    return data["q_target"]


def test_one_step_target_is_reward_plus_discounted_soft_minimum():
    # o' = 4: min(8.5, 12.5) + 0.2·1 = 8.7;  o' = -4: min(-7.5, -11.5) + 0.2 = -11.3
    data = batch([0, 0], [4, -4], [1, 2], [1, 1])
    found = target_of(target(), data)
    assert found.flatten().tolist() == pytest.approx([1 + 0.5 * 8.7, 2 + 0.5 * -11.3])
    assert not found.requires_grad


def test_final_state_is_worth_nothing_only_with_masking():
    data = batch([0, 0], [4, 4], [1, 1], [0, 1])
    assert target_of(target(), data).flatten().tolist() == pytest.approx([1, 5.35])
    unmasked = target_of(target(use_terminal_masking=False), dict(data))
    assert unmasked.flatten().tolist() == pytest.approx([5.35, 5.35])


def test_reward_scale_leaves_the_value_alone():
    data = batch([0], [4], [10], [1])
    assert target_of(target(reward_scale=0.1), data).item() == pytest.approx(1 + 4.35)


def test_three_step_target_uses_the_last_mask_and_one_next_state_per_rollout():
    # Rollout 1: rewards 1, 2, 3, V(4) = 8.7; rollout 2: rewards 4, 5, 6, ends for good.
    data = batch([0] * 6, [4, 4], [1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 0])
    found = target_of(target(roll_length=3), data).flatten().tolist()
    last = 3 + 0.5 * 8.7
    middle = 2 + 0.5 * last
    expected = [1 + 0.5 * middle, middle, last, 4 + 0.5 * (5 + 3), 5 + 3, 6]
    assert found == pytest.approx(expected)


def test_targets_start_as_copies_and_follow_by_tau():
    callback = target(target_q_tau=0.25)
    with torch.no_grad():
        callback.q1.w.fill_(10.0)
        callback.q2.w.fill_(-1.0)
    callback.end_batch()
    assert callback.q1t.w.item() == pytest.approx(2 + 0.25 * 8)
    assert callback.q2t.w.item() == pytest.approx(3 - 0.25 * 4)


def test_target_networks_survive_in_the_state_dict():
    callback, other = target(), target()
    with torch.no_grad():
        callback.q1t.w.fill_(7.0)
        callback.q2t.w.fill_(8.0)
    other.load_state_dict(callback.state_dict())
    assert (other.q1t.w.item(), other.q2t.w.item()) == (7.0, 8.0)
    third = target()
    third.load_state_dict(callback.state_dict(), load_network=False)
    assert third.q1t.w.item() == 2.0


def test_another_rollout_length_than_the_memorys_is_refused():
    with pytest.raises(
        InputError,
        match=r"rewards: expected shape \(1, 1\), got \(2, 1\); the memory's rollout length",
    ):
        target_of(target(), batch([0, 0], [4], [1, 1], [1, 1]))


class FlatCritic(SumCritic):
    """Returns (B,), which would broadcast against (B, 1)."""

    def forward(self, action, obs):
        return super().forward(action, obs)[:, 0]


def test_critics_without_a_column_are_named():
    data = batch([0, 0], [4, 4], [1, 1], [1, 1], q_target=torch.ones(2, 1))
    flat = FlatCritic(1.0)
    with pytest.raises(InputError, match=r"values: expected shape \(n, 1\), got \(2, 2\); critics"):
        target_of(target(q1=flat, q2=flat), data)
    loss = QLoss(name="q", q=flat, opt=torch.optim.SGD(flat.parameters(), 0.1))
    with pytest.raises(InputError, match=r"q: critic: expected shape \(2, 1\), got \(2,\)"):
        loss.loss(default=data)


def test_ignoring_the_terminal_column_warns_once():
    callback = target(use_terminal_masking=False)
    data = batch([0], [4], [1], [0], terminal=torch.zeros(1))
    with pytest.warns(UserWarning, match=r"pass use_terminal_masking=True"):
        target_of(callback, data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target_of(callback, data)
        target_of(target(), data)
        target_of(target(use_terminal_masking=False), batch([0], [4], [1], [0]))
