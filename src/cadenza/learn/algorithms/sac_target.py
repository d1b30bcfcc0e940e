"""Target of soft actor-critic's critics, and the target networks behind it.

Equation:  y_t = Σ_{k=t}^{T-1} γ^(k-t) s_r r_k + γ^(T-t) m V,
           V = min(Q1t, Q2t)(a', o') - α log π(a'|o'),   a' ~ π(·|o')
           with o' the state after the rollout and m its last mask.
Source:    arXiv:1812.05905, equation 5, for n steps.
Axes:      B = n·T rows of a batch: n rollouts of T steps, rollout-major.
"""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.algorithms.critic_loss import Observations
from cadenza.learn.algorithms.polyak import Followers
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.deferred_logging import DeferredLogging
from cadenza.learn.gamma_matrix import discount, make_gamma_matrix, split_rollouts


def n_step_target(
    rewards: Tensor, values: Tensor, masks: Tensor | None, gamma_matrix: Tensor
) -> Tensor:
    """Return the bootstrapped return from every step of every rollout.

    Args:
        rewards: Scaled rewards, shape (B, 1).
        values: Value of the state after each rollout, shape (n, 1).
        masks: 0 where a step ended its episode for good, shape (B, 1); None bootstraps always.
        gamma_matrix: Of `make_gamma_matrix`, shape (T + 1, T).

    Returns:
        Shape (B, 1).

    Raises:
        InputError: The shapes do not fit each other or T.
    """
    steps = gamma_matrix.shape[1]
    rows = len(values) * steps
    if values.ndim != 2 or values.shape[1] != 1:
        raise InputError(
            f"n_step_target: expected values (n, 1), got {tuple(values.shape)}; critics, and the "
            "policy's log-probabilities, must have one column, (B, 1)."
        )
    if rewards.shape != (rows, 1):
        raise InputError(
            f"n_step_target: expected rewards ({len(values)}·{steps}, 1) for the values of "
            f"{len(values)} rollouts, got {tuple(rewards.shape)}; the memory's rollout length "
            "must be the target's roll_length."
        )
    if masks is not None and masks.shape != rewards.shape:
        raise InputError(
            f"n_step_target: expected masks of the shape {tuple(rewards.shape)} of the rewards, "
            f"got {tuple(masks.shape)}."
        )
    if masks is not None:
        values = values * split_rollouts(masks, steps)[:, -1]
    return discount(split_rollouts(rewards, steps).squeeze(2), values, gamma_matrix)


class QTarget(DeferredLogging, Callback):
    """Computes ``q_target`` for every batch and lets the target networks follow.

    Args:
        pi: Policy.
        ln_alpha: ln α, the weight of the entropy; shared with the other losses.
        q1: First critic.
        q2: Second critic.
        q1t: Target of ``q1``; None copies it.
        q2t: Target of ``q2``; None copies it.
        gamma: Discount per step.
        reward_scale: Factor on the rewards.
        target_q_tau: Share that the targets move towards the critics per batch.
        data_group: Group of the state that holds the batch.
        roll_length: T, the rollout length of the batch.
        use_terminal_masking: Whether a final state is worth 0. Off by default, as in the original
            engine; a warning says so when the batch does tell which ends are final.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        ln_alpha: Tensor,
        q1: nn.Module,
        q2: nn.Module,
        q1t: nn.Module | None = None,
        q2t: nn.Module | None = None,
        gamma: float = 0.99,
        reward_scale: float = 1.0,
        target_q_tau: float = 0.005,
        data_group: str = "default",
        roll_length: int = 1,
        use_terminal_masking: bool = False,
    ) -> None:
        super().__init__()
        self._order = 1
        self.data_group = data_group
        self.policy = pi
        self.ln_alpha = ln_alpha
        self.q1 = q1
        self.q2 = q2
        self.q1t = copy.deepcopy(q1) if q1t is None else q1t
        self.q2t = copy.deepcopy(q2) if q2t is None else q2t
        self._followers = Followers((q1, self.q1t), (q2, self.q2t))
        self.reward_scale = reward_scale
        self.tau = target_q_tau
        self.rollout_len = roll_length
        self.use_terminal_masking = use_terminal_masking
        self.gamma_matrix = make_gamma_matrix(gamma, roll_length).to(ln_alpha.device)
        self._unmasked_terminal_reported = use_terminal_masking

    @torch.no_grad()
    def begin_batch(
        self,
        next_observation: Observations,
        rewards: Tensor,
        masks: Tensor,
        terminal: Tensor | None = None,
        next_policy_noise: Tensor | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """Write ``q_target``, shape (B, 1), into the data group.

        Args:
            next_observation: State after every rollout (n rows; after every step if T = 1).
            rewards: Shape (B, 1).
            masks: 0 where a step ended its episode for good, shape (B, 1).
            terminal: Only says that the memory knows final states from interrupted ones.
            next_policy_noise: Standard normal draws for the policy, (n, A); None lets it draw.
        """
        if terminal is not None and not self._unmasked_terminal_reported:
            self._report_unmasked_terminal()
        noise = {} if next_policy_noise is None else {"epsilon": next_policy_noise}
        actions, log_probabilities = self.policy(**next_observation, **noise)
        next_q = torch.minimum(
            self.q1t(actions, **next_observation), self.q2t(actions, **next_observation)
        )
        values = next_q - self.ln_alpha.exp() * log_probabilities
        scaled_reward = self.reward_scale * rewards
        self.gamma_matrix = self.gamma_matrix.to(rewards.device)
        q_target = n_step_target(
            scaled_reward,
            values,
            masks if self.use_terminal_masking else None,
            self.gamma_matrix,
        )
        self.log_mean("training/next_logp_pi", log_probabilities)
        self.log_mean("training/min_next_q_target", next_q)
        self.log_mean("training/scaled_reward", scaled_reward)
        self.log_mean("training/q_target", q_target)
        return {self.data_group: {"q_target": q_target}}

    def end_batch(self) -> None:
        """Move the target networks."""
        self._followers.move(self.tau)

    def state_dict(self) -> dict[str, Any]:
        """Return the logs and the target networks."""
        networks = {"q1t": self.q1t.state_dict(), "q2t": self.q2t.state_dict()}
        return {**super().state_dict(), "network_state_dict": networks}

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: The target networks are missing.
        """
        if load_network:
            networks = state_dict.get("network_state_dict", {})
            if set(networks) != {"q1t", "q2t"}:
                raise CheckpointError(
                    "QTarget.load_state_dict: expected target networks 'q1t' and 'q2t', got "
                    f"{sorted(networks)}; load with load_network=False to start from copies."
                )
            self.q1t.load_state_dict(networks["q1t"])
            self.q2t.load_state_dict(networks["q2t"])
        super().load_state_dict(state_dict, load_network, load_optimizer, load_hparams)

    def _report_unmasked_terminal(self) -> None:
        self._unmasked_terminal_reported = True
        warnings.warn(
            "QTarget: the memory has a terminal column but use_terminal_masking is False, so final "
            "states are given a value; pass use_terminal_masking=True.",
            UserWarning,
            stacklevel=3,
        )
