from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, DictResponse, EpisodeState
from cadenza.learn.algorithms.genrl import (
    DecoderWrapper,
    EncoderWrapper,
    FullyConnectedDecoder,
    FullyConnectedEncoder,
    MemoryProxyWithEncoder,
)
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.memory.table import ArrayMemoryTable

ACTION, LATENT, OBS = 3, 2, 4
SPACES = MDPSpace(
    rewards=None,
    actions=BoxSpace(np.dtype(np.float32), (LATENT,)),
    state=DictSpace({"obs": BoxSpace(np.dtype(np.float32), (OBS,))}),
)


def table() -> ArrayMemoryTable:
    return DictObsMemoryTable(spaces=SPACES, device="cpu", maxlen=100, use_terminal_column=True)


def encoder() -> EncoderWrapper:
    inner = FullyConnectedEncoder(
        ACTION, LATENT, "cpu", [8], OBS, generator=torch.Generator().manual_seed(0)
    )
    return EncoderWrapper(inner, lambda obs: obs)


def proxy(memory: ArrayMemoryTable, **options: Any) -> MemoryProxyWithEncoder:
    return MemoryProxyWithEncoder(memory, encoder(), use_terminal=True, **options)


def observation(state: EpisodeState, value: float, key: str = "obs") -> DictObservation:
    reward = None if state is EpisodeState.INITIAL else value
    return DictObservation({"reward": reward}, state, {key: np.full(OBS, value, dtype=np.float32)})


def response(value: float, **more: list[float]) -> DictResponse:
    return DictResponse({"actions": [value] * ACTION, **more}, {})


def episode(memory: MemoryProxyWithEncoder, agents: tuple[int, ...] = (0, 1)) -> None:
    """Two steps of every agent, then the end."""
    for step, state in enumerate((EpisodeState.INITIAL, EpisodeState.RUNNING)):
        memory.add(
            {agent: observation(state, agent + step) for agent in agents},
            {agent: response(0.1 * agent + 0.2 * step) for agent in agents},
        )
    memory.add({agent: observation(EpisodeState.TERMINAL, agent + 2.0) for agent in agents}, {})


def expected_latent(agent: int, step: int) -> Tensor:
    action = torch.full((1, ACTION), 0.1 * agent + 0.2 * step)
    return encoder()(action, torch.full((1, OBS), float(agent + step)))[0]


def test_stored_actions_are_latents_in_the_policys_range():
    memory = table()
    episode(proxy(memory))
    batch = memory.sample(64, 1)
    for row in range(64):
        obs = batch["observation"]["obs"][row]
        agent_and_step = {(a, s) for a in (0, 1) for s in (0, 1) if a + s == int(obs[0])}
        found = batch["actions"][row]
        assert any(
            torch.allclose(3.0 * found, expected_latent(a, s), atol=1e-6) for a, s in agent_and_step
        )


def test_multiplier_is_the_inverse_of_the_decoders():
    """What the memory holds, decoded by the acting decoder, is the restored action."""
    memory = table()
    episode(proxy(memory, latent_multiplier=2.0), agents=(0,))
    inner = FullyConnectedDecoder(
        LATENT, ACTION, "cpu", [8], OBS, generator=torch.Generator().manual_seed(1)
    )
    acting = DecoderWrapper(inner, lambda obs: obs, latent_multiplier=2.0)
    batch = memory.sample(8, 1)
    for row in range(8):
        obs = batch["observation"]["obs"][row : row + 1]
        latent = expected_latent(0, int(obs[0, 0]))
        torch.testing.assert_close(
            acting(batch["actions"][row : row + 1], obs), inner(latent.unsqueeze(0), obs)
        )


class Recorder(ArrayMemoryTable):
    """A table that keeps what it is given."""

    def add_sequence(self, identity: int, sequence: Any) -> None:
        self.sequence = dict(sequence)


def recorder() -> Recorder:
    donor = table()
    memory = Recorder.__new__(Recorder)
    memory.__dict__.update(donor.__dict__)
    return memory


def test_other_entries_of_a_response_are_kept():
    memory = recorder()
    adapter = MemoryProxyWithEncoder(memory, encoder(), action_key="move")
    move = DictResponse({"move": [0.5] * ACTION, "actions": [9.0, 8.0]}, {"confidence": 0.25})
    adapter.add({0: observation(EpisodeState.INITIAL, 0.0)}, {0: move})
    adapter.add({0: observation(EpisodeState.TERMINAL, 1.0)}, {})
    assert memory.sequence["actions"] == [[9.0, 8.0]]
    assert memory.sequence["confidence"] == [0.25]
    latent = encoder()(torch.full((1, ACTION), 0.5), torch.zeros(1, OBS))[0] / 3.0
    np.testing.assert_allclose(memory.sequence["move"][0], latent.numpy(), atol=1e-6)
    assert move.list_data["move"] == [0.5] * ACTION  # the caller's response stays as it was
