"""A memory proxy that stores actions as points of a learned action space.

Axes:  K = agents, X = action columns, Z = latent columns.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from cadenza.core.errors import InputError
from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn.algorithms.genrl.wrappers import LATENT_MULTIPLIER, EncoderWrapper
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.memory.table import ArrayMemoryTable


class MemoryProxyWithEncoder(MemoryTableProxy):
    """A `MemoryTableProxy` that replaces each action by its latent before it is stored.

    Latents are stored in the range in which a policy over latents acts: the encoder's mean divided
    by the multiplier of `DecoderWrapper`. Everything else in observations and responses is stored
    as it came; empty actions pass through.

    Args:
        memory_table: Where episodes go.
        encoder: Actions and observations to latents.
        minimum_length_threshold: Shortest episode to keep; None keeps all.
        use_terminal: Store whether the episode was interrupted.
        input_key: Observation that conditions the encoder.
        action_key: Entry of the responses that holds the action.
        latent_multiplier: Multiplier of the decoder that acts; 1 stores the encoder's mean.
        name: Name in logs and checkpoints.
        save_table: See `MemoryTableProxy`.

    Raises:
        InputError: ``latent_multiplier`` is zero.
    """

    def __init__(
        self,
        memory_table: ArrayMemoryTable,
        encoder: EncoderWrapper,
        minimum_length_threshold: int | None = None,
        use_terminal: bool = False,
        input_key: str = "obs",
        action_key: str = "actions",
        *,
        latent_multiplier: float = LATENT_MULTIPLIER,
        name: str = "memproxy",
        save_table: bool = True,
    ) -> None:
        super().__init__(
            memory_table, minimum_length_threshold, use_terminal, name=name, save_table=save_table
        )
        if latent_multiplier == 0.0:
            raise InputError(
                "MemoryProxyWithEncoder: expected a latent_multiplier other than 0, got 0.0; use "
                "the decoder's."
            )
        self._encoder = encoder
        self._input_key = input_key
        self._action_key = action_key
        self._multiplier = latent_multiplier

    def add(
        self,
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> None:
        """Store one step of every agent, actions encoded.

        Raises:
            InputError: A response lacks the action, or its agent has no observation.
        """
        acting = [
            agent for agent, response in responses.items() if self._has_action(agent, response)
        ]
        if acting:
            latents = self._encoded(acting, observations, responses)
            encoded = {
                agent: replace(
                    responses[agent],
                    list_data={**responses[agent].list_data, self._action_key: latents[i].tolist()},
                )
                for i, agent in enumerate(acting)
            }
            responses = {**responses, **encoded}
        super().add(observations, responses)

    def _has_action(self, agent: AgentId, response: DictResponse) -> bool:
        """Return whether there is an action to encode."""
        if self._action_key not in response.list_data:
            raise InputError(
                f"MemoryProxyWithEncoder.add: expected list_data[{self._action_key!r}] in the "
                f"response of agent {agent}, got {sorted(response.list_data)}; set action_key."
            )
        return len(response.list_data[self._action_key]) > 0

    def _encoded(
        self,
        acting: list[AgentId],
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return latents in the policy's range, float32, shape (K, Z)."""
        missing = [a for a in acting if a not in observations]
        if missing:
            raise InputError(
                f"MemoryProxyWithEncoder.add: expected an observation for every response, got none "
                f"for agents {missing}."
            )
        blind = [a for a in acting if self._input_key not in observations[a].array_data]
        if blind:
            raise InputError(
                f"MemoryProxyWithEncoder.add: expected array_data[{self._input_key!r}] in every "
                f"observation, got none for agents {blind}; set input_key."
            )
        actions = np.stack(
            [np.asarray(responses[a].list_data[self._action_key], np.float32) for a in acting]
        )
        inputs = np.stack(
            [np.asarray(observations[a].array_data[self._input_key], np.float32) for a in acting]
        )
        device = self._encoder.device
        with torch.no_grad():
            latents = self._encoder(
                torch.as_tensor(actions, device=device), torch.as_tensor(inputs, device=device)
            )
        return (latents / self._multiplier).float().cpu().numpy()
