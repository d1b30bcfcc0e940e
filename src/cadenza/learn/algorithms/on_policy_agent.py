"""What agents that learn from their own rollouts share: a policy, its optimiser and random streams.

Axes:        N = rows per step, O = observation, A = action components, B = minibatch, K = figures.
Randomness:  one torch generator initialises the networks and then draws the actions; one numpy
             generator shuffles. Both are part of the state.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.minibatch_epochs import EpochPlan, run_epochs
from cadenza.learn.configs import OnPolicyAgentConfig
from cadenza.learn.generator_state import generator_state, set_generator_state
from cadenza.learn.nn.encoding import Decision
from cadenza.learn.nn.policy_networks import CategoricalHead, DiagonalGaussianHead, Policy
from cadenza.learn.nn.squashed_head import SquashedGaussianHead

#: Adam's denominator guard; the value of the PPO reference implementation.
ADAM_EPSILON: Final = 1e-5
#: Where both losses put the KL from the policy that collected among their figures.
KL_COLUMN: Final = 3

Network = TypeVar("Network", bound=Policy)


class OnPolicyAgent(Generic[Network]):
    """A policy that acts, and steps over minibatches of what it did.

    Args:
        build: Makes the networks, on the CPU, from a generator.
        config: Settings of the agent.
        stream: Name before ``.torch`` and ``.minibatch`` in the random streams.
        seed: Root of these streams.
        device: Where the networks live.
        target_kl: See `EpochPlan`.
        scaling: Comes before the networks in ``greedy``.

    Attributes:
        network: The networks.
        greedy: The policy without chance, sharing their weights: unscaled observations, (B, O), to
            choices, (B,), or actions, (B, A): squashed ones in [−1, 1], others before clipping.
        optimizer: Adam over all their parameters.
    """

    def __init__(
        self,
        build: Callable[[torch.Generator], Network],
        config: OnPolicyAgentConfig,
        *,
        stream: str,
        seed: int,
        device: torch.device | str,
        target_kl: float | None = None,
        scaling: Sequence[nn.Module] = (),
    ) -> None:
        self._learning = config
        self._plan = EpochPlan(
            epochs=config.epochs,
            batch_size=config.batch_size,
            kl_column=KL_COLUMN,
            target_kl=target_kl,
        )
        self._device = torch.device(device)
        torch_seed = derive_substream(f"{stream}.torch", root_seed=seed).integer_seed()
        # Weights are drawn on the CPU: their first values do not depend on the device.
        generator = torch.Generator().manual_seed(torch_seed)
        self.network = build(generator).to(self._device)
        decide = torch.tanh if config.squash_actions else self.network.head.mode
        self.greedy = nn.Sequential(*scaling, self.network.actor, Decision(decide))
        self._parameters = list(self.network.parameters())
        self.optimizer = torch.optim.Adam(
            self._parameters, lr=config.learning_rate, eps=ADAM_EPSILON, fused=True
        )
        if self._device.type != "cpu":
            generator = torch.Generator(self._device).manual_seed(torch_seed)
        self._generator = generator
        self._shuffle = derive_substream(f"{stream}.minibatch", root_seed=seed).default_rng()

    @torch.no_grad()
    def act(self, observations: Float32Array, *, deterministic: bool = False) -> NDArray[Any]:
        """Return one decision per row, (N,) int64 or (N, A) float32.

        Args:
            observations: Rows as the actor sees them, (N, O) float32.
            deterministic: The most probable choice or the mean; draws nothing.
        """
        output = self.network.actor(self._on_device(observations))
        head = self.network.head
        drawn = head.mode(output) if deterministic else head.sample(output, self._generator)
        return drawn.cpu().numpy()

    def _on_device(self, rows: NDArray[Any]) -> Tensor:
        return torch.from_numpy(rows).to(self._device)  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def _run_epochs(self, transitions: int, learn: Callable[[Tensor], Tensor]) -> NDArray[Any]:
        """Return the figures of every minibatch, (minibatches, K) float64, read once.

        Args:
            transitions: Transitions of the rollout.
            learn: See `run_epochs`.
        """
        rows = run_epochs(transitions, learn, self._plan, self._shuffle, self._device)
        return rows.cpu().double().numpy()

    def _set_learning_rate(self, progress: float) -> float:
        """Return the step size at ``progress``, the share of the run that is done, and set it."""
        rate = self._learning.learning_rate
        if self._learning.decay_learning_rate:
            rate *= max(0.0, 1.0 - progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _require_finite(self, figures: Mapping[str, float], remedy: str) -> None:
        """Raise `InputError` with ``remedy`` unless every figure of an update is finite."""
        if not all(np.isfinite(value) for value in figures.values()):
            raise InputError(
                f"{type(self).__name__}.update: expected finite numbers, got {figures}; {remedy}."
            )

    def _policy_state(self) -> dict[str, Any]:
        """Return networks, optimiser and random streams: tensors and JSON scalars."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "minibatch_generator": generator_state(self._shuffle),
        }

    def _load_policy_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_policy_state` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        set_generator_state(self._shuffle, state["minibatch_generator"])


def action_head(
    owner: str, config: OnPolicyAgentConfig, choices: int | None, action_dim: int | None
) -> CategoricalHead | DiagonalGaussianHead | SquashedGaussianHead:
    """Return the distribution of actions of one kind of action space.

    Args:
        owner: Who asks, for messages.
        config: How continuous actions begin, and whether they are squashed.
        choices: Number of discrete choices; exactly one of this and ``action_dim`` is given.
        action_dim: A, for continuous actions.

    Raises:
        ConfigurationError: Both or neither are given, or choices are to be squashed.
    """
    if (choices is None) == (action_dim is None):
        raise ConfigurationError(
            f"{owner}: expected exactly one of choices and action_dim, got "
            f"choices = {choices}, action_dim = {action_dim}."
        )
    if choices is not None:
        if config.squash_actions:
            raise ConfigurationError(
                f"{owner}: expected continuous actions with squash_actions, got "
                f"choices = {choices}; switch squash_actions off."
            )
        return CategoricalHead(choices)
    kind = SquashedGaussianHead if config.squash_actions else DiagonalGaussianHead
    return kind(action_dim or 0, config.initial_log_std)
