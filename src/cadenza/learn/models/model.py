"""Dynamics model: what happens to an observation after an action, and what it pays.

Inputs:   [obs | action], each column normalised.
Targets:  [next_obs - obs | reward], normalised; columns in ``no_delta_list`` are ``next_obs``.
Source:   PETS, arXiv:1805.12114; MBPO, arXiv:1906.08253.
Axes:     B = rows, D = observation columns, A = action columns.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.models.deterministic import DeterministicModel
from cadenza.learn.models.ensemble import EnsembleOfGaussian
from cadenza.learn.models.evaluation_mode import evaluation_mode
from cadenza.learn.models.model_files import load_module, save_module
from cadenza.learn.models.normalizer import Normalizer
from cadenza.learn.models.row_split import row_keys
from cadenza.learn.models.termination import TerminationModel

__all__ = ["DeterministicModel", "DynamicModel", "Normalizer", "TransitionNetwork"]

_logger = logging.getLogger(__name__)


class TransitionNetwork(Protocol):
    """What `DynamicModel` asks of the module it wraps; rows are (B, I) in, (B, O) out."""

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        ...

    def loss(self, model_in: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the training loss, a scalar, and numbers about it."""
        ...

    def sample(self, model_input: Tensor, rng: torch.Generator) -> Tensor:
        """Return one prediction per row."""
        ...


class DynamicModel(nn.Module):
    """Wraps a network so that it learns changes of observations, in normalised units.

    The normalisers are submodules: they are part of ``state_dict`` and of saved files.

    Args:
        model: The network: an ensemble, `DeterministicModel`, or any module with the methods of
            `TransitionNetwork`.
        learned_rewards: The last output column is the reward.
        obs_process_fn: Applied to observations before they enter the model; a module is trained
            and saved along.
        no_delta_list: Observation columns whose target is the next value itself, not the change.
        termination_model: Learns which transitions end an episode; None learns no ends.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        learned_rewards: bool = True,
        obs_process_fn: Callable[[Tensor], Tensor] | None = None,
        no_delta_list: Sequence[int] | None = None,
        termination_model: TerminationModel | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.learned_rewards = learned_rewards
        self.obs_process_fn = obs_process_fn
        self.no_delta_list = list(no_delta_list or ())
        self.termination_model = termination_model
        self.input_normalizer = Normalizer()
        self.target_normalizer = Normalizer()
        self.device = self._network.device

    @property
    def _network(self) -> TransitionNetwork:
        """The wrapped module, seen through what is asked of it."""
        return cast("TransitionNetwork", self.model)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the wrapped network's output for the normalised rows ``x``, (B, D + A)."""
        return self.model(x)

    def loss(
        self,
        obs: Tensor,
        next_obs: Tensor,
        action: Tensor,
        reward: Tensor,
        terminated: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the network's loss on a batch, and numbers about it; updates the normalisers.

        Args:
            obs: Shape (B, D).
            next_obs: Shape (B, D).
            action: Shape (B, A).
            reward: Shape (B, 1) or (B,).
            terminated: 1 where the transition ended its episode, (B, 1) or (B,); needed with a
                termination model, otherwise not read.

        Raises:
            InputError: A shape does not fit, or ``terminated`` is needed and absent.
        """
        model_in, target = self.process_batch(obs, next_obs, action, reward)
        model: object = self.model
        if isinstance(model, EnsembleOfGaussian) and model.bootstrap:
            loss, info = model.loss(model_in, target, row_keys(obs, action, next_obs))
        else:
            loss, info = self._network.loss(model_in, target)
        if self.termination_model is None:
            return loss, info
        if terminated is None:
            raise InputError(
                "DynamicModel.loss: expected terminated flags for the termination model, got None; "
                "give 1 - masks of a batch from a table with a terminal column."
            )
        change = target[:, : next_obs.shape[1]]
        end_loss = self.termination_model.loss(torch.cat([model_in, change], dim=1), terminated)
        return loss + end_loss, {**info, "termination_loss": end_loss.detach()}

    def sample(
        self,
        action: Tensor,
        observation: Tensor,
        rng: torch.Generator,
        members: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return simulated next observations (B, D) and rewards (B, 1), or None if not learned.

        Batch norm and dropout are frozen meanwhile.

        Args:
            action: Shape (B, A).
            observation: Shape (B, D).
            rng: Draws the prediction; on the model's device.
            members: Ensemble member of each row, shape (B,), int64; None lets the model choose.

        Raises:
            InputError: The network's prediction is not two-dimensional, or ``members`` is given and
                the network is no ensemble.
        """
        model_in = self.input_normalizer.normalize(self.get_model_input(observation, action))
        with evaluation_mode(self):
            if members is None:
                prediction = self._network.sample(model_in, rng)
            else:
                prediction = self.ensemble.sample(model_in, rng, members)
        if prediction.ndim != 2:
            raise InputError(
                "DynamicModel.sample: expected a prediction of shape (rows, columns), got "
                f"{tuple(prediction.shape)}; an ensemble must reduce its members to one "
                "prediction per row before it returns."
            )
        outcome = self.target_normalizer.denormalize(prediction)
        columns = observation.shape[1]
        next_obs = outcome[:, :columns] + observation
        if self.no_delta_list:
            next_obs[:, self.no_delta_list] = outcome[:, self.no_delta_list]
        return next_obs, outcome[:, -1:] if self.learned_rewards else None

    def termination_probability(
        self, action: Tensor, observation: Tensor, next_obs: Tensor
    ) -> Tensor:
        """Return the probability that a transition ends its episode, shape (B,).

        Args:
            action: Shape (B, A).
            observation: Shape (B, D).
            next_obs: Shape (B, D).

        Raises:
            InputError: There is no termination model.
        """
        if self.termination_model is None:
            raise InputError(
                "DynamicModel.termination_probability: expected a termination model, got None; "
                "pass termination_model to the constructor or use a termination function."
            )
        model_in = self.input_normalizer.normalize(self.get_model_input(observation, action))
        change = self._change_of(observation, next_obs)
        target = torch.cat(
            [change, change.new_zeros(len(change), int(self.learned_rewards))], dim=1
        )
        scaled = self.target_normalizer.normalize(target)[:, : change.shape[1]]
        with evaluation_mode(self.termination_model):
            logits = self.termination_model(torch.cat([model_in, scaled], dim=1))
        return torch.sigmoid(logits).squeeze(1)

    def get_model_input(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return [processed obs | action], shape (B, D + A), not normalised.

        Args:
            obs: Shape (B, D).
            action: Shape (B, A).

        Raises:
            InputError: The numbers of rows differ.
        """
        processed = obs if self.obs_process_fn is None else self.obs_process_fn(obs)
        if processed.ndim != 2 or action.ndim != 2 or len(processed) != len(action):
            raise InputError(
                "DynamicModel.get_model_input: expected observations and actions of shapes "
                f"(rows, columns) with equal rows, got {tuple(processed.shape)} and "
                f"{tuple(action.shape)}."
            )
        return torch.cat([processed, action], dim=1)

    def process_batch(
        self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return normalised inputs (B, D + A) and targets (B, O), after updating the statistics.

        Args:
            obs: Shape (B, D).
            next_obs: Shape (B, D).
            action: Shape (B, A).
            reward: Shape (B, 1) or (B,).

        Raises:
            InputError: A shape does not fit.
        """
        model_in, target = self._rows(obs, next_obs, action, reward)
        return (
            self.input_normalizer.normalize(model_in, True),
            self.target_normalizer.normalize(target, True),
        )

    def member_errors(
        self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor
    ) -> Tensor:
        """Return each ensemble member's mean squared error in normalised units, shape (E,).

        Statistics are left alone; arguments as for `process_batch`.

        Raises:
            InputError: A shape does not fit, or the network is no ensemble.
        """
        model_in, target = self._rows(obs, next_obs, action, reward)
        with evaluation_mode(self):
            return self.ensemble.member_errors(
                self.input_normalizer.normalize(model_in).detach(),
                self.target_normalizer.normalize(target),
            )

    @property
    def ensemble(self) -> EnsembleOfGaussian:
        """The wrapped network, if it is an ensemble.

        Raises:
            InputError: It is not.
        """
        model: object = self.model
        if not isinstance(model, EnsembleOfGaussian):
            raise InputError(
                f"DynamicModel: expected an EnsembleOfGaussian, got {type(self.model).__name__}; "
                "elites, hold-out validation and fixed members need one."
            )
        return model

    def save(self, save_dir: str | Path) -> None:
        """Write the network and the normalisers to ``save_dir``, a file or a folder.

        The entry ``state_dict`` holds the network alone, as `EnsembleOfGaussian.save` writes it.

        Raises:
            StorageError: The file system refused.
        """
        save_module(save_dir, {name: part.state_dict() for name, part in self._parts().items()})

    def load(self, load_dir: str | Path) -> None:
        """Read what `save` wrote; a file that holds a network alone leaves the rest as it is.

        Raises:
            CheckpointError: No such file, or one of another model.
        """
        parts = self._parts()
        rest = tuple(name for name in parts if name != "state_dict")
        found = load_module(load_dir, parts, optional=rest)
        if len(found) < len(parts):
            _logger.warning(
                "%s: holds no %s; they stay as they are, so predictions may be scaled wrongly",
                load_dir,
                ", ".join(sorted(set(parts) - set(found))),
            )

    def _parts(self) -> dict[str, nn.Module]:
        """Return what a file holds: the network and everything that was learned beside it."""
        parts: dict[str, nn.Module] = {
            "state_dict": self.model,
            "input_normalizer": self.input_normalizer,
            "target_normalizer": self.target_normalizer,
        }
        if isinstance(self.obs_process_fn, nn.Module):
            parts["obs_process_fn"] = self.obs_process_fn
        if self.termination_model is not None:
            parts["termination_model"] = self.termination_model
        return parts

    def _rows(
        self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets in data units."""
        model_in = self.get_model_input(obs, action)
        if next_obs.shape != obs.shape:
            raise InputError(
                f"DynamicModel: expected next_obs of shape {tuple(obs.shape)} like obs, got "
                f"{tuple(next_obs.shape)}; sample rollouts of one step."
            )
        target = self._change_of(obs, next_obs)
        if self.learned_rewards:
            if reward.numel() != len(obs):
                raise InputError(
                    f"DynamicModel: expected one reward for each of {len(obs)} rows, got shape "
                    f"{tuple(reward.shape)}."
                )
            target = torch.cat([target, reward.reshape(-1, 1).to(target)], dim=1)
        return model_in, target

    def _change_of(self, obs: Tensor, next_obs: Tensor) -> Tensor:
        """Return the observation part of the target, (B, D)."""
        change = next_obs - obs
        if self.no_delta_list:
            change[:, self.no_delta_list] = next_obs[:, self.no_delta_list]
        return change
