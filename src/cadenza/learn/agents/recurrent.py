"""PPO with a memory: actor and critic see the episode so far through a GRU or an LSTM.

A rollout is cut into sequences where an episode begins and every ``sequence_length`` steps. Whole
sequences make a minibatch, about ``batch_size`` transitions; gradients end where a sequence begins,
and it begins with what the networks that collected the rollout remembered there.

Source:      arXiv:1507.06527 (sequences from stored states); Stable-Baselines3's RecurrentPPO,
             which cuts anew in every pass, and so splits sequences, for minibatches of equal size.
Axes:        T = steps, N = rows per step, L = longest sequence, B = sequences of a minibatch,
             K = sequences, O = observation with its mask, S = state of one network.
Limits:      states grow old within an update, as advantages do: epochs use those of before it.
"""

from dataclasses import dataclass
from typing import Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array
from cadenza.learn.agents.on_policy import Rollout, Sizes
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.ppo import MAPPOConfig, PPOBatch, PPOLearner
from cadenza.learn.nn.recurrent import Recurrent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unrolled:
    """Sequences side by side: ``steps`` are those ``inside``, time-major, without what fills up.

    Attributes:
        steps: Their transitions.
        observations: Filled up to the longest, (L, B, O).
        inside: Whether a place holds a step, (L, B).
        states: Of actor and critic before the first, (B, 2 S).
    """

    steps: PPOBatch
    observations: Tensor
    inside: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """A rollout, cut into sequences.

    Attributes:
        steps: All of its transitions, time-major, (T N).
        stride: N.
        firsts: Place of the first step of each sequence among ``steps``, (K,).
        lengths: Steps of each, (K,).
        states: Of actor and critic before the first, (K, 2 S).
    """

    steps: PPOBatch
    stride: int
    firsts: Tensor
    lengths: Tensor
    states: Tensor

    def __len__(self) -> int:
        """Return K."""
        return len(self.firsts)

    def minibatch(self, transitions: int) -> int:
        """Return how many sequences have about ``transitions``, at least one."""
        return max(1, round(transitions * len(self) / int(self.lengths.sum())))

    def rows(self, indices: Tensor) -> Unrolled:
        """Return the sequences ``indices``, (B,)."""
        lengths = self.lengths[indices]
        steps = torch.arange(int(lengths.max()), device=lengths.device)[:, None]
        inside = steps < lengths  # (L, B)
        places = self.firsts[indices] + steps * inside * self.stride
        return Unrolled(
            steps=self.steps.rows(places[inside]),
            observations=self.steps.observations[places],
            inside=inside,
            states=self.states[indices],
        )


def sequence_table(
    begins: NDArray[np.bool_], valid: NDArray[np.bool_], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return first step, row and length of every sequence, (K,) each.

    Args:
        begins: Whether an episode begins with a step, (T, N).
        valid: Whether its action was executed, (T, N): a step that was not is no sequence.
        length: Most steps of a sequence.
    """
    cut = begins.copy()
    cut[::length] = True
    row, first = np.nonzero(cut.T)
    stop = np.append(first[1:], 0)
    stop[np.append(row[1:] != row[:-1], True)] = len(begins)
    kept = valid[first, row]
    return first[kept], row[kept], (stop - first)[kept]


def walked(
    network: Recurrent, rows: Tensor, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return results (T, N, ...) of rows (T, N, O), and the states before and after, (T, N, S).

    ``state`` is what is remembered before the first; where an episode ``begins``, (T, N), nothing.
    """
    results: list[Tensor] = []
    before: list[Tensor] = []
    after: list[Tensor] = []
    for seen, fresh in zip(rows, begins, strict=True):
        before.append(state.masked_fill(fresh[:, None], 0.0))
        result, state = network.step(seen, before[-1])
        results.append(result)
        after.append(state)
    return torch.stack(results), torch.stack(before), torch.stack(after)


class RecurrentPPOLearner(PPOLearner):
    """`PPOLearner` whose networks are `Recurrent`; what they remember of rows is the caller's."""

    def __init__(
        self, config: MAPPOConfig, *, sequence_length: int, **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(config, **sizes)
        self._length = sequence_length

    @property
    def _actor(self) -> Recurrent:
        return cast("Recurrent", self.network.actor)

    @property
    def _critic(self) -> Recurrent:
        return cast("Recurrent", self.network.critic)

    @property
    def state_width(self) -> int:
        """S, what the policy remembers of a row from one step to the next."""
        return self._actor.memory.width

    def _output(self, rows: Tensor, state: Float32Array) -> tuple[Tensor, Float32Array]:
        output, following = self._actor.step(rows, self._on_device(state))
        return output, following.cpu().numpy()

    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[Rollout, dict[str, float]]:
        config, width, rows = self.config, self.state_width, buffer.shape.rows
        everything = np.ones_like(counted)
        begins = torch.tensor(buffer.begins, device=self._device)
        observations = self._flat(buffer.observations, everything)
        seen = observations.reshape(*counted.shape, -1)
        remembered = self._on_device(buffer.states.copy())
        own, other = remembered[:, :width], remembered[:, width:]
        output, own_states, _ = walked(self._actor, seen, own, begins[:-1])
        numbers = seen.shape[2] - self._actor.masks
        values, other_states, after = walked(self._critic, seen[..., :numbers], other, begins[:-1])
        carried = after[-1].masked_fill(begins[-1][:, None], 0.0)

        def value(inputs: Float32Array) -> Float32Array:
            """Return V of all steps, then of what follows the rollout and of what was cut off."""
            ends = self._on_device(inputs[counted.size :])[:, :numbers]
            states = torch.cat([carried, *(after[step][cut] for step, cut in buffer.cuts)])
            following, _ = self._critic.step(ends, states)
            return torch.cat((values.flatten(), following.flatten())).cpu().numpy()

        estimates = buffer.estimate(value, gamma=config.gamma, gae_lambda=config.gae_lambda)
        buffer.states[:, width:] = carried.cpu().numpy()  # where the next rollout begins
        actions = self._flat(buffer.actions, everything)
        steps = PPOBatch(
            observations=observations,
            actions=actions,
            old_log_probs=self.network.head.log_prob(output.flatten(0, 1), actions),
            advantages=self._flat(estimates.advantages, everything),
            returns=self._flat(estimates.returns, everything),
            old_values=self._flat(estimates.values, everything),
        )
        first, row, lengths = sequence_table(buffer.begins[:-1], counted, self._length)
        sequences = Sequences(
            steps=steps,
            stride=rows,
            firsts=torch.tensor(first * rows + row, device=self._device),
            lengths=torch.tensor(lengths, device=self._device),
            states=torch.cat((own_states, other_states), dim=2)[first, row],
        )
        return sequences, self._moments_of(estimates, counted)

    def _step(self, batch: Unrolled) -> Tensor:
        width = self.state_width
        own, other = batch.states[:, :width], batch.states[:, width:]
        output, _ = self._actor(batch.observations, own)
        numbers = batch.observations.shape[2] - self._actor.masks
        values, _ = self._critic(batch.observations[..., :numbers], other)
        inside = batch.inside
        return self._learn(batch.steps, values[inside].squeeze(-1), output[inside])
