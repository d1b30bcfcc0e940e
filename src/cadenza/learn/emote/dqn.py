"""Deep Q-learning, on choices or on a grid of continuous actions.

Equation:  y_t = Σ_{k<T-t} γ^k s r_{t+k} + γ^(T-t) m V,  loss = mean(w ℓ(Q(o)_a - y)),
           V = max_a Q'(o')_a (plain) or Q'(o')_{argmax_a Q(o')_a} (double); s scales rewards, m is
           the mask of the rollout's last row, Q' the target network, ℓ the square or Huber's loss.
           Exploration is ε-greedy: with probability ε any action, else the best one.
Sources:   Mnih et al. 2015 (doi:10.1038/nature14236); double: arXiv:1509.06461, eq. 4; n steps as
           in arXiv:1710.02298; soft target updates: arXiv:1509.02971; ε-greedy: Sutton & Barto,
           "Reinforcement Learning", 2nd edition, eq. 2.2.
Axes:      n = rollouts, T = rollout length, B = n·T rows, rollout-major, A = actions; in the
           learner N = environments, O = observation, A = action components, C = choices, in the
           explorer K = agents in one call.
Grid:      every component takes one of K evenly spaced values from −1 to 1; a choice is one
           combination.
"""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn, optim

from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.core.schedules import Schedule
from cadenza.learn.agents.dqn import chosen_values, epsilon_greedy, next_values, regression_loss
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.emote.targets import (
    CriticKeywords,
    CriticLoss,
    Observations,
    TargetCallback,
    TargetKeywords,
)
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.nn.layers import NoisyModule


class QTarget(TargetCallback):
    """Computes ``q_target`` for every row of a batch and keeps the target network.

    The mask of a rollout's last row decides whether the state after it has a value, so an episode
    that was cut off (mask 1) bootstraps and one that ended (mask 0) does not. Arguments not named
    here are those of `TargetCallback`.

    Args:
        q_net: Q-network; called with the observation's entries as keywords, returns (n, A).
        target_period: Steps between updates of the target network. The classic hard update is
            ``target_q_tau=1.0`` with a period of hundreds of steps.

    Raises:
        ConfigurationError: ``target_q_tau`` or ``target_period`` is out of range.
    """

    def __init__(
        self,
        *,
        q_net: nn.Module,
        target_q_net: nn.Module | None = None,
        double: bool = False,
        target_period: int = 1,
        **others: Unpack[TargetKeywords],
    ) -> None:
        super().__init__({"q": (q_net, target_q_net)}, **others)
        if not 0.0 < self.tau <= 1.0 or target_period < 1:
            raise ConfigurationError(
                "dqn.QTarget: expected target_q_tau in (0, 1] and target_period >= 1, got "
                f"{self.tau} and {target_period}."
            )
        self.q_net = q_net
        self.target_q_net: nn.Module = self.targets["q"].requires_grad_(False)
        self._double = double
        self._target_period = target_period
        self._steps = 0

    @torch.no_grad()
    def begin_batch(
        self, next_observation: dict[str, Tensor], rewards: Tensor, masks: Tensor
    ) -> dict[str, Any]:
        """Return ``q_target``, shape (B, 1), for the group.

        ``next_observation`` has the state after each rollout, n rows; rewards and masks (0 where an
        episode ended) are (B, 1).
        """
        online_q = self.q_net(**next_observation) if self._double else None
        values = next_values(self.target_q_net(**next_observation), online_q)
        return self.written(rewards, values, masks)

    def end_batch(self) -> None:
        """Move the target network, every ``target_period`` steps."""
        self._steps += 1
        if self._steps % self._target_period == 0:
            self._target_networks.soft_update(self.tau)

    def state_dict(self) -> dict[str, Any]:
        """Return logs, target network and the number of steps taken."""
        network = self.target_q_net.state_dict()
        return {**super().state_dict(), "network_state_dict": network, "steps": self._steps}

    def _load_network(self, state: Mapping[str, Any]) -> None:
        require_parts("dqn.QTarget", state, ("network_state_dict",))
        self.target_q_net.load_state_dict(state["network_state_dict"])

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts("dqn.QTarget", state, ("steps",))
        self._steps = int(state["steps"])


class QLoss(CriticLoss[nn.Module]):
    """Regression of the Q-values of the actions taken towards ``q_target``.

    Arguments not named here are those of `CriticLoss`.

    Args:
        q: Q-network; called with the observation's entries as keywords, returns (B, A).
        huber_delta: Error > 0 above which the loss grows linearly; None: the squared error.
    """

    def __init__(
        self,
        *,
        name: str,
        q: nn.Module,
        opt: optim.Optimizer,
        huber_delta: float | None = None,
        **others: Unpack[CriticKeywords],
    ) -> None:
        super().__init__(name=name, q=q, opt=opt, **others)
        if huber_delta is not None and not huber_delta > 0.0:
            refuse(ConfigurationError, "dqn.QLoss.huber_delta", expected="> 0", got=huber_delta)
        self._huber_delta = huber_delta

    def loss(  # pyright: ignore[reportIncompatibleMethodOverride] -- Emote's order
        self,
        observation: Observations,
        q_target: Tensor,
        actions: Tensor,
        sample_weights: Tensor | None = None,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss; ``actions`` are indices, (B, 1) or (B,), see `CriticLoss.loss`."""
        return super().loss(observation, actions, q_target, sample_weights, sample_ids)

    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return values of the actions and their losses."""
        predicted = chosen_values(self.q_network(**observation), actions)
        losses = regression_loss(predicted, q_target, huber_delta=self._huber_delta)
        return predicted.detach(), losses


class EpsilonGreedyPolicy(NoisyModule):
    """A Q-network as a policy: ε-greedy in training mode, greedy in evaluation mode.

    Use it behind `GenericAgentProxy` with ``uses_logprobs=False``. The state dict holds ε and the
    generator, so a resumed run explores on as the unbroken one. ε is a buffer: copies of the policy
    that follow its tensors, as those of a threaded collector, follow ε too.

    Args:
        q_net: Takes observations by position, returns values (K, A).
        epsilon: Probability of a uniformly drawn action, in [0, 1].

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
        super().__init__(generator)
        self.q_net = q_net
        self.register_buffer("_epsilon", torch.zeros((), dtype=torch.float64))
        self.epsilon = epsilon

    @property
    def epsilon(self) -> float:
        """Probability of a uniformly drawn action."""
        return float(self._buffer().item())

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            refuse(InputError, "EpsilonGreedyPolicy.epsilon", expected="[0, 1]", got=value)
        self._buffer().fill_(value)

    def forward(self, *observations: Tensor, **named: Tensor) -> Tensor:
        """Return one action index per agent, shape (K, 1), int64."""
        with torch.no_grad():
            q_values: Tensor = self.q_net(*observations, **named)
        if not self.training:
            return q_values.argmax(dim=1, keepdim=True)
        return epsilon_greedy(q_values, self.epsilon, self.generator)

    def _buffer(self) -> Tensor:
        return self.get_buffer("_epsilon")


class EpsilonSchedule(LoggingMixin, Callback):
    """Moves ε of a policy along a schedule, one step per batch; logs ``training/epsilon``.

    It counts training steps, not calls of the policy, so a long warm-up does not use ε up. Put it
    before the collector in the list of callbacks.
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
        return {
            **super().state_dict(),
            "schedule": self.schedule.state_dict(),
            "exploration": self.policy.get_extra_state(),
        }

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts(self.name, state, ("schedule", "exploration"))
        self.schedule.load_state_dict(state["schedule"])
        self.policy.epsilon = self.schedule.value
        self.policy.set_extra_state(state["exploration"])
