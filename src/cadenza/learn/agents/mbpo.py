"""Model-based policy optimisation: SAC on short imagined rollouts from real states.

An ensemble learns how states change, what that pays and which transitions are final. Now and then
it continues real states for a few steps under the current policy; SAC learns from a mixture of real
and imagined transitions.

Source:  arXiv:1906.08253, algorithm 2. Departures: the model learns one step per update instead of
         to convergence every 250 steps, resting while held-out data say it no longer improves.
Axes:    B = batch, D = observation, A = action, M = imagined transitions kept.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Never, Self, Unpack, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.errors import CheckpointError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.replay import ReplayAgent
from cadenza.learn.agents.sac import SACLearner, SoftConfig, SoftSettings
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.agents.updates import Figures, require_finite
from cadenza.learn.env.making import EnvLike
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.builder import OBSERVATION_KEY, TransitionMemory
from cadenza.learn.models.ensemble import EnsembleOfGaussian
from cadenza.learn.models.hold_out import HoldOut
from cadenza.learn.models.model import DynamicModel, TerminationModel
from cadenza.learn.nn.layers import EncoderFactory
from cadenza.learn.optimizers import may_look, set_rate
from cadenza.learn.settings import SHARED_DEFAULTS, Count, Rate, ScheduleConfig, value_at

#: Longest gradient of the model.
MODEL_GRADIENT_NORM: Final = SHARED_DEFAULTS.max_gradient_norm


class MBPOConfig(SoftConfig):
    """Soft actor-critic that also learns from short rollouts of a learned model.

    Attributes:
        ensemble_size: Members of the model, >= 1.
        num_elites: Members that predict, in [1, ``ensemble_size``].
        model_hidden: Width of the model's hidden layers, >= 1.
        model_layers: Its hidden layers, >= 1.
        model_learning_rate: Adam's step size of the model, > 0, or its schedule.
        model_updates: Updates of the model before it is first used, >= 1.
        rollout_every: Updates between imaginations, >= 1.
        rollout_states: Real states continued each time, >= 1.
        rollout_length: Steps they are continued for, >= 1.
        imagined_size: Imagined transitions kept, >= ``rollout_states``.
        real_share: Share of real transitions in a batch, in [0, 1].
    """

    ensemble_size: Count = Field(default=5, ge=1)
    num_elites: Count = Field(default=3, ge=1)
    model_hidden: Count = Field(default=128, ge=1)
    model_layers: Count = Field(default=3, ge=1)
    model_learning_rate: Rate = 1e-3
    model_updates: Count = Field(default=500, ge=1)
    rollout_every: Count = Field(default=50, ge=1)
    rollout_states: Count = Field(default=400, ge=1)
    rollout_length: Count = Field(default=1, ge=1)
    imagined_size: Count = Field(default=20_000, ge=1)
    real_share: float = Field(default=0.25, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        for small, large in (("num_elites", "ensemble_size"), ("rollout_states", "imagined_size")):
            if not getattr(self, small) <= getattr(self, large):
                raise ValueError(
                    f"{small}: expected at most {large} ({getattr(self, large)}), got "
                    f"{getattr(self, small)}"
                )
        return self


class MBPOSettings(SoftSettings, total=False):
    """Keywords of `MBPOConfig`."""

    ensemble_size: int
    num_elites: int
    model_hidden: int
    model_layers: int
    model_learning_rate: float | ScheduleConfig
    model_updates: int
    rollout_every: int
    rollout_states: int
    rollout_length: int
    imagined_size: int
    real_share: float


class MBPOLearner(SACLearner):
    """SAC with an imagination; the model sees the observation, not the encoder's features.

    It predicts observations and rewards as they are: what is imagined is scaled when SAC sees it.
    """

    Config: ClassVar[type[SoftConfig]] = MBPOConfig

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        config: MBPOConfig | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        config = config or MBPOConfig()
        super().__init__(
            observation_dim=observation_dim,
            action_dim=action_dim,
            config=config,
            seed=seed,
            encoder=encoder,
            device=device,
        )
        self._mbpo = config
        model_seed = derive_substream("learn.mbpo.model", root_seed=seed).integer_seed()
        rollout_seed = derive_substream("learn.mbpo.rollout", root_seed=seed).integer_seed()
        self._rng = torch.Generator().manual_seed(rollout_seed)
        self.model: DynamicModel = DynamicModel(
            model=EnsembleOfGaussian(
                in_size=observation_dim + action_dim,
                out_size=observation_dim + 1,
                device=device,
                num_layers=config.model_layers,
                ensemble_size=config.ensemble_size,
                hidden_size=config.model_hidden,
                propagation="random",
                num_elites=config.num_elites,
                seed=model_seed,
            ),
            termination_model=TerminationModel(
                in_size=2 * observation_dim + action_dim, device=device, seed=model_seed
            ),
        )
        rate = value_at(config.model_learning_rate, 0)
        self._model_adam = torch.optim.Adam(self.model.parameters(), lr=rate)
        self._hold_out = HoldOut(rest=config.model_updates, seed=model_seed)
        self._imagined = ImaginedTransitions(
            config.imagined_size, observation_dim, action_dim, self.device
        )

    def anneal(self, steps: int) -> dict[str, float]:
        """Take the learning rates of after ``steps`` environment steps; return them by name."""
        rate = value_at(self._mbpo.model_learning_rate, steps)
        set_rate(self._model_adam, rate)
        return {**super().anneal(steps), "model_learning_rate": rate}

    def learn(self, memory: TransitionMemory) -> Figures:
        """Do one update, see `learn_from`."""
        return self.learn_from(memory.sample(self.config.batch_size), memory)

    def learn_from(self, batch: Mapping[str, Any], memory: TransitionMemory) -> Figures:
        """Update the model, imagine from ``memory`` when due, then update SAC on the mixture.

        Before its first ``model_updates`` updates the model is not used.
        """
        figures = self._update_model(batch)
        done = self.updates + 1
        if done >= self._mbpo.model_updates and done % self._mbpo.rollout_every == 0:
            self._imagine(memory)
        figures |= self.update(self._mixed(batch))
        return figures | {"n_imagined": torch.tensor(float(len(self._imagined)))}

    def _update_model(self, batch: Mapping[str, Any]) -> Figures:
        """Do one step of the model on the rows that train, unless it rests.

        Rows are held out where they come from, so that no device is waited for.
        """
        states: Tensor = batch["observation"][OBSERVATION_KEY]
        following: Tensor = batch["next_observation"][OBSERVATION_KEY]
        actions, rewards = batch["actions"], batch["rewards"]
        figures: Figures = {}
        train = self._hold_out.keep((states, following, actions, rewards))
        if not self._hold_out.resting and bool(train.any()):
            self._model_adam.zero_grad()
            columns = {
                "obs": states,
                "next_obs": following,
                "action": actions,
                "reward": rewards,
                "terminated": 1.0 - batch["masks"],
            }
            chosen = {name: self._moved(column[train]) for name, column in columns.items()}
            loss, _ = self.model.loss(**chosen)
            learning = [p for p in self.model.parameters() if p.requires_grad]
            torch.autograd.backward(loss, inputs=learning)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), MODEL_GRADIENT_NORM)
            figures = {"dynamic_model_loss": loss.detach(), "dynamic_model_gradient_norm": norm}
            if may_look(self.device, self.updates + 1):
                require_finite(figures)
            self._model_adam.step()  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        self._hold_out.after_step(self.model)
        if errors := self._hold_out.errors:
            figures["dynamic_model_holdout_error"] = torch.tensor(sum(errors) / len(errors))
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return SAC, model, imagined transitions and random streams."""
        return {
            **super().state_dict(),
            "model": self.model.state_dict(),
            "model_optimizer": self._model_adam.state_dict(),
            "hold_out": self._hold_out.state_dict(),
            "imagined": self._imagined.state_dict(),
            "imagination": self._rng.get_state(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["version"] == 2:  # the loss of the model was a callback
            parts = state["model"]
            state = {**state, "hold_out": parts["hold_out"], "model": parts["network_state_dict"]}
            state["model_optimizer"] = parts["optimizer_state_dict"]
        super()._load(state)
        with complete_state("mbpo", "a learner of these sizes"):
            self.model.load_state_dict(state["model"])
            self._model_adam.load_state_dict(state["model_optimizer"])
            set_rate(self._model_adam, value_at(self._mbpo.model_learning_rate, 0))
            self._hold_out.load_state_dict(state["hold_out"], self.model.device)
            self._imagined.load_state_dict(state["imagined"])
            self._rng.set_state(state["imagination"])

    @torch.no_grad()
    def _imagine(self, memory: TransitionMemory) -> None:
        """Continue real states under the current policy and keep the transitions."""
        start = memory.sample(self._mbpo.rollout_states)
        states = self._moved(start["observation"][OBSERVATION_KEY])
        for _ in range(self._mbpo.rollout_length):
            actions: Tensor = self.pi(obs=self.normal.rescale(states))[0]
            outcome = self.model.sample(actions, states, self._rng)
            following, rewards = cast("tuple[Tensor, Tensor]", outcome)  # rewards are learned
            chance = self.model.termination_probability(actions, states, following)
            drawn = self._moved(torch.rand(chance.shape, generator=self._rng))
            masks = (drawn >= chance).float().unsqueeze(1)
            finite = torch.isfinite(following).all(dim=1) & torch.isfinite(rewards[:, 0])
            self._imagined.add(
                states[finite], actions[finite], rewards[finite], following[finite], masks[finite]
            )
            going_on = finite & (masks[:, 0] > 0.0)
            states = following[going_on]
            if not len(states):
                return

    def _mixed(self, real: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of real and imagined transitions; real alone before any imagination."""
        size = self.config.batch_size
        from_model = size - round(size * self._mbpo.real_share)
        if not len(self._imagined) or from_model == 0:
            return dict(real)
        states, actions, rewards, following, masks = self._imagined.sample(from_model, self._rng)
        keep = size - from_model

        def both(own: Tensor, imagined: Tensor) -> Tensor:
            return torch.cat((self._moved(own[:keep]), imagined))

        before, after = real["observation"], real["next_observation"]
        return {
            "observation": {OBSERVATION_KEY: both(before[OBSERVATION_KEY], states)},
            "next_observation": {OBSERVATION_KEY: both(after[OBSERVATION_KEY], following)},
            "actions": both(real["actions"], actions),
            "rewards": both(real["rewards"], rewards),
            "masks": both(real["masks"], masks),
        }

    def _moved(self, rows: Tensor) -> Tensor:
        return rows.to(self.device, non_blocking=True)


class ImaginedTransitions:
    """The newest M imagined transitions, one row each: state, action, reward, next state, mask."""

    def __init__(
        self,
        capacity: int,
        observation_dim: int,
        action_dim: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._widths = [observation_dim, action_dim, 1, observation_dim, 1]
        self._rows = torch.zeros((capacity, sum(self._widths)), device=device)
        self._written = 0

    def __len__(self) -> int:
        """Return how many transitions are kept."""
        return min(self._written, len(self._rows))

    def add(self, *columns: Tensor) -> None:
        """Keep transitions, (B, width) per column; the oldest go."""
        rows = torch.cat(columns, dim=1)
        places = (self._written + torch.arange(len(rows), device=rows.device)) % len(self._rows)
        self._rows[places] = rows
        self._written += len(rows)

    def sample(self, count: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        """Return ``count`` transitions drawn uniformly with replacement, column by column."""
        drawn = torch.randint(len(self), (count,), generator=rng)
        drawn = drawn.to(self._rows.device, non_blocking=True)
        return torch.split(self._rows[drawn], self._widths, dim=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the kept rows and the count of all ever written."""
        return {"rows": self._rows[: len(self)].clone(), "written": self._written}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a stored state."""
        rows: Tensor = state["rows"]
        if rows.shape[1] != self._rows.shape[1] or len(rows) > len(self._rows):
            raise CheckpointError(
                f"mbpo: expected at most {len(self._rows)} imagined transitions of width "
                f"{self._rows.shape[1]}, got {tuple(rows.shape)}."
            )
        self._rows[: len(rows)] = rows
        self._written = int(state["written"])


class _MBPOKeywords(SoloKeywords, MBPOSettings, total=False): ...


class MBPO(ReplayAgent[MBPOConfig]):
    """Soft actor-critic that also learns from a model; arXiv:1906.08253, `MBPOConfig`."""

    Config = MBPOConfig
    Learner = MBPOLearner
    _gone = frozenset({"n_step", "priority_exponent", "importance_exponent"})

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_MBPOKeywords]) -> None:
        super().__init__(env, *others, **settings)

    def _learn_from(self, batch: Mapping[str, Any]) -> Figures:
        learner = cast("MBPOLearner", self.learner)
        return learner.learn_from(batch, self.memory)
