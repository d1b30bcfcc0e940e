"""Dynamics model: what happens to an observation after an action, what it pays, and what ends.

Inputs:       [obs | action], each column normalised.
Targets:      [next_obs - obs | reward], normalised; columns in ``no_delta_list`` are ``next_obs``.
Network:      an ensemble, or `DeterministicModel` with the loss mean_{b,d} (f(x_b)_d - y_bd)^2.
Normaliser:   n = n_a + n_b,  d = m_b - m_a,  m = m_a + d n_b / n,
              S = S_a + S_b + d^2 n_a n_b / n,  sigma = max(sqrt(S / n), eps);
              every row weighs the same however long ago it came.
Termination:  the probability that a transition ends its episode, from
              x = [normalised observation and action | normalised change of the observation], with
              the loss mean_b BCE(logit(x_b), terminated_b), so calibrated on the data.
Sources:      PETS, arXiv:1805.12114; MBPO, arXiv:1906.08253; Chan, Golub, LeVeque, "Updating
              formulae and a pairwise algorithm for computing sample variances", 1979, eq. (1.4).
Axes:         B = rows, D = observation columns, A = action columns, I = inputs, O = outputs,
              H = hidden units.
Limits:       batch norm needs two rows or more while training.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.core.arrays import require_shape
from cadenza.core.checks import require_counts
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.learn.models.ensemble import EnsembleOfGaussian, load_module, row_keys, save_module
from cadenza.learn.nn.initialization import default_linear, normal_init_
from cadenza.learn.proxies import in_mode

#: Columns that (nearly) never change are divided by this instead of their spread, in data units.
DEFAULT_EPS: Final = 1e-5


class Normalizer(nn.Module):
    """Maps columns to mean 0 and spread 1; the identity until the first `update_stats`.

    The statistics are buffers: they move, save and load with the module that holds this one, also
    into a fresh object. ``eps`` is the smallest spread, in data units.
    """

    mean: Tensor
    squared_deviation: Tensor
    count: Tensor

    def __init__(self, *, eps: float = DEFAULT_EPS) -> None:
        super().__init__()
        if not eps > 0.0:
            refuse(InputError, "Normalizer", expected="eps > 0", got=eps)
        self.eps = eps
        self.register_buffer("mean", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("squared_deviation", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @property
    def std(self) -> Tensor:
        """Population spread of each column, at least ``eps``, shape (D,); (0,) before data."""
        rows = self.count.clamp(min=1)
        return (self.squared_deviation / rows).sqrt().clamp(min=self.eps)

    def update_stats(self, data: Tensor) -> None:
        """Merge the finite rows of ``data``, (B, D), B >= 1, into the statistics."""
        require_shape("Normalizer.update_stats", data, ("rows", "columns"), "flatten each row")
        require_counts("Normalizer.update_stats", rows=len(data))
        is_apple = data.device.type == "mps"  # without float64
        rows = data.detach().to(torch.float32 if is_apple else torch.float64)
        batch_mean = rows.mean(dim=0)
        batch_deviation = (rows - batch_mean).square().sum(dim=0)
        # On another device looking means waiting: there the loss tells.
        if data.is_cpu and not bool(torch.isfinite(batch_deviation).all()):
            column = int(torch.nonzero(~torch.isfinite(batch_deviation))[0])
            got = f"a column ({column}) that holds NaN or infinity"
            refuse(InputError, "Normalizer.update_stats", expected="finite data", got=got)
        if not self._has_data:
            self.mean = torch.zeros_like(batch_mean)
            self.squared_deviation = torch.zeros_like(batch_mean)
        self._require_columns("update_stats", data)
        self._merge(batch_mean, batch_deviation, rows.shape[0])

    def normalize(self, val: Tensor, update_state: bool = False) -> Tensor:
        """Return ``(val - mean) / std``, in the type of ``val``, (..., D).

        ``update_state`` merges ``val``, (B, D), into the statistics first.
        """
        if update_state:
            self.update_stats(val)
        if not self._has_data:
            return val
        self._require_columns("normalize", val)
        return (val - self.mean.to(val)) / self.std.to(val)

    def denormalize(self, val: Tensor) -> Tensor:
        """Return ``val * std + mean``, shape (..., D), in the type of ``val``."""
        if not self._has_data:
            return val
        self._require_columns("denormalize", val)
        return val * self.std.to(val) + self.mean.to(val)

    @property
    def _has_data(self) -> bool:
        """Whether statistics exist; read from a shape, so it never waits for the device."""
        return self.mean.numel() > 0

    def _merge(self, batch_mean: Tensor, batch_deviation: Tensor, rows: int) -> None:
        """Apply the equations of the module's header."""
        total = self.count + rows
        share = rows / total.to(self.mean.dtype)  # n_b / n
        difference = batch_mean - self.mean
        self.mean = self.mean + difference * share
        cross = difference.square() * (self.count * share)
        self.squared_deviation = self.squared_deviation + batch_deviation + cross
        self.count = total

    def _require_columns(self, method: str, val: Tensor) -> None:
        """Raise unless the last axis fits the statistics."""
        if val.shape[-1:] != self.mean.shape:
            expected = f"{self.mean.numel()} columns as in earlier data"
            got = f"shape {tuple(val.shape)}"
            refuse(InputError, f"Normalizer.{method}", expected=expected, got=got)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride] -- by place
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        """Take the number of columns from the state, then load as usual."""
        keys = [f"{prefix}{name}" for name in ("mean", "squared_deviation")]
        sizes = [tuple(state_dict[key].shape) for key in keys if key in state_dict]
        if any(len(size) != 1 or size != sizes[0] for size in sizes):
            expected = "two vectors of one size"
            refuse(CheckpointError, ", ".join(keys), expected=expected, got=f"shapes {sizes}")
        for size in sizes[:1]:
            self.mean = self.mean.new_zeros(size)
            self.squared_deviation = self.squared_deviation.new_zeros(size)
        super()._load_from_state_dict(state_dict, prefix, *rest)  # pyright: ignore[reportUnknownMemberType] -- untyped in torch


class DeterministicModel(nn.Module):
    """Linear, batch norm, ReLU, repeated; then linear. Weights start at N(0, 0.001^2).

    ``seed`` fixes the initial weights.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        device: torch.device | str,
        hidden_size: int = 256,
        num_hidden_layers: int = 4,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_counts(
            "DeterministicModel",
            in_size=in_size,
            out_size=out_size,
            hidden_size=hidden_size,
            num_hidden_layers=num_hidden_layers,
        )
        self.device: torch.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([in_size] + [hidden_size] * num_hidden_layers):
            layers += [default_linear(inputs, outputs, generator)]
            layers += [nn.BatchNorm1d(outputs), nn.ReLU()]
        layers.append(default_linear(hidden_size, out_size, generator))
        self.model: nn.Sequential = nn.Sequential(*layers)
        for layer in layers:
            normal_init_(layer, generator=generator)
        self.to(self.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions, shape (B, O), for ``x``, shape (B, I)."""
        return self.model(x)

    def loss(self, model_in: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the mean squared error, a scalar, and an empty dict."""
        prediction = self(model_in)
        require_shape("DeterministicModel.loss: target", target, tuple(prediction.shape))
        return functional.mse_loss(prediction, target), {}

    def sample(self, model_input: Tensor, rng: torch.Generator) -> Tensor:
        """Return the prediction, (B, O), with batch norm frozen; nothing is drawn from ``rng``."""
        del rng
        with in_mode(self, training=False):
            return self(model_input)


#: Ends are decided by a few inequalities; a small network is enough.
DEFAULT_HIDDEN_SIZE: Final = 64
DEFAULT_HIDDEN_LAYERS: Final = 2


class TerminationModel(nn.Module):
    """A small classifier of final transitions.

    Its inputs are 2 observations wide, as the dynamics model sees them, and an action.
    """

    def __init__(
        self,
        *,
        in_size: int,
        device: torch.device | str,
        hidden_size: int = DEFAULT_HIDDEN_SIZE,
        num_hidden_layers: int = DEFAULT_HIDDEN_LAYERS,
        seed: int = 0,
    ) -> None:
        super().__init__()
        layers_asked = {"hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers}
        require_counts("TerminationModel", in_size=in_size, **layers_asked)
        self.in_size = in_size
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([in_size] + [hidden_size] * num_hidden_layers):
            layers += [default_linear(inputs, outputs, generator), nn.ReLU()]
        layers.append(default_linear(hidden_size, 1, generator))
        self.net: nn.Sequential = nn.Sequential(*layers).to(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (B, 1), of x, (B, I)."""
        advice = "in_size is 2 * observation size + action size"
        require_shape("TerminationModel", x, ("rows", self.in_size), advice)
        return self.net(x)

    def loss(self, x: Tensor, terminated: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats.

        ``terminated``, (B,) or (B, 1), is 1 where the transition ended its episode, else 0.
        """
        logits = self(x)
        labels = terminated.reshape(logits.shape).to(logits)
        return functional.binary_cross_entropy_with_logits(logits, labels)


_logger = logging.getLogger(__name__)


class DynamicModel(nn.Module):
    """Wraps a network so that it learns changes of observations, in normalised units.

    The normalisers are submodules: they are part of ``state_dict`` and of saved files.

    Args:
        model: The network: an ensemble, or any module with ``device``, ``loss`` and ``sample`` as
            `DeterministicModel` has them.
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
        self.no_delta_list: list[int] = list(no_delta_list or ())
        self.termination_model = termination_model
        self.input_normalizer: Normalizer = Normalizer()
        self.target_normalizer: Normalizer = Normalizer()
        self.device: torch.device = torch.device(self._network.device)

    @property
    def _network(self) -> Any:
        """The wrapped module, whose further methods its type does not show."""
        return self.model

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

        Arrays are (B, D), (B, A) and (B, 1) or (B,); ``terminated``, 1 where the transition ended
        its episode, is needed with a termination model.
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
            expected = "terminated flags for the termination model"
            advice = "give 1 - masks of a batch from a table with a terminal column"
            refuse(InputError, "DynamicModel.loss", expected=expected, got="None", do=advice)
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

        Batch norm and dropout are frozen meanwhile. ``members``, (B,) int64, are the rows' ensemble
        members; None lets the model choose.
        """
        model_in = self.input_normalizer.normalize(self.get_model_input(observation, action))
        with in_mode(self, training=False):
            if members is None:
                prediction = self._network.sample(model_in, rng)
            else:
                prediction = self.ensemble.sample(model_in, rng, members)
        advice = "an ensemble must reduce its members to one prediction per row"
        require_shape("DynamicModel.sample: prediction", prediction, ("rows", "columns"), advice)
        outcome = self.target_normalizer.denormalize(prediction)
        columns = observation.shape[1]
        next_obs = outcome[:, :columns] + observation
        if self.no_delta_list:
            next_obs[:, self.no_delta_list] = outcome[:, self.no_delta_list]
        return next_obs, outcome[:, -1:] if self.learned_rewards else None

    def termination_probability(
        self, action: Tensor, observation: Tensor, next_obs: Tensor
    ) -> Tensor:
        """Return the probability that a transition ends its episode, shape (B,)."""
        if self.termination_model is None:
            refuse(InputError, "DynamicModel", expected="a termination model", got="None")
        model_in = self.input_normalizer.normalize(self.get_model_input(observation, action))
        change = self._change_of(observation, next_obs)
        no_reward = change.new_zeros(len(change), int(self.learned_rewards))
        target = torch.cat([change, no_reward], dim=1)
        scaled = self.target_normalizer.normalize(target)[:, : change.shape[1]]
        with in_mode(self.termination_model, training=False):
            logits = self.termination_model(torch.cat([model_in, scaled], dim=1))
        return torch.sigmoid(logits).squeeze(1)

    def get_model_input(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return [processed obs | action], shape (B, D + A), not normalised."""
        processed = obs if self.obs_process_fn is None else self.obs_process_fn(obs)
        require_shape("DynamicModel: observations", processed, ("rows", "columns"))
        require_shape("DynamicModel: actions", action, (len(processed), "columns"))
        return torch.cat([processed, action], dim=1)

    def process_batch(
        self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return normalised inputs (B, D + A) and targets (B, O), after updating the statistics.

        Observations are (B, D), actions (B, A) and rewards (B, 1) or (B,).
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
        """
        model_in, target = self._rows(obs, next_obs, action, reward)
        with in_mode(self, training=False):
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
            advice = "elites, hold-out validation and fixed members need one"
            got = type(model).__name__
            refuse(InputError, "DynamicModel", expected="an EnsembleOfGaussian", got=got, do=advice)
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
        found = load_module(load_dir, parts, optional=tuple(parts.keys() - {"state_dict"}))
        if absent := ", ".join(sorted(set(parts) - set(found))):
            told = "%s: holds no %s; they stay as they are, so predictions may be scaled wrongly"
            _logger.warning(told, load_dir, absent)

    def _parts(self) -> dict[str, nn.Module]:
        """Return what a file holds: the network and everything that was learned beside it."""
        others = {name: part for name, part in self.named_children() if name != "model"}
        return {"state_dict": self.model, **others}

    def _rows(
        self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets in data units."""
        model_in = self.get_model_input(obs, action)
        advice = "sample rollouts of one step"
        require_shape("DynamicModel: next_obs", next_obs, tuple(obs.shape), advice)
        target = self._change_of(obs, next_obs)
        if self.learned_rewards:
            require_shape("DynamicModel: reward", reward.reshape(-1), (len(obs),))
            target = torch.cat([target, reward.reshape(-1, 1).to(target)], dim=1)
        return model_in, target

    def _change_of(self, obs: Tensor, next_obs: Tensor) -> Tensor:
        """Return the observation part of the target, (B, D)."""
        change = next_obs - obs
        if self.no_delta_list:
            change[:, self.no_delta_list] = next_obs[:, self.no_delta_list]
        return change
