import copy

import numpy as np
import pytest
import torch

from cadenza.learn.algorithms import ppo_epochs
from cadenza.learn.algorithms.happo import (
    ActorBatch,
    actor_optimizer,
    critic_optimizer,
    gaussian_log_prob,
    update_actor,
    update_critic,
)
from cadenza.learn.algorithms.ppo_epochs import (
    PPOLearner,
    PPOOptions,
    PPORollout,
    run_ppo_epochs,
)
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic

TRANSITIONS = 23
OPTIONS = PPOOptions(epochs=3, batch_size=10, clip_epsilon=0.2)


def learner(rate: float = 1e-2) -> PPOLearner:
    generator = torch.Generator().manual_seed(0)
    actor = GaussianActor(4, 2, hidden_sizes=(8, 8), generator=generator)
    critic = ValueCritic(4, hidden_sizes=(8, 8), generator=generator)
    return PPOLearner(
        actor=actor,
        actor_optimizer=actor_optimizer(actor.parameters(), rate),
        critic=critic,
        critic_optimizer=critic_optimizer(critic.parameters(), rate),
    )


def rollout(actor: GaussianActor) -> PPORollout:
    draws = torch.Generator().manual_seed(1)
    observations = torch.randn((TRANSITIONS, 4), generator=draws)
    actions = 0.5 * torch.randn((TRANSITIONS, 2), generator=draws)
    with torch.no_grad():
        old = gaussian_log_prob(actions, actor(observations), actor.standard_deviation())
    return PPORollout(
        observations=observations,
        actions=actions,
        old_log_probs=old,
        advantages=torch.randn((TRANSITIONS, 1), generator=draws),
        returns=torch.randn((TRANSITIONS, 1), generator=draws),
    )


def test_epochs_step_actor_then_critic_on_shuffled_minibatches():
    mine, reference = learner(), learner()
    data = rollout(mine.actor)
    metrics = run_ppo_epochs(mine, data, OPTIONS, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    losses, value_losses, ratios = [], [], []
    for _ in range(3):
        order = rng.permutation(TRANSITIONS)
        for chunk in (order[:11], order[11:]):  # 23 // 10 = 2 minibatches of 11 and 12
            indices = torch.tensor(chunk)
            batch = ActorBatch(
                observations=data.observations[indices],
                actions=data.actions[indices],
                old_log_probs=data.old_log_probs[indices],
                advantages=data.advantages[indices],
            )
            update = update_actor(
                reference.actor, reference.actor_optimizer, batch, clip_epsilon=0.2
            )
            losses.append(float(update.policy_loss))
            ratios.append(update.ratio.double().numpy())
            value_losses.append(
                float(
                    update_critic(
                        reference.critic,
                        reference.critic_optimizer,
                        data.observations[indices],
                        data.returns[indices],
                    )
                )
            )
    for network in ("actor", "critic"):
        pairs = zip(
            getattr(mine, network).parameters(),
            getattr(reference, network).parameters(),
            strict=True,
        )
        assert all(torch.equal(one, other) for one, other in pairs)
    assert metrics.policy_loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert metrics.value_loss == pytest.approx(np.mean(value_losses), rel=1e-6)
    kl = [0.5 * np.mean((ratio - 1.0) ** 2) for ratio in ratios]
    outside = [np.mean(np.abs(ratio - 1.0) > 0.2) for ratio in ratios]
    assert metrics.approx_kl == pytest.approx(np.mean(kl), rel=1e-5)
    assert metrics.clip_fraction == pytest.approx(np.mean(outside), rel=1e-6)
    assert 0.0 < metrics.clip_fraction < 1.0
    assert metrics.ratio_min == pytest.approx(min(ratio.min() for ratio in ratios), rel=1e-6)
    assert metrics.ratio_max == pytest.approx(max(ratio.max() for ratio in ratios), rel=1e-6)
    assert metrics.ratio_min < 1.0 < metrics.ratio_max


def updates_taken(options: PPOOptions) -> int:
    state = learner()
    run_ppo_epochs(state, rollout(state.actor), options, np.random.default_rng(5))
    return int(state.actor_optimizer.state_dict()["state"][0]["step"])


@pytest.mark.parametrize(
    ("target_kl", "expected"),
    [(None, 6), (1e9, 6), (1e-12, 2)],  # the first epoch of two minibatches always runs
)
def test_target_kl_ends_the_update_after_the_epoch_that_exceeds_it(target_kl, expected):
    options = PPOOptions(epochs=3, batch_size=10, clip_epsilon=0.2, target_kl=target_kl)
    assert updates_taken(options) == expected


def test_critic_limit_reaches_the_critic(monkeypatch):
    seen = []

    def record(*args, max_gradient_norm):
        seen.append(max_gradient_norm)
        return update_critic(*args, max_gradient_norm=max_gradient_norm)

    monkeypatch.setattr(ppo_epochs, "update_critic", record)
    options = PPOOptions(epochs=1, batch_size=10, clip_epsilon=0.2, critic_max_gradient_norm=0.25)
    state = learner()
    run_ppo_epochs(state, rollout(state.actor), options, np.random.default_rng(5))
    assert seen == [0.25, 0.25]


def test_update_leaves_the_rollout_unchanged():
    state = learner()
    data = rollout(state.actor)
    before = copy.deepcopy(data)
    run_ppo_epochs(state, data, OPTIONS, np.random.default_rng(5))
    for name in ("observations", "actions", "old_log_probs", "advantages", "returns"):
        assert torch.equal(getattr(data, name), getattr(before, name))
