"""Model-based policy optimisation: SAC on short imagined rollouts from real states.

An ensemble learns how states change, what that pays and which transitions are final. Now and then
it continues real states for a few steps under the current policy; SAC learns from a mixture of real
and imagined transitions.

Source:  arXiv:1906.08253, algorithm 2. Departures: the model learns one step per update instead of
         to convergence every 250 steps, resting while held-out data say it no longer improves.
Axes:    B = batch, D = observation, A = action, M = imagined transitions kept.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from cadenza.core.errors import CheckpointError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.sac import SACLearner
from cadenza.learn.configs import MBPOConfig
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.builder import OBSERVATION_KEY, TransitionMemory
from cadenza.learn.models.callbacks import ModelLoss
from cadenza.learn.models.ensemble import EnsembleOfGaussian
from cadenza.learn.models.hold_out import HoldOut
from cadenza.learn.models.model import DynamicModel, TerminationModel
from cadenza.learn.nn.layers import EncoderFactory
from cadenza.learn.optimizers import set_rate
from cadenza.learn.trainer import Trainer


class MBPOLearner(SACLearner):
    """SAC with an imagination; the model sees the observation, not the encoder's features."""

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        config: MBPOConfig | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
    ) -> None:
        config = config or MBPOConfig()
        super().__init__(
            observation_dim=observation_dim,
            action_dim=action_dim,
            config=config,
            seed=seed,
            encoder=encoder,
        )
        self._mbpo = config
        model_seed = derive_substream("learn.mbpo.model", root_seed=seed).integer_seed()
        rollout_seed = derive_substream("learn.mbpo.rollout", root_seed=seed).integer_seed()
        self._rng = torch.Generator().manual_seed(rollout_seed)
        self.model: DynamicModel = DynamicModel(
            model=EnsembleOfGaussian(
                in_size=observation_dim + action_dim,
                out_size=observation_dim + 1,
                device="cpu",
                num_layers=config.model_layers,
                ensemble_size=config.ensemble_size,
                hidden_size=config.model_hidden,
                propagation="random",
                num_elites=config.num_elites,
                seed=model_seed,
            ),
            termination_model=TerminationModel(
                in_size=2 * observation_dim + action_dim, device="cpu", seed=model_seed
            ),
        )
        self._model_loss = ModelLoss(
            model=self.model,
            opt=torch.optim.Adam(self.model.parameters(), lr=config.model_learning_rate),
            hold_out=HoldOut(rest=config.model_updates, seed=model_seed),
        )
        self._model_trainer = Trainer([self._model_loss], [])
        self._imagined = ImaginedTransitions(config.imagined_size, observation_dim, action_dim)
        self._updates = 0

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update, see `learn_from`."""
        return self.learn_from(memory.sample(self.config.batch_size), memory)

    def learn_from(self, batch: Mapping[str, Any], memory: TransitionMemory) -> dict[str, float]:
        """Update the model, imagine from ``memory`` when due, then update SAC on the mixture.

        Before its first ``model_updates`` updates the model is not used.
        """
        self._model_trainer.train_on({"default": batch, "batch_size": self.config.batch_size})
        self._updates += 1
        ready = self._updates >= self._mbpo.model_updates
        if ready and self._updates % self._mbpo.rollout_every == 0:
            self._imagine(memory)
        figures = self.train_on(self._mixed(batch))
        for key, value in self._model_loss.scalar_logs.items():
            if key in ("loss/dynamic_model_loss", "loss/dynamic_model_holdout_error"):
                figures[key.removeprefix("loss/")] = float(value)
        return figures | {"n_imagined": float(len(self._imagined))}

    def state_dict(self) -> dict[str, Any]:
        """Return SAC, model, imagined transitions and random streams."""
        return {
            **super().state_dict(),
            "model": self._model_loss.state_dict(),
            "model_step": self._model_trainer.state.get("bp_step", 0),
            "model_samples": self._model_trainer.state.get("bp_samples", 0),
            "imagined": self._imagined.state_dict(),
            "imagination": self._rng.get_state(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        with complete_state("mbpo", "a learner of these sizes"):
            self._model_loss.load_state_dict(dict(state["model"]))
            set_rate(self._model_loss.optimizer, self._mbpo.model_learning_rate)
            self._model_trainer.state["bp_step"] = int(state["model_step"])
            self._model_trainer.state["bp_samples"] = int(state["model_samples"])
            self._imagined.load_state_dict(state["imagined"])
            self._rng.set_state(state["imagination"])
            self._updates = int(state["updates"])

    @torch.no_grad()
    def _imagine(self, memory: TransitionMemory) -> None:
        """Continue real states under the current policy and keep the transitions."""
        start = memory.sample(self._mbpo.rollout_states)
        states: Tensor = start["observation"][OBSERVATION_KEY]
        for _ in range(self._mbpo.rollout_length):
            actions: Tensor = self._policy(obs=states)[0]
            outcome = self.model.sample(actions, states, self._rng)
            following, rewards = cast("tuple[Tensor, Tensor]", outcome)  # rewards are learned
            chance = self.model.termination_probability(actions, states, following)
            drawn = torch.rand(chance.shape, generator=self._rng)
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
        return {
            "observation": {
                OBSERVATION_KEY: torch.cat((real["observation"][OBSERVATION_KEY][:keep], states))
            },
            "next_observation": {
                OBSERVATION_KEY: torch.cat(
                    (real["next_observation"][OBSERVATION_KEY][:keep], following)
                )
            },
            "actions": torch.cat((real["actions"][:keep], actions)),
            "rewards": torch.cat((real["rewards"][:keep], rewards)),
            "masks": torch.cat((real["masks"][:keep], masks)),
        }


class ImaginedTransitions:
    """The newest M imagined transitions, one row each: state, action, reward, next state, mask."""

    def __init__(self, capacity: int, observation_dim: int, action_dim: int) -> None:
        self._widths = [observation_dim, action_dim, 1, observation_dim, 1]
        self._rows = torch.zeros((capacity, sum(self._widths)))
        self._written = 0

    def __len__(self) -> int:
        """Return how many transitions are kept."""
        return min(self._written, len(self._rows))

    def add(self, *columns: Tensor) -> None:
        """Keep transitions, (B, width) per column; the oldest go."""
        rows = torch.cat(columns, dim=1)
        places = (self._written + torch.arange(len(rows))) % len(self._rows)
        self._rows[places] = rows
        self._written += len(rows)

    def sample(self, count: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        """Return ``count`` transitions drawn uniformly with replacement, column by column."""
        drawn = torch.randint(len(self), (count,), generator=rng)
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
