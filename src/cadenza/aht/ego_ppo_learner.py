"""Parts of the ego learner that hold no rollout state: construction, checkpoint, update inputs.

Axes:  n = transitions of a rollout, N = parallel environments, O = observation, A = action.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cadenza.aht.ego_ppo_rollout import RolloutBuffer
from cadenza.core.arrays import require_finite
from cadenza.core.errors import CheckpointError
from cadenza.learn.advantages import compute_gae, normalize_advantages
from cadenza.learn.algorithms.happo import actor_optimizer, critic_optimizer, gaussian_log_prob
from cadenza.learn.algorithms.ppo_epochs import PPOLearner, PPORollout
from cadenza.learn.nn.gaussian_actor import (
    MAX_STANDARD_DEVIATION,
    STANDARD_DEVIATION_KEY,
    GaussianActor,
)
from cadenza.learn.nn.value_critic import ValueCritic

#: Keys of a policy checkpoint.
CHECKPOINT_KEYS: Final = frozenset({"actor", "actor_optim", "critic", "critic_optim"})


def build_learner(
    *,
    observation_dim: int,
    action_dim: int,
    hidden_dim: int,
    learning_rate: float,
    max_action_std: float,
    generator: torch.Generator,
    device: torch.device,
) -> PPOLearner:
    """Return networks and optimisers on ``device``.

    Args:
        observation_dim: O.
        action_dim: A.
        hidden_dim: Width of both hidden layers.
        learning_rate: Of both optimisers.
        max_action_std: Bound of the actions' standard deviation, in units of the action.
        generator: CPU generator; the actor's draws come first, then the critic's.
        device: Where the networks live.
    """
    actor = GaussianActor(
        observation_dim,
        action_dim,
        hidden_sizes=(hidden_dim, hidden_dim),
        generator=generator,
        max_standard_deviation=max_action_std,
    ).to(device)
    critic = ValueCritic(observation_dim, hidden_dim=hidden_dim, generator=generator).to(device)
    return PPOLearner(
        actor=actor,
        actor_optimizer=actor_optimizer(actor.parameters(), learning_rate),
        critic=critic,
        critic_optimizer=critic_optimizer(critic.parameters(), learning_rate),
    )


def learner_state(learner: PPOLearner) -> dict[str, Any]:
    """Return the policy checkpoint, sharing memory with ``learner``.

    A bound of the standard deviation other than HARL's, which no weight shows, is a key of its own.
    """
    state: dict[str, Any] = {
        "actor": learner.actor.state_dict(),
        "actor_optim": learner.actor_optimizer.state_dict(),
        "critic": learner.critic.state_dict(),
        "critic_optim": learner.critic_optimizer.state_dict(),
    }
    bound = learner.actor.max_standard_deviation
    if bound != MAX_STANDARD_DEVIATION:
        state[STANDARD_DEVIATION_KEY] = bound
    return state


def load_learner_state(learner: PPOLearner, payload: Mapping[str, Any]) -> None:
    """Copy a policy checkpoint into ``learner``.

    Raises:
        CheckpointError: A part is missing, has other sizes or another bound of the deviation.
    """
    missing = CHECKPOINT_KEYS - payload.keys()
    if missing:
        raise CheckpointError(
            f"policy checkpoint: expected keys {sorted(CHECKPOINT_KEYS)}, "
            f"got {sorted(payload)}; {sorted(missing)} missing."
        )
    bound = payload.get(STANDARD_DEVIATION_KEY, MAX_STANDARD_DEVIATION)
    if bound != learner.actor.max_standard_deviation:
        raise CheckpointError(
            "policy checkpoint: expected a policy whose standard deviation is bounded by "
            f"{learner.actor.max_standard_deviation}, got {bound}; set "
            f"ppo_extras.max_action_std={bound}."
        )
    try:
        learner.actor.load_state_dict(payload["actor"])
        learner.critic.load_state_dict(payload["critic"])
        learner.actor_optimizer.load_state_dict(payload["actor_optim"])
        learner.critic_optimizer.load_state_dict(payload["critic_optim"])
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"policy checkpoint: expected the sizes of this configuration: {error}"
        ) from error


@torch.no_grad()
def prepare_rollout(
    buffer: RolloutBuffer,
    critic: ValueCritic,
    deviation: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[PPORollout, dict[str, float]]:
    """Return what an update learns from, and statistics of raw advantages and values.

    Args:
        buffer: At least one step.
        critic: Values the states; gradients are off.
        deviation: σ with which the actions were drawn, shape (A,).
        gamma: Discount per step.
        gae_lambda: Weight of longer advantage estimates.

    Raises:
        InputError: An observation is not finite.
    """
    device, steps = buffer.observations.device, buffer.length
    inputs = buffer.critic_inputs()
    require_finite("EgoPPOTrainer.update: observations", inputs.cpu().numpy())
    values = critic(inputs).squeeze(-1).cpu().numpy()
    current, following = buffer.split_values(values)
    rewards, boundaries = buffer.rewards[:steps], buffer.boundaries[:steps]
    advantages = compute_gae(
        rewards, current, following, boundaries, gamma=gamma, gae_lambda=gae_lambda
    )
    actions = buffer.actions[:steps].flatten(0, 1)  # (n, A), time-major
    means = buffer.means[:steps].flatten(0, 1)
    rollout = PPORollout(
        observations=buffer.observations[:steps].flatten(0, 1),
        actions=actions,
        old_log_probs=gaussian_log_prob(actions, means, deviation),
        advantages=_column(normalize_advantages(advantages), device),
        returns=_column(advantages + current, device),
    )
    statistics = {
        "advantage_mean": float(advantages.mean(dtype=np.float64)),
        "advantage_std": float(advantages.std(dtype=np.float64)),
        "value_mean": float(current.mean(dtype=np.float64)),
        "value_std": float(current.std(dtype=np.float64)),
    }
    return rollout, statistics


def _column(values: Any, device: torch.device) -> Tensor:
    """Return ``values`` as a column, shape (n, 1)."""
    return torch.as_tensor(values, device=device).reshape(-1, 1)
