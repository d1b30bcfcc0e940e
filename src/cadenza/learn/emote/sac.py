"""Soft actor-critic.

Equations:  critic       mean (Q(a, o) - y)²
            target       y_t = Σ_{k=t}^{T-1} γ^(k-t) s_r r_k + γ^(T-t) m V,
                         V = min(Q1t, Q2t)(a', o') - α log π(a'|o'),   a' ~ π(·|o')
                         with o' the state after the rollout and m its last mask
            policy       mean α log π(a|o) - min(Q1, Q2)(a, o),   a ~ π(·|o) reparameterised
            temperature  mean ln α · (-log π(a|o) - H_target), minimised over ln α
Source:     arXiv:1812.05905, equations 5 (critics, here for n steps) and 7 (policy), section 5 in
            the ln α form of its published code (temperature); HL-Gauss critics: arXiv:2403.03950.
Axes:       B = n·T rows of a batch: n rollouts of T steps, rollout-major; N = environments,
            O = observation, A = action.
Nets:       observations are dicts; a critic is called ``q(actions, **observation)``, a policy
            ``pi(**observation) -> (actions, log_probabilities)``.
Order:      list the callbacks as `QLoss`, `QLoss`, `PolicyLoss`, `AlphaLoss`, `QTarget`.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

import torch
from torch import Tensor, nn, optim

from cadenza.core.deprecation import deprecated
from cadenza.core.errors import ConfigurationTypeError, InputError, refuse
from cadenza.core.schedules import ConstantSchedule, Schedule
from cadenza.core.spaces import MDPSpace
from cadenza.core.types import AgentId, DictResponse
from cadenza.learn.agents.sac import (
    SACConfig,
    policy_loss,
    soft_values,
    squared_errors,
    temperature_loss,
)
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.loss import LossCallback, LossKeywords
from cadenza.learn.emote.targets import (
    CriticLoss,
    Observations,
    TargetCallback,
    TargetKeywords,
    soft_update_from_to,
)
from cadenza.learn.optimizers import adam
from cadenza.learn.proxies import AgentObservations, AgentProxy, GenericAgentProxy
from cadenza.learn.settings import ScheduleConfig

__all__ = [
    "AgentProxyWrapper",
    "AlphaLoss",
    "FeatureAgentProxy",
    "MultiKeyAgentProxy",
    "PolicyLoss",
    "QLoss",
    "QTarget",
    "VisionAgentProxy",
    "soft_actor_critic",
    "soft_update_from_to",
]

#: Emote's cap of α, for losses put together by hand; `SACConfig` has one of its own.
MAX_ALPHA: Final = 0.2


class QLoss(CriticLoss[nn.Module]):
    """Mean squared distance between a critic and ``q_target``; arguments are those of `CriticLoss`.

    Rollouts of a prioritised memory are weighted by its ``sample_weights``.
    """

    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return predictions and squared errors."""
        predictions: Tensor = self.q_network(actions, **observation)
        return predictions.detach(), squared_errors(predictions, q_target)


class PolicyLoss(LossCallback):
    """Makes the policy choose actions of high soft value; with ``q2``, of the smaller of both.

    Of the critics, only parameters that ``opt`` trains itself (a shared encoder, say) learn.
    ``ln_alpha`` is shared with the other losses; other arguments are those of `LossCallback`.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        ln_alpha: Tensor,
        q: nn.Module,
        opt: optim.Optimizer,
        q2: nn.Module | None = None,
        name: str = "policy",
        **others: Unpack[LossKeywords],
    ) -> None:
        super().__init__(name=name, network=pi, optimizer=opt, **others)
        self.policy = pi
        self.ln_alpha = ln_alpha
        self.q1 = q
        self.q2 = q2
        self._evaluated: tuple[Observations, Tensor] | None = None

    def loss(self, observation: Observations) -> Tensor:
        """Return mean(α log π - Q), shape (), for the B rows of ``observation``."""
        actions, log_probabilities = self.policy(**observation)
        q_value: Tensor = self.q1(actions, **observation)
        if self.q2 is not None:
            q_value = torch.minimum(q_value, self.q2(actions, **observation))
        alpha = self.ln_alpha.detach().exp()
        self._evaluated = (observation, log_probabilities.detach())
        self.log_mean("policy/q_pi_min", q_value)
        self.log_mean("policy/logp_pi", self._evaluated[1])
        self.log_mean("policy/alpha", alpha)
        return policy_loss(log_probabilities, q_value, alpha)

    def log_probabilities_of(self, observation: Observations) -> Tensor | None:
        """Return log π as this loss drew it for that very ``observation``, detached, else None."""
        if self._evaluated is None or self._evaluated[0] is not observation:
            return None
        return self._evaluated[1]

    def end_batch(self) -> None:
        """Let go of the batch."""
        self._evaluated = None


class AlphaLoss(LossCallback):
    """Moves the temperature α so that the policy keeps a target entropy.

    Arguments not named here are those of `LossCallback`.

    Args:
        ln_alpha: ln α, a leaf tensor that ``opt`` trains.
        n_actions: A; the target entropy is -A nats unless ``t_entropy`` is given.
        max_alpha: Cap of α, applied after every batch. The default is the original engine's.
        t_entropy: Target entropy in nats, a number or a schedule that steps once per batch.
        log_prob_from: A `PolicyLoss` of the same policy that runs earlier in the same step; its
            log-probabilities are used instead of evaluating the policy again. The temperature then
            follows the policy before its update, as in most implementations.

    Raises:
        ConfigurationTypeError: ``t_entropy`` is neither number, schedule nor None.
        InputError: ``max_alpha`` is not positive, or ``log_prob_from`` trains another policy.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        ln_alpha: Tensor,
        opt: optim.Optimizer,
        n_actions: int,
        max_alpha: float = MAX_ALPHA,
        name: str = "alpha",
        t_entropy: float | Schedule | None = None,
        log_prob_from: PolicyLoss | None = None,
        **others: Unpack[LossKeywords],
    ) -> None:
        super().__init__(name=name, network=None, optimizer=opt, **others)
        if not max_alpha > 0.0:
            refuse(InputError, "AlphaLoss", expected="max_alpha > 0", got=max_alpha)
        if log_prob_from is not None and log_prob_from.policy is not pi:
            raise InputError("AlphaLoss: expected log_prob_from to train the same policy pi.")
        self.policy = pi
        self.ln_alpha = ln_alpha
        self._max_ln_alpha = math.log(max_alpha)
        self._log_prob_from = log_prob_from
        self.t_entropy: Schedule = _entropy_schedule(t_entropy, n_actions)
        if float(ln_alpha.detach().max()) > self._max_ln_alpha + 1e-6:
            warnings.warn(
                f"AlphaLoss: alpha starts at {float(ln_alpha.detach().exp().max()):.3g} and will "
                f"be cut to max_alpha = {max_alpha:.3g} after the first batch; start lower or "
                "raise max_alpha.",
                UserWarning,
                stacklevel=2,
            )

    def loss(self, observation: Observations) -> Tensor:
        """Return mean(ln α · (-log π - H_target)), shape ()."""
        source = self._log_prob_from
        log_probabilities = None if source is None else source.log_probabilities_of(observation)
        if log_probabilities is None:
            with torch.no_grad():
                log_probabilities = self.policy(**observation)[1]
        self.log_mean("training/entropy", -log_probabilities)
        return temperature_loss(log_probabilities, self.ln_alpha, self.t_entropy.value)

    def end_batch(self) -> None:
        """Cap α, log it, and step the target entropy."""
        with torch.no_grad():
            self.ln_alpha.clamp_(max=self._max_ln_alpha)
        self.log_mean("training/alpha_value", self.ln_alpha.detach().exp())
        self.log_scalar("training/target_entropy", self.t_entropy.value)
        self.t_entropy.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser, ln α as ``network_state_dict``, and the schedule's position."""
        return {
            **super().state_dict(),
            "network_state_dict": self.ln_alpha.detach().clone(),
            "target_entropy_schedule": self.t_entropy.state_dict(),
        }

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned; ln α always, in place, since others share it."""
        with torch.no_grad():
            self.ln_alpha.copy_(state_dict["network_state_dict"])
        super().load_state_dict(state_dict, load_network, load_optimizer, load_hparams)

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        if "target_entropy_schedule" in state:
            self.t_entropy.load_state_dict(state["target_entropy_schedule"])


def _entropy_schedule(t_entropy: object, n_actions: int) -> Schedule:
    """Return the target entropy as a schedule; -``n_actions`` nats when None."""
    wanted = -n_actions if t_entropy is None else t_entropy
    if not isinstance(wanted, Schedule | int | float):
        expected = "t_entropy a number, a Schedule or None"
        refuse(ConfigurationTypeError, "AlphaLoss", expected=expected, got=type(t_entropy))
    return wanted if isinstance(wanted, Schedule) else ConstantSchedule(float(wanted))


class QTarget(TargetCallback):
    """Computes ``q_target`` for every batch and lets the target networks follow.

    Without ``q1t`` and ``q2t``, copies of the critics are their targets. Arguments not named here
    are those of `TargetCallback`.

    Args:
        ln_alpha: ln α, the weight of the entropy; shared with the other losses.
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
        use_terminal_masking: bool = False,
        **others: Unpack[TargetKeywords],
    ) -> None:
        super().__init__({"q1t": (q1, q1t), "q2t": (q2, q2t)}, **others)
        self.policy = pi
        self.ln_alpha = ln_alpha
        self.q1, self.q2 = q1, q2
        self.q1t, self.q2t = self.targets.values()
        self.use_terminal_masking = use_terminal_masking
        self._unmasked_terminal_reported = use_terminal_masking

    @torch.no_grad()
    def begin_batch(
        self,
        next_observation: Observations,
        rewards: Tensor,
        masks: Tensor,
        terminal: Tensor | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """Write ``q_target``, shape (B, 1), into the data group.

        ``next_observation`` has the state after every rollout, n rows; rewards and masks (0 where a
        step ended its episode for good) are (B, 1). ``terminal`` only says that the memory knows
        final states from interrupted ones.
        """
        if terminal is not None and not self._unmasked_terminal_reported:
            self._unmasked_terminal_reported = True
            told = (
                "QTarget: the memory has a terminal column but use_terminal_masking is False, so "
            )
            told += "final states are bootstrapped; pass use_terminal_masking=True."
            warnings.warn(told, UserWarning, stacklevel=2)
        actions, log_probabilities = self.policy(**next_observation)
        next_q = torch.minimum(
            self.q1t(actions, **next_observation), self.q2t(actions, **next_observation)
        )
        return self.written(
            rewards,
            soft_values(next_q, log_probabilities, self.ln_alpha.exp()),
            masks if self.use_terminal_masking else None,
            next_logp_pi=log_probabilities,
            min_next_q_target=next_q,
        )

    def end_batch(self) -> None:
        """Move the target networks."""
        self._target_networks.soft_update(self.tau)


def soft_actor_critic(
    policy: nn.Module,
    critics: Sequence[CriticLoss[Any]],
    ln_alpha: Tensor,
    action_dim: int,
    config: SACConfig,
    *,
    reward_scale: float = 1.0,
    data_group: str = "default",
) -> list[Callback]:
    """Return the callbacks of soft actor-critic, in order, behind the losses of two critics.

    ``ln_alpha`` is trained in place; final states are worth 0.

    Raises:
        InputError: There are not two critics, or the learning rate has a schedule of environment
            steps, which losses do not count.
    """
    rate = config.learning_rate
    if isinstance(rate, ScheduleConfig):
        do = "give the optimizers of losses of your own an lr_schedule"
        refuse(InputError, "soft_actor_critic", expected="one learning_rate", got=rate, do=do)
    if len(critics) != 2:
        got = len(critics)
        refuse(InputError, "soft_actor_critic", expected="the losses of two critics", got=got)
    q1, q2 = (loss.q_network for loss in critics)
    losses: LossKeywords = {"max_grad_norm": config.max_gradient_norm, "data_group": data_group}
    policy_opt = adam(policy, rate)
    policy_loss = PolicyLoss(pi=policy, ln_alpha=ln_alpha, q=q1, q2=q2, opt=policy_opt, **losses)
    alpha_loss = AlphaLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        opt=optim.Adam([ln_alpha], lr=rate, fused=True),
        n_actions=action_dim,
        max_alpha=config.max_alpha,
        t_entropy=config.target_entropy,
        log_prob_from=policy_loss,
        **losses,
    )
    target = QTarget(
        pi=policy,
        ln_alpha=ln_alpha,
        q1=q1,
        q2=q2,
        gamma=config.gamma,
        reward_scale=reward_scale,
        target_q_tau=config.tau,
        use_terminal_masking=True,
        data_group=data_group,
    )
    return [*critics, policy_loss, alpha_loss, target]


_ADVICE: Final = "use cadenza.learn.proxies.GenericAgentProxy with these keys"
_SINCE: Final = "23.1.0"


class AgentProxyWrapper:
    """Base of proxies that add something to another proxy; passes everything through."""

    def __init__(self, *, inner: AgentProxy) -> None:
        self._inner = inner

    def __call__(self, observations: AgentObservations) -> dict[AgentId, DictResponse]:
        """Return the responses of the inner proxy."""
        return self._inner(observations)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Observation keys that go into the network."""
        return self._inner.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Response keys that come out of it."""
        return self._inner.output_names

    @property
    def policy(self) -> nn.Module:
        """The network that acts."""
        return self._inner.policy


class FeatureAgentProxy(GenericAgentProxy):
    """One flat array of features in, actions out."""

    @deprecated(reason=_ADVICE, version=_SINCE)
    def __init__(
        self, policy: nn.Module, device: torch.device | str, input_key: str = "obs"
    ) -> None:
        super().__init__(policy, device, (input_key,), ("actions",))


class VisionAgentProxy(FeatureAgentProxy):
    """Images under ``obs`` in, actions out."""

    @deprecated(reason=_ADVICE, version=_SINCE)
    def __init__(self, policy: nn.Module, device: torch.device | str) -> None:
        GenericAgentProxy.__init__(self, policy, device, ("obs",), ("actions",))


class MultiKeyAgentProxy(GenericAgentProxy):
    """Several observation arrays in, in the order of the policy's arguments, actions out."""

    @deprecated(reason=_ADVICE, version=_SINCE)
    def __init__(
        self,
        policy: nn.Module,
        device: torch.device | str,
        input_keys: Sequence[str],
        spaces: MDPSpace | None = None,
    ) -> None:
        super().__init__(policy, device, input_keys, ("actions",), spaces=spaces)
