"""Policies that see a belief, such as of who they work with, beside what they observe.

Equations, with observation o, the policy's own last action a and a memory h:
    z_t, h_t = belief(o_t, a_{t−1}, h_{t−1});   π(·|o_t, shown(z_t));   a_{t−1}, h_{t−1} = 0 where
    an episode begins
    foretold choices: shown(z) = p / |p|₂ of p = softmax z, per choice
Axes:    B = batch, O = observation, M = mask of legal actions, A = what is remembered of an action,
         Z = belief, S = memory of the belief.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import EncoderFactory, Layer
from cadenza.learn.nn.recurrent import Recurrent


class EncodedColumns(nn.Module):
    """Features of an ``encoder`` for the first ``inputs`` columns; ``others`` come after them."""

    def __init__(self, encoder: Any, inputs: int, others: int) -> None:
        super().__init__()
        self.encoder: nn.Module = encoder
        self._widths = [inputs, others]
        self.width: int = int(encoder.width) + others

    def forward(self, rows: Tensor) -> Tensor:
        """Return features, (B, F), and the other columns, of rows (B, O + others)."""
        first, others = torch.split(rows, self._widths, dim=1)
        return torch.cat((self.encoder(first), others), dim=1)

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        return [Layer("parts", {"widths": self._widths}, parts=(layers_of(self.encoder), ()))]


def beside(make: EncoderFactory | None, inputs: int, others: int) -> EncoderFactory | None:
    """Return what makes an encoder of ``inputs`` columns with ``others`` beside them."""
    return None if make is None else lambda: EncodedColumns(make(), inputs, others)


class Foretold(nn.Module):
    """Logits of choices, one after the other, as probabilities of length 1 together."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        self._counts = [*counts]

    def forward(self, z: Tensor) -> Tensor:
        """Return (B, Z) for logits (B, Z); without choices z itself."""
        if not self._counts:
            return z
        parts = [torch.softmax(part, dim=1) for part in torch.split(z, self._counts, dim=1)]
        return nn.functional.normalize(torch.cat(parts, dim=1), dim=1)

    def portable(self) -> Sequence[Layer]:
        """Return the layers of a policy file."""
        if not self._counts:
            return []
        parts = tuple((Layer("softmax"),) for _ in self._counts)
        return [Layer("parts", {"widths": self._counts}, parts=parts), Layer("unit_length")]


class Believing(nn.Module):
    """A policy without chance that sees a belief beside its rows, made of all it saw and did.

    ``belief`` makes it of observations and the action before, (B, O + A), ``shown`` is what of it
    ``actor`` sees, which decides on rows (B, O + Z + M). The state is that action, then the
    belief's memory; ``done`` returns what is remembered of decisions. ``scaling`` comes first, but
    leaves masks alone.
    """

    def __init__(
        self,
        scaling: Sequence[nn.Module],
        belief: Recurrent,
        shown: nn.Module,
        actor: nn.Module,
        decide: Callable[[Tensor], Tensor],
        done: Callable[[Tensor], Tensor],
        *,
        masks: int = 0,
        actions: int,
    ) -> None:
        super().__init__()
        self.scaling: nn.Sequential = nn.Sequential(*scaling)
        self.belief = belief
        self.shown = shown
        self.actor = actor
        self.decide, self.done = decide, done
        self._masks, self._actions = masks, actions

    def forward(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return decisions for rows (B, O + M) and states (B, A + S), and the states after them."""
        numbers = rows.shape[1] - self._masks
        seen = torch.cat((self.scaling(rows[:, :numbers]), rows[:, numbers:]), dim=1)
        joined, memory = believed(self.belief, self.shown, seen, state, masks=self._masks)
        decided = self.decide(self.actor(joined))
        return decided, torch.cat((self.done(decided), memory), dim=1)

    def portable(self) -> Sequence[nn.Module | Layer]:
        """Return the layers of a policy file."""
        belief = (Layer("previous", {"size": self._actions}), *layers_of(self.belief, self.shown))
        return [self.scaling, Layer("beside", parts=((), belief)), self.actor]


def with_belief(seen: Tensor, z: Tensor, masks: int) -> Tensor:
    """Return rows (B, O + Z + M) of rows ``seen``, (B, O + M), and beliefs (B, Z)."""
    numbers = seen.shape[1] - masks
    return torch.cat((seen[:, :numbers], z, seen[:, numbers:]), dim=1)


def believed(
    belief: Recurrent, shown: nn.Module, seen: Tensor, state: Tensor, *, masks: int
) -> tuple[Tensor, Tensor]:
    """Return rows with a belief, (B, O + Z + M), of ``seen``, (B, O + M), and its memory, (B, S).

    ``state``, (B, A + S), is the action before and what was remembered of all before it.
    """
    numbers, width = seen.shape[1] - masks, state.shape[1] - belief.memory.width
    inputs = torch.cat((seen[:, :numbers], state[:, :width]), dim=1)
    z, memory = belief.step(inputs, state[:, width:])
    return with_belief(seen, shown(z), masks), memory
