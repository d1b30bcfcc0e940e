"""Soft actor-critic from its parts: networks, losses, temperature and target.

Written out so that every part can be seen and exchanged; `sac_assembly.soft_actor_critic` of the
package puts the same callbacks together in one call.
"""

from collections.abc import Callable
from functools import partial

import torch
from harness import Run
from off_policy import Algorithm, EnvFactory, Learned, Settings, torch_generator, train_off_policy
from torch import nn
from torch.optim import Adam

from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
from cadenza.learn.callbacks import LossCallback
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy

#: Makes a critic and its loss from name, observation width, action width, settings, generator.
CriticFactory = Callable[[str, int, int, Settings, torch.Generator], tuple[nn.Module, LossCallback]]

#: Cap of the temperature; high enough to be out of the way.
MAX_ALPHA = 10.0


def squared_error_critic(
    name: str, observation_dim: int, action_dim: int, settings: Settings, rng: torch.Generator
) -> tuple[nn.Module, LossCallback]:
    """Return a critic that regresses its target."""
    critic = ActionValueMlp(observation_dim, action_dim, settings.hidden_dims, generator=rng)
    optimizer = Adam(critic.parameters(), settings.learning_rate, fused=True)
    return critic, QLoss(name=name, q=critic, opt=optimizer)


def soft_actor_critic(
    observation_dim: int,
    action_dim: int,
    settings: Settings,
    seed: int,
    *,
    make_critic: CriticFactory = squared_error_critic,
) -> Algorithm:
    """Return policy and callbacks of soft actor-critic with a learned temperature."""
    weights = torch_generator("sac.weights", seed)
    policy = GaussianMlpPolicy(
        observation_dim,
        action_dim,
        settings.hidden_dims,
        generator=torch_generator("sac.noise", seed),
        init_generator=weights,
    )
    (q1, q1_loss), (q2, q2_loss) = (
        make_critic(name, observation_dim, action_dim, settings, weights) for name in ("q1", "q2")
    )
    ln_alpha = torch.zeros(1, requires_grad=True)
    policy_loss = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=q1,
        q2=q2,
        opt=Adam(policy.parameters(), settings.learning_rate, fused=True),
    )
    alpha_loss = AlphaLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        opt=Adam([ln_alpha], settings.learning_rate),
        n_actions=action_dim,
        max_alpha=MAX_ALPHA,
        log_prob_from=policy_loss,
    )
    target = QTarget(
        pi=policy,
        ln_alpha=ln_alpha,
        q1=q1,
        q2=q2,
        gamma=settings.gamma,
        reward_scale=settings.reward_scale,
        target_q_tau=settings.tau,
        use_terminal_masking=True,
    )
    return Algorithm(
        acting=policy,
        returns_log_probability=True,
        callbacks=[q1_loss, q2_loss, policy_loss, alpha_loss, target],
    )


def learn(
    make_env: EnvFactory,
    settings: Settings,
    run: Run,
    make_critic: CriticFactory = squared_error_critic,
) -> Learned:
    """Train soft actor-critic; see `off_policy.train_off_policy`."""
    make_algorithm = partial(soft_actor_critic, make_critic=make_critic)
    return train_off_policy(make_env, settings, run, make_algorithm)
