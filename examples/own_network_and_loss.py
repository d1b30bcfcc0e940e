"""A network of your own, and a loss of your own beside the algorithm's, in one training.

    python examples/own_network_and_loss.py

Every network of the agent begins with a copy of `Features`. `Forward` is a further loss: it learns
from the batches that the agent learns from how the observation changes, and logs its error.
"""

import torch
from torch import Tensor, nn

import cadenza
from cadenza.learn.callbacks import LossCallback


class Features(nn.Module):
    """Angle and speed of the pendulum, with their products."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 64)

    def forward(self, observations: Tensor) -> Tensor:
        """Return features, (B, 64), of observations, (B, 3)."""
        products = observations * observations.roll(1, dims=1)
        return torch.tanh(self.layer(torch.cat((observations, products), dim=1)))


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Return mean (predicted - target)^2."""
    return (predicted - target).square().mean()


class Forward(LossCallback):
    """Predicts the change of the observation from observation and action."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        super().__init__(
            name="forward",
            network=self.model,
            optimizer=torch.optim.Adam(self.model.parameters(), 1e-3),
            max_grad_norm=10.0,
            data_group="default",
        )

    def loss(
        self, observation: dict[str, Tensor], next_observation: dict[str, Tensor], actions: Tensor
    ) -> Tensor:
        """Return the error on one batch."""
        seen, following = observation["obs"], next_observation["obs"]
        return squared_error(self.model(torch.cat((seen, actions), dim=1)), following - seen)


forward = Forward()
agent = cadenza.SAC("Pendulum-v1", network=Features(), warmup_steps=500)
agent.learn(1_500, callbacks=[forward])
print(f"forward model: squared error {forward.scalar_logs['loss/forward_loss']:.4f}")
print(f"agent: {agent.evaluate(5)}")
