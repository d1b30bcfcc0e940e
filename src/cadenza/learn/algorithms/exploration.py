"""Exploration of discrete actions: with probability ε any action, else the best one.

Source:  ε-greedy action selection, Sutton & Barto, "Reinforcement Learning", 2nd edition, eq. 2.2.
Axes:    K = agents in one call, A = actions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.core.schedules import Schedule
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin


class EpsilonGreedyPolicy(nn.Module):
    """A Q-network as a policy: ε-greedy in training mode, greedy in evaluation mode.

    Use it behind `GenericAgentProxy` with ``uses_logprobs=False``. The state dict holds ε and the
    generator, so a resumed run explores on as the unbroken one. ε is a buffer: copies of the policy
    that follow its tensors, as those of a threaded collector, follow ε too.

    Args:
        q_net: Takes observations by position, returns values (K, A).
        epsilon: Probability of a uniformly drawn action, in [0, 1].
        generator: Source of the draws, on the CPU; None makes one that belongs to this policy,
            seeded 0.

    Raises:
        InputError: ``epsilon`` is outside [0, 1].
    """

    def __init__(
        self,
        q_net: nn.Module,
        *,
        epsilon: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.q_net = q_net
        self.register_buffer("_epsilon", torch.zeros((), dtype=torch.float64))
        self.epsilon = epsilon
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator

    @property
    def epsilon(self) -> float:
        """Probability of a uniformly drawn action."""
        return float(self._buffer().item())

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise InputError(f"EpsilonGreedyPolicy.epsilon: expected [0, 1], got {value}.")
        self._buffer().fill_(value)

    def forward(self, *observations: Tensor, **named: Tensor) -> Tensor:
        """Return one action index per agent, shape (K, 1), int64."""
        with torch.no_grad():
            q_values: Tensor = self.q_net(*observations, **named)
        greedy = q_values.argmax(dim=1, keepdim=True)
        if not self.training:
            return greedy
        # Both draws are made whatever ε is, so ε does not shift the random stream.
        explores = torch.rand(greedy.shape, generator=self.generator) < self.epsilon
        drawn = torch.randint(q_values.shape[1], greedy.shape, generator=self.generator)
        return torch.where(explores.to(greedy.device), drawn.to(greedy.device), greedy)

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, for `torch.nn.Module.state_dict`."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue the draws where `get_extra_state` was taken."""
        self.generator.set_state(state.cpu())

    def _buffer(self) -> Tensor:
        return self.get_buffer("_epsilon")


class EpsilonSchedule(LoggingMixin, Callback):
    """Moves ε of a policy along a schedule, one step per batch; logs ``training/epsilon``.

    It counts training steps, not calls of the policy, so a long warm-up does not use ε up. Put it
    before the collector in the list of callbacks.

    Args:
        policy: Policy whose ε is set.
        schedule: Values of ε.
        name: Name in checkpoints.
    """

    def __init__(
        self, policy: EpsilonGreedyPolicy, schedule: Schedule, *, name: str = "epsilon"
    ) -> None:
        super().__init__()
        self.name = name
        self.policy = policy
        self.schedule = schedule
        self.policy.epsilon = schedule.value

    def begin_training(self) -> None:
        """Set ε before anyone collects."""
        self.policy.epsilon = self.schedule.value

    def begin_batch(self) -> None:
        """Move one step along the schedule."""
        self.schedule.step()
        self.policy.epsilon = self.schedule.value
        self.log_scalar("training/epsilon", self.schedule.value)

    def state_dict(self) -> dict[str, Any]:
        """Return logs, the place in the schedule, and the policy's generator."""
        state = super().state_dict()
        state["schedule"] = self.schedule.state_dict()
        state["exploration"] = self.policy.get_extra_state()
        return state

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned.

        Args:
            state_dict: State of a schedule like this one.
            load_network: Without effect; the Q-network belongs to its loss.
            load_optimizer: Without effect; there is none.
            load_hparams: Take everything.
        """
        rest = dict(state_dict)
        schedule, exploration = rest.pop("schedule"), rest.pop("exploration")
        if load_hparams:
            self.schedule.load_state_dict(schedule)
            self.policy.epsilon = self.schedule.value
            self.policy.set_extra_state(exploration)
        super().load_state_dict(rest, load_network, load_optimizer, load_hparams)
