"""Ensemble of Gaussian networks: each member predicts a mean and a variance per output column.

Loss:     sum_e [ mean_{b,d} 1/2 (ln v + (y - m)^2 / v) ] + 0.01 (sum_d max_d - sum_d min_d),
          v = exp(logvar), logvar soft-clamped to [min_d, max_d].
Source:   PETS, arXiv:1805.12114, section 4 and appendix A.1; MBPO, arXiv:1906.08253 (elites).
Axes:     E = members, B = rows, I = inputs, O = outputs, H = hidden units.

A choice that must stay with a transition, which comes again and again in other batches (is it held
out? how often does it occur in the resampled data set of member e?), is drawn from a hash of its
content: equal rows get equal draws in every batch and after every resume, with nothing to store.

Hash:     h(row) = mix(sum_j bits(row_j) * c_j mod 2^64); ``mix`` and the odd constants ``c_j`` are
          SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, fig. 16).
"""

import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.core.arrays import require_shape
from cadenza.core.checks import require_counts
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.core.files import atomic_write_bytes
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.nn.initialization import truncated_normal_

#: Larger archives are refused; a hundred times the largest dynamics model in use.
MAX_MODEL_BYTES: Final = 2**30
#: Name of the file where a folder is given.
FILE_NAME: Final = "model.pt"


def save_module(path: str | Path, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Write state dicts by name to the file ``path``, or to ``model.pt`` in the folder ``path``."""
    atomic_write_bytes(_file_of(path), serialise(states))


def load_module(
    path: str | Path, modules: Mapping[str, nn.Module], *, optional: tuple[str, ...] = ()
) -> list[str]:
    """Load the state dicts of the file into ``modules``; after an error some may be loaded.

    Return the names that were loaded; modules of ``optional`` names that the file lacks stay as
    they are.

    Raises:
        CheckpointError: The file is missing, damaged, or of another model.
    """
    try:
        data = _file_of(path).read_bytes()
    except OSError as error:
        told = f"{path}: expected a saved model, got '{error.strerror}'; check the path."
        raise CheckpointError(told) from error
    states = deserialise(data, max_bytes=MAX_MODEL_BYTES)
    is_complete = not set(modules) - set(states) - set(optional)
    if not is_complete or not all(isinstance(each, Mapping) for each in states.values()):
        expected, got = f"state dicts of {sorted(modules)}", sorted(map(str, states))
        refuse(CheckpointError, str(path), expected=expected, got=f"the entries {got}")
    found = {name: module for name, module in modules.items() if name in states}
    try:
        for name, module in found.items():
            module.load_state_dict(states[name])
    except (RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: expected the parameters of this {type(next(iter(found.values()))).__name__}, "
            f"got others ({error}); build the model with the sizes it was saved with."
        ) from error
    return list(found)


def _file_of(path: str | Path) -> Path:
    """Return the file that ``path`` stands for."""
    return Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)


_WORD: Final = 1 << 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
#: The upper 53 bits of a word make a float64 in [0, 1).
_MANTISSA_BITS: Final = 53
#: Poisson(1) exceeds this with probability 1e-7.
_LARGEST_WEIGHT: Final = 9


def row_keys(*columns: Tensor) -> Tensor:
    """Return one 64-bit key per row, (B,) int64, equal for equal rows.

    The columns, (B, ...) each, are read as float32; together they are the row.
    """
    if not columns or any(c.ndim < 1 or c.shape[0] != columns[0].shape[0] for c in columns):
        got = f"shapes {[tuple(c.shape) for c in columns]}"
        refuse(InputError, "row_keys", expected="arrays with one number of rows", got=got)
    count = columns[0].shape[0]
    row = torch.cat([c.detach().to(torch.float32).reshape(count, -1) for c in columns], dim=1)
    bits = (row + 0.0).contiguous().view(torch.int32).to(torch.int64)  # + 0.0: -0 equals 0
    constants = torch.tensor(_odd_constants(row.shape[1])).to(row.device, non_blocking=True)
    return _mix((bits * constants).sum(dim=1))


def uniform_draws(keys: Tensor, *, stream: int) -> Tensor:
    """Return a number in [0, 1) per key of `row_keys`, (B,) float64, independent between streams.

    ``stream``, any integer, says which draw of the row.
    """
    word = _mix(keys + _signed(_splitmix(stream)))
    return _shift_right(word, 64 - _MANTISSA_BITS).to(torch.float64) / (1 << _MANTISSA_BITS)


def holdout_mask(keys: Tensor, *, fraction: float, seed: int) -> Tensor:
    """Return which rows are held out of training, shape (B,), bool."""
    return uniform_draws(keys, stream=_stream(seed, 0)) < fraction


def bootstrap_weights(keys: Tensor, *, members: int, seed: int) -> Tensor:
    """Return how often each row occurs in each member's resampled data set, (E, B) float32.

    A row occurs Binomial(n, 1/n) times in a bootstrap sample of n rows: Poisson(1) for large n.

    Source: online bagging, Oza and Russell, AISTATS 2001.
    """
    thresholds = torch.tensor(_poisson_thresholds(), dtype=torch.float64)
    thresholds = thresholds.to(keys.device, non_blocking=True)
    draws = torch.stack(
        [uniform_draws(keys, stream=_stream(seed, 1 + member)) for member in range(members)]
    )
    return torch.bucketize(draws, thresholds, right=True).to(torch.float32)


@cache
def _poisson_thresholds() -> tuple[float, ...]:
    """Return P(N <= k) for k = 0, 1, ... and N ~ Poisson(1)."""
    terms = [math.exp(-1.0) / math.factorial(k) for k in range(_LARGEST_WEIGHT)]
    return tuple(math.fsum(terms[: k + 1]) for k in range(_LARGEST_WEIGHT))


@cache
def _odd_constants(count: int) -> tuple[int, ...]:
    """Return one odd multiplier per column, as signed 64-bit integers."""
    return tuple(_signed(_splitmix(index) | 1) for index in range(count))


def _stream(seed: int, index: int) -> int:
    """Return the stream number of draw ``index`` under ``seed``."""
    return (seed << 16) + index


def _splitmix(index: int) -> int:
    """Return output ``index`` of SplitMix64 seeded with 0, in [0, 2^64)."""
    z = ((index + 1) * _GOLDEN) % _WORD
    z = ((z ^ (z >> 30)) * _MIX_1) % _WORD
    z = ((z ^ (z >> 27)) * _MIX_2) % _WORD
    return z ^ (z >> 31)


def _signed(word: int) -> int:
    """Return the 64-bit ``word`` as torch's int64 reads it."""
    return word - _WORD if word >= _WORD // 2 else word


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift int64 words right with zeros coming in; torch repeats the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mix(words: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of ``words``, modulo 2^64."""
    words = words + _signed(_GOLDEN)
    words = (words ^ _shift_right(words, 30)) * _signed(_MIX_1)
    words = (words ^ _shift_right(words, 27)) * _signed(_MIX_2)
    return words ^ _shift_right(words, 31)


Propagation = Literal["average", "random"]

#: Initial bounds of the log-variance, and the weight that pulls learned bounds together; arXiv:
#: 1805.12114, appendix A.1, with the numbers of the engine this package follows.
MAX_LOGVAR: Final = 0.5
MIN_LOGVAR: Final = -10.0
BOUNDS_WEIGHT: Final = 0.01
#: Smallest variance in the loss.
VARIANCE_FLOOR: Final = 1e-6


def truncated_normal_init(m: nn.Module, *, generator: torch.Generator | None = None) -> None:
    """Draw the weights of a linear layer from N(0, s^2) cut at 2 s, s = 1 / (2 sqrt(I)); biases 0.

    Other modules are left alone, so it can be given to `torch.nn.Module.apply`.
    """
    if not isinstance(m, nn.Linear | EnsembleLinearLayer):
        return
    inputs = m.in_features if isinstance(m, nn.Linear) else m.in_size
    spread = 1.0 / (2.0 * math.sqrt(inputs))
    truncated_normal_(m.weight, std=spread, generator=generator)
    if "bias" in dict(m.named_parameters()):
        nn.init.zeros_(m.bias)


class EnsembleLinearLayer(nn.Module):
    """One linear layer per member, applied together: y_e = x_e W_e + b_e."""

    def __init__(
        self,
        num_members: int,
        in_size: int,
        out_size: int,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = {"num_members": num_members, "in_size": in_size, "out_size": out_size}
        require_counts("EnsembleLinearLayer", **sizes)
        self.num_members = num_members
        self.in_size = in_size
        self.out_size = out_size
        self.weight: nn.Parameter = nn.Parameter(torch.zeros(num_members, in_size, out_size))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(num_members, 1, out_size))
        truncated_normal_init(self, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return (E, B, O) of x (E, B, I) or, the same rows for every member, (1, B, I)."""
        rows = x.expand(self.num_members, -1, -1)
        return torch.baddbmm(self.bias, rows, self.weight)


def gaussian_nll(mean: Tensor, logvar: Tensor, target: Tensor) -> Tensor:
    """Return 1/2 (ln v + (y - m)^2 / v) without its constant, v floored at 1e-6, of any shape."""
    logvar = logvar.clamp(min=math.log(VARIANCE_FLOOR))
    return 0.5 * (logvar + (target - mean).square() * torch.exp(-logvar))


def soft_clamp(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return ``value`` pulled into (low, high) without a kink: PETS, appendix A.1."""
    value = high - functional.softplus(high - value)
    return low + functional.softplus(value - low)


class EnsembleOfGaussian(nn.Module):
    """Members that share inputs and learn from (resampled) equal data.

    Args:
        learn_logvar_bounds: Train the bounds of the log-variance.
        deterministic: `sample` returns means.
        propagation: ``"average"`` samples from the Gaussian with the members' mean mean and mean
            log-variance; ``"random"`` sends each row through one member drawn uniformly (TS-1 of
            PETS), so that the members' disagreement reaches the sample.
        num_elites: Only as many members predict: the best of `set_elites`, before it the first.
            None uses all.
        bootstrap: Each member learns from its own resampled data set.
        seed: Fixes the initial weights and the resampling.

    Raises:
        InputError: A size is below one, more elites than members, or an unknown propagation.
    """

    elites: Tensor

    def __init__(
        self,
        *,
        in_size: int,
        out_size: int,
        device: torch.device | str,
        num_layers: int = 4,
        ensemble_size: int = 1,
        hidden_size: int = 256,
        learn_logvar_bounds: bool = False,
        deterministic: bool = False,
        propagation: Propagation = "average",
        num_elites: int | None = None,
        bootstrap: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        elites = ensemble_size if num_elites is None else num_elites
        require_counts(
            "EnsembleOfGaussian", num_layers=num_layers, num_members=ensemble_size, elites=elites
        )
        if elites > ensemble_size:
            expected = f"num_elites <= {ensemble_size} (ensemble_size)"
            refuse(InputError, "EnsembleOfGaussian", expected=expected, got=elites)
        if propagation not in get_args(Propagation):
            expected, got = "propagation 'average' or 'random'", repr(propagation)
            refuse(InputError, "EnsembleOfGaussian", expected=expected, got=got)
        self.in_size = in_size
        self.out_size = out_size
        self.device: torch.device = torch.device(device)
        self.ensemble_size = ensemble_size
        self.deterministic = deterministic
        self.propagation: Propagation = propagation
        self.bootstrap = bootstrap
        self._seed = seed
        generator = torch.Generator().manual_seed(seed)
        sizes = [in_size] + [hidden_size] * num_layers
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [EnsembleLinearLayer(ensemble_size, inputs, outputs, generator=generator)]
            layers += [nn.ReLU()]
        self.hidden_layers: nn.Sequential = nn.Sequential(*layers)
        self.mean_and_logvar: EnsembleLinearLayer = EnsembleLinearLayer(
            ensemble_size, hidden_size, 2 * out_size, generator=generator
        )
        bounds = torch.ones(1, out_size)
        self.max_logvar: nn.Parameter = nn.Parameter(
            MAX_LOGVAR * bounds, requires_grad=learn_logvar_bounds
        )
        self.min_logvar: nn.Parameter = nn.Parameter(
            MIN_LOGVAR * bounds, requires_grad=learn_logvar_bounds
        )
        self.register_buffer("elites", torch.arange(elites))
        self.to(self.device)

    def default_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return every member's mean and log-variance, each (E, B, O).

        ``x`` is (B, I), or (E, B, I) with other rows for each member.
        """
        rows = x if x.ndim == 3 else x.unsqueeze(0)
        mean, logvar = self.mean_and_logvar(self.hidden_layers(rows)).chunk(2, dim=-1)
        return mean, soft_clamp(logvar, self.min_logvar, self.max_logvar)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the elites' mean mean and mean log-variance, each (B, O), for (B, I)."""
        self._require_rows("forward", x)
        mean, logvar = self.default_forward(x)
        return mean[self.elites].mean(dim=0), logvar[self.elites].mean(dim=0)

    def loss(
        self, model_in: Tensor, target: Tensor, row_keys_in: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the negative log-likelihood of the module's header, and an empty dict.

        With bootstrap, keys of the rows before normalisation, (B,) int64, say which are the same
        transition; None hashes ``model_in``.
        """
        self._require_rows("loss", model_in)
        shape = (len(model_in), self.out_size)
        require_shape("EnsembleOfGaussian.loss: target", target, shape)
        mean, logvar = self.default_forward(model_in)
        per_row = gaussian_nll(mean, logvar, target.unsqueeze(0)).mean(dim=2)  # (E, B)
        if self.bootstrap:
            keys = row_keys(model_in) if row_keys_in is None else row_keys_in
            weights = bootstrap_weights(keys, members=self.ensemble_size, seed=self._seed)
            weights = weights.to(per_row)
            per_member = (weights * per_row).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        else:
            per_member = per_row.mean(dim=1)
        bounds = BOUNDS_WEIGHT * (self.max_logvar.sum() - self.min_logvar.sum())
        return per_member.sum() + bounds, {}

    def sample(
        self,
        model_input: Tensor,
        rng: torch.Generator,
        members: Tensor | None = None,
    ) -> Tensor:
        """Return one prediction per row, shape (B, O).

        ``rng`` draws the members (``propagation="random"``) and the noise, where it is;
        ``members``, (B,) int64, are those of the rows instead.
        """
        self._require_rows("sample", model_input)
        if members is None and self.propagation == "random":
            members = self.draw_members(model_input.shape[0], rng)
        if members is None:
            mean, logvar = self.forward(model_input)
        else:
            mean, logvar = self._rows_by_member(model_input, members)
        if self.deterministic:
            return mean
        noise = torch.randn(mean.shape, generator=rng, device=rng.device, dtype=mean.dtype)
        return mean + torch.exp(0.5 * logvar) * noise.to(mean.device)

    def draw_members(self, count: int, rng: torch.Generator) -> Tensor:
        """Return ``count`` elite members drawn uniformly, int64, shape (count,)."""
        choices = self.elites.numel()
        places = torch.randint(choices, (count,), generator=rng, device=rng.device)
        return self.elites[places.to(self.elites.device)]

    def member_errors(self, model_in: Tensor, target: Tensor) -> Tensor:
        """Return each member's mean squared error of the mean, (E,), without gradient, B >= 1."""
        with torch.no_grad():
            mean, _ = self.default_forward(model_in)
            return (mean - target.unsqueeze(0)).square().mean(dim=(1, 2))

    def set_elites(self, errors: Tensor) -> None:
        """Let the members with the smallest ``errors`` (E,) predict; ties go to the lower index."""
        require_shape("EnsembleOfGaussian.set_elites: errors", errors, (self.ensemble_size,))
        order = torch.argsort(errors, stable=True)[: self.elites.numel()]
        self.elites = torch.sort(order).values.to(self.elites)

    def member_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that belong to single members, shape (E, ...), by name."""
        shared = ("max_logvar", "min_logvar")
        return {name: p for name, p in self.named_parameters() if name not in shared}

    def save(self, save_dir: str | Path) -> None:
        """Write the parameters as ``{"state_dict": ...}``.

        Raises:
            StorageError: The file system refused.
        """
        save_module(save_dir, {"state_dict": self.state_dict()})

    def load(self, load_dir: str | Path) -> None:
        """Read the parameters that `save` wrote to ``load_dir``.

        Raises:
            CheckpointError: No file that `save` wrote, or one of another ensemble.
        """
        load_module(load_dir, {"state_dict": self})

    def _rows_by_member(self, x: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of row b under member ``members[b]``, each (B, O)."""
        order = torch.argsort(members, stable=True)
        counts = torch.bincount(members, minlength=self.ensemble_size)
        firsts = torch.cumsum(counts, dim=0) - counts
        sorted_members = members[order]
        places = torch.arange(members.numel(), device=x.device) - firsts[sorted_members]
        grouped = x.new_zeros(self.ensemble_size, int(counts.max()), self.in_size)
        grouped[sorted_members, places] = x[order]
        mean, logvar = self.default_forward(grouped)
        back = torch.argsort(order)
        rows = (sorted_members[back], places[back])
        return mean[rows], logvar[rows]

    def _require_rows(self, method: str, x: Tensor) -> None:
        """Raise unless ``x`` is (B, I)."""
        require_shape(f"EnsembleOfGaussian.{method}", x, ("rows", self.in_size))
