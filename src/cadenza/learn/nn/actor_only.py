"""A policy without a critic, for learners that compare returns with one another.

Axes:  B = batch, O = observation.
"""

from collections.abc import Sequence

import torch

from cadenza.learn.nn.policy_networks import ActionHead, Policy, policy_layers


class ActorOnly(Policy):
    """Tanh layers and a distribution of actions; the actor of `ActorCritic` alone.

    Args:
        observation_dim: O.
        head: Distribution of the actions.
        hidden_sizes: Width of the hidden layers.
        generator: CPU generator of the weights.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        observation_dim: int,
        head: ActionHead,
        *,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.actor = policy_layers(
            observation_dim, head, hidden_sizes=hidden_sizes, generator=generator
        )
        self.head = head
