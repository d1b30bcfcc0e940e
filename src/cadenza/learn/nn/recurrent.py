"""Networks that remember: a GRU or an LSTM between what is observed and a perceptron.

Equations, with input x, σ the logistic function and ⊙ the product of components:
    GRU:   r, z = σ(W x + b + U h + c) of their rows;  n = tanh(W_n x + b_n + r ⊙ (U_n h + c_n))
           h' = (1 − z) ⊙ n + z ⊙ h
    LSTM:  i, f, o = σ(W x + b + U h + d) of their rows;  g = tanh(W_g x + b_g + U_g h + d_g)
           c' = f ⊙ c + i ⊙ g;  h' = o ⊙ tanh(c')
Source:  arXiv:1406.1078 in the form of torch's GRU; Neural Computation 9 (8), 1735-1780, LSTM.
         Orthogonal weights and zero biases as in the perceptrons around it.
Axes:    L = steps, B = sequences, O = observation, M = mask of legal actions, F = features,
         H = memory, S = state: H, or 2 H (h and c side by side) of an LSTM; K = inputs of a window,
         A = what is remembered of an action.
State:   all zeros where an episode begins; the caller keeps it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError, refuse
from cadenza.learn.nn.layers import Layer

MemoryKind: TypeAlias = Literal["gru", "lstm"]
#: Logit of what is never chosen: its probability is 0 in float32, and p log p is 0, not NaN.
NEVER: Final = -1e8

Affine: TypeAlias = Callable[[Tensor], Tensor]


def remembered(kind: str, x: Tensor, state: Tensor, of_x: Affine, of_h: Affine) -> Tensor:
    """Return the next state, (B, S); ``of_x`` and ``of_h`` are W x + b and U h + c of all rows."""
    if kind == "gru":
        (r, z, n), (hr, hz, hn) = of_x(x).chunk(3, dim=-1), of_h(state).chunk(3, dim=-1)
        keep = torch.sigmoid(z + hz)
        return (1.0 - keep) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + keep * state
    h, c = state.chunk(2, dim=-1)
    i, f, g, o = (of_x(x) + of_h(h)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat((torch.sigmoid(o) * torch.tanh(c), c), dim=-1)


class Memory(nn.Module):
    """A GRU or an LSTM of H units."""

    def __init__(
        self, kind: MemoryKind, inputs: int, size: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.width: int = size if kind == "gru" else 2 * size
        make = nn.GRU if kind == "gru" else nn.LSTM
        cell = make(inputs, size, device="meta")  # draws nothing from torch's global generator
        self.cell: nn.RNNBase = cell.to_empty(device="cpu")
        for name, weight in self.cell.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(weight)
            else:
                nn.init.orthogonal_(weight, generator=generator)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is remembered in every step, (L, B, H), and the last state."""
        if self.kind == "gru":
            out, last = self.cell(x, state[None].contiguous())
            return out, last[0]
        h, c = (part[None].contiguous() for part in state.chunk(2, dim=-1))
        out, (h, c) = self.cell(x, (h, c))
        return out, torch.cat((h[0], c[0]), dim=-1)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """Return the next state, (B, S), for inputs (B, F); its first H columns are h."""
        own = dict(self.cell.named_parameters())
        return remembered(
            self.kind,
            x,
            state,
            lambda x: nn.functional.linear(x, own["weight_ih_l0"], own["bias_ih_l0"]),
            lambda h: nn.functional.linear(h, own["weight_hh_l0"], own["bias_hh_l0"]),
        )

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        own = dict(self.cell.named_parameters())
        return [Layer(self.kind, tensors={name: own[f"{name}_l0"] for name in names})]


class Window(nn.Module):
    """The last K inputs side by side, (B, K F), oldest first: zeros where there were fewer."""

    def __init__(self, inputs: int, steps: int) -> None:
        super().__init__()
        self.size: int = inputs * steps
        self.width: int = self.size

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the window of every step, (L, B, K F), and the last one."""
        windows: list[Tensor] = []
        for row in x:
            state = self.step(row, state)
            windows.append(state)
        return torch.stack(windows), state

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """Return the window after inputs (B, F)."""
        return moved_on(x, state)

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        return [Layer("window", {"size": self.size})]


def moved_on(x: Tensor, window: Tensor) -> Tensor:
    """Return ``window``, (B, K F), with ``x``, (B, F), at its end instead of the oldest input."""
    return torch.cat((window, x), dim=1)[:, x.shape[1] :]


def as_remembered(
    decided: Tensor, counts: Sequence[int], bounds: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Return what a policy remembers of its actions, (B, A) float32.

    Args:
        decided: One choice or several, (B,) or (B, D), counted from 0, or numbers, (B, A).
        counts: How many choices there are each time, D of them; one-hot is what is remembered.
        bounds: Lowest and highest numbers, (A,), of other actions: these are clipped, and scaled
            to [−1, 1] where both bounds are finite.
    """
    columns = decided.unsqueeze(1) if decided.ndim == 1 else decided.flatten(1)
    if bounds is None:
        hot = [columns[:, d : d + 1] == torch.arange(n).to(columns) for d, n in enumerate(counts)]
        return torch.cat(hot, dim=1).float()
    low, high = (end.to(columns.device).reshape(-1).float() for end in bounds)
    inside = torch.clamp(columns.float(), low, high)
    room = high - low
    scales = torch.isfinite(room) & (room > 0.0)
    unit = 2.0 * (inside - low) / torch.where(scales, room, 1.0) - 1.0
    return torch.where(scales, unit, inside)


class Recurrent(nn.Module):
    """Rows to what a head takes, through a `Memory`; they may end with M columns of a mask.

    ``before`` makes features of rows (B, O), ``layers`` the result of what is remembered.
    """

    def __init__(
        self,
        before: Sequence[nn.Module],
        memory: Memory | Window,
        layers: nn.Module,
        *,
        masks: int = 0,
    ) -> None:
        super().__init__()
        self.before: nn.Sequential = nn.Sequential(*before)
        self.memory: Memory | Window = memory
        self.layers = layers
        self.masks = masks

    def forward(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return results, (L, B, ...), for rows (L, B, O + M), and the last state."""
        flat, (steps, count) = rows.flatten(0, 1), rows.shape[:2]
        out, state = self.memory(self._features(flat).reshape(steps, count, -1), state)
        return self._result(flat, out.flatten(0, 1)).reshape(steps, count, -1), state

    def step(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of one step, (B, ...), and the state after it."""
        state = self.memory.step(self._features(rows), state)
        return self._result(rows, state[:, : self.memory.size]), state

    def _features(self, rows: Tensor) -> Tensor:
        return self.before(rows[:, : -self.masks] if self.masks else rows)

    def _result(self, rows: Tensor, remembered: Tensor) -> Tensor:
        return masked(self.layers(remembered), rows, self.masks)

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file."""
        return [self.before, self.memory, self.layers]


def carried(
    owner: str, state: Any, shape: tuple[int, int], episode_start: Any = False
) -> Float32Array:
    """Return ``state`` as an array of ``shape``, (B, S): zeros if it is None, and where one starts.

    Raises:
        InputError: It has another size.
    """
    fresh = np.zeros(shape, np.float32)
    if state is None:
        return fresh
    if np.size(state) != fresh.size:
        expected, got = f"a state of shape {shape}", f"one of {np.shape(state)}"
        do = "hand back the one that the last call returned"
        refuse(InputError, owner, expected=expected, got=got, do=do)
    return np.where(np.reshape(episode_start, (-1, 1)), fresh, np.reshape(state, shape))


def masked(logits: Tensor, rows: Tensor, masks: int) -> Tensor:
    """Return ``logits``, (B, M), those `NEVER` for which the mask at the end of ``rows`` is 0."""
    return logits.masked_fill(rows[:, -masks:] == 0, NEVER) if masks else logits


class Remembering(nn.Module):
    """A policy without chance that remembers: rows and state to decisions and the next state.

    ``scaling`` comes before everything, but leaves masks alone.
    """

    def __init__(
        self, scaling: Sequence[nn.Module], actor: Recurrent, decide: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.scaling: nn.Sequential = nn.Sequential(*scaling)
        self.actor = actor
        self.decide = decide

    def forward(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return decisions for rows (B, O + M) and states (B, S), and the states after them."""
        numbers = rows.shape[1] - self.actor.masks
        seen = torch.cat((self.scaling(rows[:, :numbers]), rows[:, numbers:]), dim=1)
        output, state = self.actor.step(seen, state)
        return self.decide(output), state

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file, whose output decides."""
        return [self.scaling, self.actor]
