"""Actors that HARL trained, played from its own files; no module of HARL is needed.

Layouts, told by the names in the state dict (f: ``activation_func``, g: ``final_activation_func``):
    on-policy    HAPPO, HATRPO, HAA2C, MAPPO, and HASAC with choices: ``base.*``, ``act.*``;
                 x0 = LayerNorm(s) where ``base.feature_norm`` is there, else s,
                 x_k = LayerNorm(f(W_k x + b_k)), outputs W x + b: means with
                 σ = σ_y sigmoid(log_std / σ_x), or logits of choices
    pi           HADDPG, HATD3, MADDPG, MATD3: ``pi.*``; x_k = f(W_k x + b_k), outputs g(W x + b)
                 in [-1, 1], which its action bounds scale
    net          HASAC: ``net.*``; x_k = f(W_k x + b_k), g for the last one; outputs W x + b, and
                 log σ = clip(W' x + b', -20, 2); tanh of a draw, which its action bounds scale
Source:  HARL, arXiv:2304.09870. What no weight shows is a `HarlSettings`; defaults are HARL's.
Axes:    N = rows, O = state, A = outputs (actions or choices).
Limits:  no recurrence, no images, no multi-discrete actions: such files are refused.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.nn.gaussian_actor import (
    INITIAL_LOG_STD,
    LAYER_NORM_EPSILON,
    MAX_STANDARD_DEVIATION,
    STANDARD_DEVIATION_KEY,
)

_LOGGER = logging.getLogger(__name__)

#: Activations by the names of HARL's configuration.
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "hardswish": functional.hardswish,
    "identity": torch.clone,
    "leaky_relu": functional.leaky_relu,
    "relu": torch.relu,
    "selu": torch.selu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
#: First names of layouts that are not played, and what they are.
_NOT_PLAYED: Final = {
    "rnn.": "a recurrent actor",
    "base.cnn.": "an actor of images",
    "feature_extractor.": "an actor of images",
    "act.action_outs.": "an actor of multi-discrete actions",
    "dueling_v.": "a value network of HAD3QN",
}
#: HARL's bounds of HASAC's log σ.
_LOG_STD_RANGE: Final = (-20.0, 2.0)

Layout = Literal["on-policy", "pi", "net"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarlSettings:
    """Settings of HARL's configuration that its weights do not show; defaults are HARL's.

    Attributes:
        activation_func: Of the hidden layers, a name of `ACTIVATIONS`.
        final_activation_func: Of the last layer of ``pi.*`` and ``net.*``.
        std_x_coef: σ_x, > 0.
        std_y_coef: σ_y, > 0, in units of the action.
        low: Smallest action that ``pi.*`` and ``net.*`` scale to, one number or A; no default.
        high: Largest one.
        squash: ``"tanh"`` if the outputs of an actor that is not HARL's are squashed to them.
    """

    activation_func: str = "relu"
    final_activation_func: str = "tanh"
    std_x_coef: float = INITIAL_LOG_STD
    std_y_coef: float = MAX_STANDARD_DEVIATION
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    squash: str = "none"

    @classmethod
    def read(cls, owner: str, said: Mapping[str, str]) -> "HarlSettings":
        """Return the settings in texts.

        Raises:
            ConfigurationError: A text is malformed.
        """
        read: dict[str, Any] = {}
        for key, text in said.items():
            read[key] = text
            if key in ("activation_func", "final_activation_func", "squash"):
                known = ("none", "tanh") if key == "squash" else tuple(ACTIVATIONS)
                good, wanted = text in known, f"one of {', '.join(known)}"
            elif key in ("low", "high"):
                read[key] = _numbers(text)
                good, wanted = bool(read[key]), "finite numbers with commas between"
            else:
                read[key], good = (*_numbers(text), 0.0)[0], len(_numbers(text)) == 1
                good, wanted = good and read[key] > 0.0, "a number > 0"
            if not good:
                raise ConfigurationError(
                    f"{owner}: option {key!r}: expected {wanted}, got {text!r}."
                )
        return cls(**read)

    def bounds(self, width: int, *, wanted: bool) -> tuple[Tensor, Tensor] | None:
        """Return half the range of ``width`` actions and its middle; None unless ``wanted``.

        Raises:
            ConfigurationError: Bounds are missing, of another number, not ordered or not wanted.
        """
        bounds = (self.low, self.high)
        low, high = (torch.tensor(bound) for bound in bounds)
        good = all(len(bound) in (1, width) if wanted else not bound for bound in bounds)
        if not good or (wanted and not bool((low < high).all())):
            expected = f"1 or {width} numbers each, low < high" if wanted else "none"
            what = "squashed" if wanted else "not squashed"
            raise ConfigurationError(
                f"options 'low' and 'high': expected {expected}, since the actor's actions are "
                f"{what}, got {bounds[0]} and {bounds[1]}; name the bounds of the action space "
                "that it was trained in."
            )
        return ((high - low) / 2, (high + low) / 2) if wanted else None


#: Settings of HARL's own configuration; a checkpoint may hold them beside its actor.
_HARL_NAMES: Final = tuple(f.name for f in fields(HarlSettings) if f.name != "squash")


def harl_settings(
    owner: str, payload: Mapping[str, Any], options: Mapping[str, str], *, is_foreign: bool
) -> HarlSettings:
    """Return what ``options``, or else the checkpoint's ``payload``, say of its actor.

    Activations that nobody names are ReLU for a checkpoint of ego training, which holds a critic,
    and HARL's defaults, with a warning, for a file of another library.

    Raises:
        ConfigurationError: An option is malformed, or differs from what the checkpoint says.
        CheckpointError: Neither option nor checkpoint names the activation.
    """
    said = said_settings(owner, payload, options, _HARL_NAMES)
    if STANDARD_DEVIATION_KEY in payload:
        said.setdefault("std_y_coef", str(payload[STANDARD_DEVIATION_KEY]))
    if "activation_func" not in said and "critic" not in payload:
        if not is_foreign:
            raise CheckpointError(
                f"{owner}: expected the checkpoint or the option 'activation_func' to name the "
                f"activation of its hidden layers ({', '.join(ACTIVATIONS)}), got neither: the "
                "weights do not show it, and another one gives other actions."
            )
        _LOGGER.warning(
            "%s: no weight shows the activations that the actor was trained with; it plays HARL's "
            "defaults, relu and a last tanh. Confirm or correct them by the option "
            "'activation_func' (and 'final_activation_func').",
            owner,
        )
    return HarlSettings.read(owner, said)


def said_settings(
    owner: str, payload: Mapping[str, Any], options: Mapping[str, str], known: Iterable[str]
) -> dict[str, str]:
    """Return the texts of the ``known`` settings in a checkpoint's ``payload`` or in ``options``.

    Raises:
        ConfigurationError: They contradict each other.
    """
    said: dict[str, str] = {}
    for key in known:
        texts = {str(place[key]) for place in (payload, options) if key in place}
        if len(texts) > 1:
            raise ConfigurationError(
                f"{owner}: option {key!r}: expected {payload[key]!r}, as the checkpoint says, got "
                f"{options[key]!r}; remove the option."
            )
        if texts:
            said[key] = texts.pop()
    return said


def _numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of a list in text; nothing if one is none, or not finite."""
    try:
        numbers = tuple(float(part) for part in text.strip("()[] ").split(","))
    except ValueError:
        return ()
    return numbers if all(map(math.isfinite, numbers)) else ()


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """y = LayerNorm(f(x W + b)), without ``norm`` or ``activation`` where None."""

    weight: Tensor  # (inputs, outputs): a view of the file's (outputs, inputs)
    bias: Tensor
    activation: Callable[[Tensor], Tensor] | None = None
    norm: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        x = torch.addmm(self.bias, x, self.weight)
        x = x if self.activation is None else self.activation(x)
        return x if self.norm is None else _normalized(x, self.norm)


class HarlActor:
    """One actor without gradients.

    Attributes:
        layout: See this module's header.
        chooses: Whether outputs are logits of choices.
        tensors: All weights, for digests.
        sizes: O and A.

    Raises:
        CheckpointError: A weight is missing, superfluous or of the wrong shape, or the file holds
            an actor that is not played.
    """

    def __init__(self, state: Mapping[str, Any], settings: HarlSettings) -> None:
        state = {
            name: tensor.detach().float()
            for name, tensor in state.items()
            if isinstance(tensor, Tensor)  # not the settings that may stand beside them
        }
        for prefix, what in _NOT_PLAYED.items():
            if any(name.startswith(prefix) for name in state):
                raise CheckpointError(
                    f"HarlActor: expected an actor of flat states, got {what} ({prefix}*); export "
                    "its policy to ONNX with a state (N, O) and an action (N, A), if it has them."
                )
        file = _Weights(state)
        inner = ACTIVATIONS[settings.activation_func]
        final = ACTIVATIONS[settings.final_activation_func]
        self._settings = settings
        self._log_std: Tensor | _Layer | None = None
        self._norm: tuple[Tensor, Tensor] | None = None
        self.chooses = False
        if file.has("pi.mlp."):
            self.layout: Layout = "pi"
            *hidden, last = file.numbers("pi.mlp.")
            self._hidden = [file.layer(f"pi.mlp.{n}", inner) for n in hidden]
            self._head = file.layer(f"pi.mlp.{last}", final)
        elif file.has("net.mlp."):
            self.layout = "net"
            *hidden, last = file.numbers("net.mlp.")
            self._hidden = [file.layer(f"net.mlp.{n}", inner) for n in hidden]
            self._hidden.append(file.layer(f"net.mlp.{last}", final))
            self._head, self._log_std = file.layer("mu_layer"), file.layer("log_std_layer")
        else:
            self.layout = "on-policy"
            if file.has("base.feature_norm."):
                self._norm = file.norm("base.feature_norm")
            linear = file.numbers("base.mlp.fc.")[::2]  # each is followed by its normalization
            self._hidden = [
                file.layer(f"base.mlp.fc.{n}", inner, norm=f"base.mlp.fc.{n + 2}") for n in linear
            ]
            self.chooses = file.has("act.action_out.linear.")
            head = "linear" if self.chooses else "fc_mean"
            self._head = file.layer(f"act.action_out.{head}")
            if not self.chooses:
                self._log_std = file.take("act.action_out.log_std")
        self.tensors = tuple(file.taken.values())
        self.sizes = self._checked_sizes(file)
        self._bounds = settings.bounds(self.sizes[1], wanted=self.layout != "on-policy")

    def outputs(self, states: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return actions, means or with standard normal ``noise`` draws, or logits, (N, A).

        ``states`` are (N, O), ``noise`` is (N, A).
        """
        x = states if self._norm is None else _normalized(states, self._norm)
        for layer in self._hidden:
            x = layer(x)
        outputs = self._head(x)
        if noise is not None and self._log_std is not None:
            if isinstance(self._log_std, Tensor):
                ratio = torch.sigmoid(self._log_std / self._settings.std_x_coef)
                outputs = outputs + ratio * self._settings.std_y_coef * noise
            else:
                outputs = outputs + self._log_std(x).clamp(*_LOG_STD_RANGE).exp() * noise
        if self._bounds is None:
            return outputs
        squashed = torch.tanh(outputs) if self.layout == "net" else outputs
        return self._bounds[0] * squashed + self._bounds[1]

    def _checked_sizes(self, file: "_Weights") -> tuple[int, int]:
        """Return O and A; raise unless each layer fits the one before and nothing is left over."""
        layers = [*self._hidden, self._head]
        widths = [layer.weight.shape[0] for layer in layers] + [self._head.weight.shape[1]]
        normed = [] if self._norm is None else [(widths[0], self._norm)]
        pairs = zip(widths[1:], layers, strict=True)
        normed += [(width, layer.norm) for width, layer in pairs if layer.norm is not None]
        fits = all(a.weight.shape[1] == n for a, n in zip(layers, widths[1:], strict=True))
        fits &= all(v.shape == (width,) for width, norm in normed for v in norm)
        fits &= all(layer.bias.shape == layer.weight.shape[1:] for layer in layers)
        if isinstance(self._log_std, Tensor):
            fits &= self._log_std.shape == (widths[-1],)
        elif self._log_std is not None:
            fits &= self._log_std.weight.shape == self._head.weight.shape
        if not fits or file.left():
            shapes = {name: tuple(tensor.shape) for name, tensor in file.taken.items()}
            raise CheckpointError(
                f"HarlActor: expected layers that fit each other and nothing else, got {shapes} "
                f"and, unknown, {file.left()}; save the actor's whole state dict."
            )
        return int(widths[0]), int(widths[-1])


class _Weights:
    """A state dict that notes what was taken from it."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state, self.taken = state, dict[str, Tensor]()

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._state)

    def left(self) -> list[str]:
        return sorted(set(self._state) - set(self.taken))

    def numbers(self, prefix: str) -> list[int]:
        """Return the numbers N of all weights ``prefix`` + ``N.weight``, ascending."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.weight")
        found = sorted(int(m[1]) for name in self._state if (m := pattern.fullmatch(name)))
        if not found:
            raise CheckpointError(
                f"HarlActor: expected weights {prefix}0.weight and so on, got {self.left()}; save "
                "the state dict of HARL's actor."
            )
        return found

    def take(self, name: str, ndim: int = 1) -> Tensor:
        tensor = self._state.get(name)
        if tensor is None or tensor.ndim != ndim:
            raise CheckpointError(
                f"HarlActor: expected the weight {name!r} with {ndim} axes, got "
                f"{'none' if tensor is None else tuple(tensor.shape)} among {sorted(self._state)}."
            )
        self.taken[name] = tensor
        return tensor

    def norm(self, name: str) -> tuple[Tensor, Tensor]:
        return self.take(f"{name}.weight"), self.take(f"{name}.bias")

    def layer(
        self,
        name: str,
        activation: Callable[[Tensor], Tensor] | None = None,
        *,
        norm: str | None = None,
    ) -> _Layer:
        weight, bias = self.take(f"{name}.weight", 2), self.take(f"{name}.bias")
        return _Layer(weight.t(), bias, activation, None if norm is None else self.norm(norm))


def _normalized(x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    return torch.layer_norm(x, norm[0].shape, norm[0], norm[1], LAYER_NORM_EPSILON)
