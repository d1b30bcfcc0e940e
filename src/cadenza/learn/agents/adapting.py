"""What egos share that model their partner: a belief beside what they observe, learned by itself.

Equations, with the belief z of `cadenza.learn.nn.belief` and what infos tell of the partner:
    PPO on actor and critic of (o, sg(z)), sg stopping gradients; beside it, with an optimiser of
    its own, a loss of z and the partner's observation o' and action a', both of the same step
Sequences are those of PPO with a memory (`cadenza.learn.agents.ppo`): z is made anew from where
each begins in every epoch, with the memory and the action of before it as they were then. Both an
episode's end and the next one's begin are known, so an episode's first step remembers nothing.
Privacy:     only `update` reads o' and a'; acting knows the ego's own history alone.
Axes:        T = steps, N = rows per step, B = batch, O = observation, M = mask of legal actions,
             A = what is remembered of an action, Z = belief, S = its memory, P = partner's
             observation and action, D = partner's choices or numbers.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.errors import InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.on_policy import Rollout, Sizes, descend
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.ppo import (
    MAPPOConfig,
    MAPPOSettings,
    PPOLearner,
    Sequences,
    ToldBatch,
    Unrolled,
    sequence_table,
    walked,
)
from cadenza.learn.agents.rollout import RolloutAgent
from cadenza.learn.env.stepping import VectorStep, choices_of
from cadenza.learn.nn.belief import Believing, believed, beside, with_belief
from cadenza.learn.nn.layers import with_encoder
from cadenza.learn.nn.policy_networks import DiagonalGaussianHead, FactoredHead
from cadenza.learn.nn.recurrent import Memory, Recurrent, Window, as_remembered
from cadenza.learn.nn.running_normalizer import RunningNormalizer
from cadenza.learn.optimizers import set_rate
from cadenza.learn.settings import (
    ChoosingConfig,
    ChoosingSettings,
    Count,
    Rate,
    ScheduleConfig,
    value_at,
)

#: Ends of the log-deviation of a foretold number, in units of the number's own deviation.
LOG_DEVIATIONS: Final = (-4.0, 1.0)
#: Names of what infos tell of a partner.
PARTNER_OBSERVATION, PARTNER_ACTION = "partner_observation", "partner_action"


class AdaptingConfig(MAPPOConfig, ChoosingConfig):
    """What egos share that model their partner; the defaults are LIAM's.

    Attributes:
        model_learning_rate: Adam's step size of belief and predictions, > 0, or its schedule.
        sequence_length: Steps through which a belief is made anew, and gradients flow back, >= 1.
    """

    rollout_length: Count = Field(default=128, ge=1)
    batch_size: Count = Field(default=256, ge=1)
    epochs: Count = Field(default=15, ge=1)
    clip_epsilon: float = Field(default=0.05, gt=0.0)
    model_learning_rate: Rate = 7e-4
    sequence_length: Count = Field(default=128, ge=1)


class AdaptingSettings(MAPPOSettings, ChoosingSettings, total=False):
    """Keywords of `AdaptingConfig`."""

    model_learning_rate: float | ScheduleConfig
    sequence_length: int


Config = TypeVar("Config", bound=AdaptingConfig)


class Partner(NamedTuple):
    """What is told of a partner in every step.

    Attributes:
        observed: Numbers of its observation.
        counts: How many choices its action has each time; none where it acts by numbers.
        done: D.
    """

    observed: int
    counts: tuple[int, ...]
    done: int

    @classmethod
    def of(cls, observation: Any, action: Any) -> "Partner":
        """Return it for its spaces."""
        counts = tuple(choices_of(action))
        return cls(spaces.flatdim(observation), counts, len(counts) or spaces.flatdim(action))

    @property
    def scaled(self) -> int:
        """Leading columns that are numbers, which are scaled."""
        return self.observed + (0 if self.counts else self.done)

    def head(self) -> FactoredHead | DiagonalGaussianHead:
        """Return the distribution of its actions; normal ones are of scaled numbers."""
        return FactoredHead(self.counts) if self.counts else DiagonalGaussianHead(self.done)

    def actions(self, told: Tensor) -> Tensor:
        """Return its actions as the head takes them, (B, D), of what is told, (B, P)."""
        return told[:, self.observed :].long() if self.counts else told[:, self.observed :]

    def right(self, predicted: Tensor, actions: Tensor) -> Tensor:
        """Return the share of choices that are predicted, or of the variance of numbers, ()."""
        if self.counts:
            return (predicted == actions).float().mean()
        return 1.0 - (predicted - actions).square().mean() / actions.var(dim=0).mean().clamp_min(
            1e-8
        )


class AdaptingLearner(PPOLearner):
    """`PPOLearner` whose actor and critic see a belief about the partner.

    Subclasses say what it is made by (`_belief`) and how it learns (`_explained`). ``bounds`` are
    those of the ego's actions, (A,) each, where they are numbers; the policy's state is what is
    remembered of the last one, then the memory of the belief: (A + S).
    """

    def __init__(
        self,
        config: Any,
        *,
        partner: Partner,
        bounds: tuple[NDArray[Any], NDArray[Any]] | None,
        belief_size: int,
        **sizes: Any,
    ) -> None:
        choices = sizes.get("choices")
        self._counts = [choices] if isinstance(choices, int) else [*(choices or ())]
        self._bounds = (
            None if bounds is None else (torch.tensor(bounds[0]), torch.tensor(bounds[1]))
        )
        if bounds is not None and config.squash_actions:
            ones = torch.ones(bounds[0].size)
            self._bounds = -ones, ones
        self._partner, self._masks = partner, sizes.get("masks", 0)
        self._numbers = sizes["observation_dim"]
        self._done_width = sum(self._counts) or cast("int", sizes["action_dim"])
        super().__init__(config, **cast("Sizes", {**sizes, "joined": belief_size}))
        self.adapting: Any = config
        width = self._numbers + self._done_width
        encoder = beside(sizes.get("encoder"), self._numbers, self._done_width)
        memory, before = with_encoder(encoder, width, self._memory)
        self.belief: Recurrent = Recurrent(before, memory, self._summary(memory.size)).to(
            self._device
        )
        #: What of a belief actor and critic see.
        self.shown: nn.Module = self._shown()
        self.predictions: nn.ModuleDict = nn.ModuleDict(self._predictions()).to(self._device)
        self.model_optimizer: torch.optim.Adam = torch.optim.Adam(
            [*self.belief.parameters(), *self.predictions.parameters()],
            lr=value_at(config.model_learning_rate, 0),
            fused=True,
        )
        #: Moments of the numbers that are told of the partner.
        self.partner_moments: RunningNormalizer = RunningNormalizer(partner.scaled)
        self.greedy: nn.Module = Believing(
            self.normal.layers(),
            self.belief,
            self.shown,
            self.network.actor,
            torch.tanh if config.squash_actions else self.network.head.mode,
            self._remembered,
            masks=self._masks,
            actions=self._done_width,
        )

    @abstractmethod
    def _memory(self, width: int) -> Memory | Window:
        """Return what remembers features and actions, ``width`` numbers a step."""

    @abstractmethod
    def _summary(self, width: int) -> nn.Module:
        """Return what makes the belief, (B, Z), of what is remembered, (B, ``width``)."""

    def _shown(self) -> nn.Module:
        """Return what makes of a belief, (B, Z), what actor and critic see."""
        return nn.Identity()

    @abstractmethod
    def _predictions(self) -> dict[str, nn.Module]:
        """Return what else learns with the belief, by name."""

    @abstractmethod
    def _explained(self, z: Tensor, told: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of beliefs (B, Z) and its figures; what is told is (B, P), scaled."""

    def foretelling_loss(self, output: Tensor, actions: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return mean −log p(a'), (), of what the head takes, (B, ...); it, and its accuracy."""
        head: Any = self.predictions["head"]
        if isinstance(head, DiagonalGaussianHead):
            with torch.no_grad():  # of what the last step made; a clamp in the loss would hold it
                head.log_std.clamp_(*LOG_DEVIATIONS)
        loss = -head.log_prob(output, actions).mean()
        with torch.no_grad():
            right = self._partner.right(head.mode(output), actions)
        return loss, [loss, right]

    @property
    def state_width(self) -> int:
        """A + S, what the policy remembers of a row from one step to the next."""
        return self._done_width + self.belief.memory.width

    @torch.no_grad()
    def decide(
        self, observations: Float32Array, state: Float32Array, *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Float32Array]:
        """Return decisions for rows that remember ``state``, (N, A + S), and the next state."""
        drawn, memory = super().decide(observations, state, deterministic=deterministic)
        done = self._done(torch.as_tensor(drawn)).numpy()
        return drawn, np.concatenate((done, memory), axis=1)

    def update(self, buffer: OnPolicyBuffer, *, done: int = 0, total: int = 1) -> dict[str, float]:
        """Learn from ``buffer`` as `OnPolicyLearner.update` does, beliefs with a rate of theirs."""
        set_rate(self.model_optimizer, value_at(self.adapting.model_learning_rate, done))
        return super().update(buffer, done=done, total=total)

    def _done(self, decided: Tensor) -> Tensor:
        """Return what is remembered of decisions, (B, A), which are not squashed yet."""
        squash = self._bounds is not None and self.adapting.squash_actions
        return self._remembered(torch.tanh(decided) if squash else decided)

    def _remembered(self, decided: Tensor) -> Tensor:
        return as_remembered(decided, self._counts, self._bounds)

    def _output(self, rows: Tensor, state: Float32Array) -> tuple[Tensor, Float32Array]:
        before = self._on_device(state)
        joined, memory = believed(self.belief, self.shown, rows, before, masks=self._masks)
        return self.network.actor(joined), memory.cpu().numpy()

    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[Rollout, dict[str, float]]:
        config, rows, numbers = self.config, buffer.shape.rows, self._numbers
        everything = np.ones_like(counted)
        begins = torch.tensor(buffer.begins, device=self._device)
        stored = self._on_device(buffer.states.copy())
        first, memory = stored[:, : self._done_width], stored[:, self._done_width :]
        seen = self._flat(buffer.observations, everything)
        actions = self._flat(buffer.actions, everything)
        done = self._done(actions).reshape(*counted.shape, -1)
        before = torch.cat((first[None], done)).masked_fill(begins[..., None], 0.0)
        inputs = with_belief(seen, before[:-1].flatten(0, 1), self._masks)
        heard = inputs[:, : numbers + self._done_width].reshape(*counted.shape, -1)
        z, states, after = walked(self.belief, heard, memory, begins[:-1])
        joined = with_belief(seen, self.shown(z.flatten(0, 1)), self._masks)
        values = self.network.value(joined)
        carried = torch.cat((before[-1], after[-1].masked_fill(begins[-1][:, None], 0.0)), dim=1)

        def value(observations: Float32Array) -> Float32Array:
            """Return V of all steps, then of what follows the rollout and of what was cut off."""
            cuts = (torch.cat((done[step][cut], after[step][cut]), 1) for step, cut in buffer.cuts)
            ends = self._on_device(observations[counted.size :])
            before_ends = torch.cat([carried, *cuts])
            known, _ = believed(self.belief, self.shown, ends, before_ends, masks=self._masks)
            return self._unscaled(torch.cat((values, self.network.value(known))))

        estimates = buffer.estimate(value, gamma=config.gamma, gae_lambda=config.gae_lambda)
        returns, judged = self._targets(estimates, counted)
        steps = ToldBatch(
            observations=inputs,
            actions=actions,
            old_log_probs=self.network.head.log_prob(self.network.actor(joined), actions),
            advantages=self._flat(estimates.advantages, everything),
            returns=self._flat(returns, everything),
            old_values=self._flat(judged, everything),
            told=self._flat(self._scaled_told(buffer.told[: len(counted)], counted), everything),
        )
        first_step, row, lengths = sequence_table(
            buffer.begins[:-1], counted, self.adapting.sequence_length
        )
        sequences = Sequences(
            steps=steps,
            stride=rows,
            firsts=torch.tensor(first_step * rows + row),
            lengths=torch.tensor(lengths),
            states=states[first_step, row],
        )
        return sequences, self._moments_of(estimates, counted)

    def _scaled_told(self, told: Float32Array, counted: NDArray[np.bool_]) -> Float32Array:
        """Return what is told with its numbers in units of their deviations, (T, N, P)."""
        columns = self._partner.scaled
        self.partner_moments.update(told[counted][:, :columns])
        scaled = self.partner_moments.normalize(told[..., :columns])
        return np.concatenate((scaled, told[..., columns:]), axis=2)

    def _step(self, batch: Unrolled) -> Tensor:
        steps, heard = cast("ToldBatch", batch.steps), self._numbers + self._done_width
        z, _ = self.belief(batch.observations[..., :heard], batch.states)
        z = z.flatten(0, 1)[batch.inside]
        loss, told = self._explained(z, steps.told)
        norm = descend(loss, self.model_optimizer, self.config.max_gradient_norm)
        rows = steps.observations
        seen = torch.cat((rows[:, : self._numbers], rows[:, heard:]), dim=1)
        joined = with_belief(seen, self.shown(z.detach()), self._masks)
        figures = self._learn(steps, self.network.value(joined), self.network.actor(joined))
        return torch.cat((figures, torch.stack([*(each.detach() for each in told), norm])))

    def _own_state(self) -> dict[str, Any]:
        return {
            **super()._own_state(),
            "belief": self.belief.state_dict(),
            "predictions": self.predictions.state_dict(),
            "model_optimizer": self.model_optimizer.state_dict(),
            "partner_moments": self.partner_moments.state_dict(),
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        super()._load_own_state(state)
        self.belief.load_state_dict(state["belief"])
        self.predictions.load_state_dict(state["predictions"])
        self.model_optimizer.load_state_dict(state["model_optimizer"])
        self.partner_moments.load_state_dict(state["partner_moments"])


class AdaptingAgent(RolloutAgent[Config]):
    """An ego that models its partner, as infos tell of it in every step.

    ``info["partner_observation"]``, what the partner decided on, and ``info["partner_action"]``,
    what it executed; environments say what they are by ``partner_observation_space`` and
    ``partner_action_space``. Both are for learning alone.
    """

    default_envs = 8

    @property
    def _models_partner(self) -> bool:
        return True

    @property
    def _partner(self) -> Partner:
        return Partner.of(*cast("tuple[Any, Any]", self.envs.partner_spaces))

    @property
    def _action_bounds(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return the bounds of actions that are numbers, (A,) each."""
        space: Any = self.envs.action_space
        return None if self._port.components is None else (space.low.ravel(), space.high.ravel())

    def _reset(self) -> NDArray[Any]:
        name = f"{self.learner.STREAM}.env.{self.steps}"
        return self._worlds.reset(derive_substream(name, root_seed=self.seed).integer_seed())

    @property
    def _told_width(self) -> int:
        return self._partner.observed + self._partner.done

    def _told(self, step: VectorStep) -> NDArray[Any]:
        partner, count = self._partner, len(step.rewards)
        if not step.valid.any():  # environments that all begin anew say nothing
            return np.zeros((count, self._told_width), np.float32)
        pieces: list[NDArray[Any]] = []
        widths = {PARTNER_OBSERVATION: partner.observed, PARTNER_ACTION: partner.done}
        for name, width in widths.items():
            told: Any = step.info.get(name)
            if told is None or np.size(told) != count * width:
                got = "nothing" if told is None else f"an array of shape {np.shape(told)}"
                expected = f"info[{name!r}] of every step, {width} numbers for each of {count} rows"
                refuse(InputError, self.name, expected=expected, got=got)
            pieces.append(np.reshape(told, (count, width)))
        if partner.counts:
            space = cast("Any", self.envs.partner_spaces)[1]
            pieces[1] = pieces[1] - np.ravel(getattr(space, "start", 0))
        rows = np.concatenate(pieces, axis=1)
        told_rows = np.where(step.valid[:, None], rows, 0.0).astype(np.float32)
        require_finite(f"{self.name}: what is told of the partner", told_rows)
        return told_rows
