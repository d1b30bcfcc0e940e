"""A trained perceptron policy as plain data: any program can play it without its learner.

Equations, for a state s with stored moments (when there are any) and layers k = 1 ... K:
    x_0 = clip((s − mean) / sqrt(variance + 1e-8), −limit, limit),   else s
    x_k = act(norm(W_k x_{k−1} + b_k)) for k < K,   y = W_K x_{K−1} + b_K
    norm(z) = g_k (z − mean z) / sqrt(var z + 1e-5) + h_k,   or z without stored g and h
    mean:     a = clip(y, low, high)
    unit:     a = low + (clip(y, −1, 1) + 1) / 2 · (high − low)
    tanh:     a = low + (tanh(y) + 1) / 2 · (high − low)
    squashed: as tanh, with y clipped to [−5, 5]
    choice:   a = choices[argmax y]
Axes:    B = batch, O = state, A = action, C = choices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError
from cadenza.learn.nn.gaussian_policy import MAX_MEAN
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network
from cadenza.learn.running_normalizer import CLIP, EPSILON

#: Key of such a policy in a checkpoint.
MLP_POLICY_KEY: Final = "mlp_policy"
#: Added to the variance in a layer norm; torch's default.
NORM_EPSILON: Final = 1e-5
_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": torch.relu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}
_OUTPUTS: Final = ("mean", "unit", "tanh", "squashed", "choice")


def scaled(x: Tensor, moments: Tensor, limit: float = CLIP) -> Tensor:
    """Return states (B, O), scaled by mean and variance, (2, O), as float32."""
    mean, variance = moments
    return ((x - mean) / torch.sqrt(variance + EPSILON)).clamp(-limit, limit).float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MlpPolicy:
    """Weights and how to read them.

    Attributes:
        weights: W_1, b_1, ..., W_K, b_K.
        activation: ``"relu"``, ``"silu"`` or ``"tanh"``.
        output: ``"mean"``, ``"unit"``, ``"tanh"``, ``"squashed"`` or ``"choice"``.
        low: Smallest action, (A,).
        high: Largest action, (A,).
        choices: Actions to choose from, (C, A); empty unless ``output`` is ``"choice"``.
        moments: Mean and variance of states, (2, O); None leaves states as they are.
        limit: Bound of a scaled state.
        norms: g_1, h_1, ..., g_{K−1}, h_{K−1}; empty without layer norm.
    """

    weights: Sequence[Tensor]
    activation: str
    output: str
    low: Tensor
    high: Tensor
    choices: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))
    moments: Tensor | None = None
    limit: float = CLIP
    norms: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        """Refuse what `act` could not play."""
        chained = len(self.weights) >= 2 and len(self.weights) % 2 == 0
        chained = chained and all(w.ndim == 2 for w in self.weights[::2])
        outputs = len(self.choices) if self.output == "choice" else len(self.low)
        if not (
            chained
            and self.activation in _ACTIVATIONS
            and self.output in _OUTPUTS
            and self.weights[-1].shape == (outputs,)
            and len(self.norms) in (0, len(self.weights) - 2)
        ):
            raise CheckpointError(
                "MlpPolicy: expected pairs of weights and biases that end in one output per "
                f"action or choice ({outputs}), activation {', '.join(_ACTIVATIONS)} and output "
                f"{', '.join(_OUTPUTS)}; got {len(self.weights)} arrays, {self.activation!r} and "
                f"{self.output!r}."
            )

    @property
    def observation_dim(self) -> int:
        """O."""
        return int(self.weights[0].shape[1])

    @property
    def action_dim(self) -> int:
        """A."""
        return int(self.low.shape[0])

    @torch.no_grad()
    def outputs(self, states: NDArray[Any]) -> Tensor:
        """Return y, (B, A) or one logit per choice (B, C), for states (B, O)."""
        x = torch.tensor(np.asarray(states, dtype=np.float32))
        if self.moments is not None:
            x = scaled(x, self.moments, self.limit)
        activation = _ACTIVATIONS[self.activation]
        last = len(self.weights) - 2
        for i in range(0, last, 2):
            x = nn.functional.linear(x, self.weights[i], self.weights[i + 1])
            if self.norms:
                x = nn.functional.layer_norm(x, x.shape[1:], self.norms[i], self.norms[i + 1])
            x = activation(x)
        return nn.functional.linear(x, self.weights[last], self.weights[last + 1])

    @torch.no_grad()
    def act(self, states: NDArray[Any]) -> Float32Array:
        """Return actions, (B, A) float32, for states (B, O)."""
        y = self.outputs(states)
        if self.output == "choice":
            return self.choices[y.argmax(dim=-1)].numpy()
        if self.output == "mean":
            return torch.clamp(y, self.low, self.high).numpy()
        if self.output == "squashed":
            y = y.clamp(-MAX_MEAN, MAX_MEAN)
        share = ((y.clamp(-1.0, 1.0) if self.output == "unit" else torch.tanh(y)) + 1.0) * 0.5
        return (self.low + share * (self.high - self.low)).numpy()

    def network(self, log_std: Tensor | None = None, **facts: Any) -> PortableNetwork:
        """Return the policy as a policy file holds it; ``log_std`` is that of draws, (A,).

        ``facts`` are further fields of `PortableNetwork`.
        """
        layers: list[Layer] = []
        if self.moments is not None:
            mean, variance = self.moments
            tensors = {"mean": mean, "spread": torch.sqrt(variance + EPSILON)}
            layers.append(Layer("standardise", {"limit": self.limit}, tensors))
        for i in range(0, len(self.weights), 2):
            pair = {"weight": self.weights[i], "bias": self.weights[i + 1]}
            layers.append(Layer("linear", tensors=pair))
            if i < len(self.weights) - 2:
                if self.norms:
                    own = {"weight": self.norms[i], "bias": self.norms[i + 1]}
                    layers.append(Layer("layer_norm", {"eps": NORM_EPSILON}, own))
                layers.append(Layer(self.activation))
        bound = {"unit": 1.0, "squashed": MAX_MEAN}.get(self.output)
        if bound is not None:
            layers.append(Layer("clamp", {"low": -bound, "high": bound}))
        kind = "tanh" if self.output == "squashed" else self.output
        ends: dict[str, Any] = {"low": self.low.numpy(), "high": self.high.numpy()}
        if kind == "choice":
            ends = {"choices": self.choices.numpy()}
        output = Output(kind=kind, log_std=log_std, **ends)
        return flat_network(layers, self.observation_dim, output, **facts)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy as tensors and strings; copies."""
        return {
            "weights": [w.detach().cpu().clone() for w in self.weights],
            "activation": self.activation,
            "output": self.output,
            "low": self.low.clone(),
            "high": self.high.clone(),
            "choices": self.choices.clone(),
            "moments": None if self.moments is None else self.moments.clone(),
            "limit": self.limit,
            "norms": [norm.detach().cpu().clone() for norm in self.norms],
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "MlpPolicy":
        """Return the policy that `state_dict` described.

        Raises:
            CheckpointError: Something is missing or does not fit together.
        """
        try:
            return cls(
                weights=list(state["weights"]),
                activation=str(state["activation"]),
                output=str(state["output"]),
                low=state["low"],
                high=state["high"],
                choices=state["choices"],
                moments=state["moments"],
                limit=float(state.get("limit", CLIP)),  # older files have neither
                norms=list(state.get("norms", [])),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"MlpPolicy: expected a complete policy, got {sorted(state)}: {error}"
            ) from error
