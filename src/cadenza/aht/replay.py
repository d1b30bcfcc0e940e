"""Bring environment and partner back to the middle of an episode by playing it again.

Environments and partners are not asked to save their state. What is stored is the seed of the last
reset and every ego action executed since; from them the same episode unfolds, the partner acting
for itself. A digest of the observation proves that it did. A batched environment resets its
episodes itself, so its record goes back to the start of the run.

Cost: actions take ``4 A`` bytes per frame in memory and in every training state.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.errors import CheckpointError
from cadenza.core.types import Observation, PartnerLike

#: Characters of the observation digest that an error shows.
_SHOWN_DIGITS: Final = 12


class EpisodeReplay:
    """Seed of the last reset, and the ego actions executed since.

    Attributes:
        seed: Seed given to environment and partner at the last reset.
        first_episode: Number of the episode that began with it.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.first_episode = seed, 0
        self._actions: list[NDArray[Any]] = []

    def restart(self, seed: int, first_episode: int = 0) -> None:
        """Forget the old episode: environment and partner were reset with ``seed``."""
        self.seed, self.first_episode = seed, first_episode
        self._actions = []

    def append(self, action: NDArray[Any]) -> None:
        """Record one executed ego action, shape (A,) or (N, A). It is copied."""
        self._actions.append(action.copy())

    def __len__(self) -> int:
        """Return the number of recorded actions."""
        return len(self._actions)

    def state_dict(self) -> dict[str, Any]:
        """Return seed and actions as an int and a tensor, (T, A) or (T, N, A)."""
        actions = np.stack(self._actions) if self._actions else np.zeros((0, 0), dtype=np.float32)
        return {
            "seed": self.seed,
            "actions": torch.as_tensor(actions),
            "first_episode": self.first_episode,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a stored record."""
        self.seed, self.first_episode = int(state["seed"]), int(state.get("first_episode", 0))
        self._actions = list(cast("torch.Tensor", state["actions"]).numpy())

    def play(
        self,
        env: Any,
        partner: PartnerLike,
        agent_uids: tuple[str, str],
        *,
        on_rows_ended: Callable[[list[int]], None] | None = None,
    ) -> Observation:
        """Reset both and execute the record; return the observation it ends with.

        The partner acts for itself. ``on_rows_ended`` is told, for a batch, which environments
        ended an episode in a step.
        """
        ego_uid, partner_uid = agent_uids
        obs: Observation = env.reset(seed=self.seed)[0]
        partner.reset(seed=self.seed)
        for action in self._actions:
            partner_action = partner.act(obs)
            obs, _, terminated, truncated, _ = env.step(
                {ego_uid: action, partner_uid: partner_action}
            )
            if on_rows_ended is not None:
                ended: list[int] = np.flatnonzero(np.logical_or(terminated, truncated)).tolist()
                on_rows_ended(ended)
        return obs


def observation_digest(obs: Observation) -> str:
    """Return the SHA-256 over every name, array and value of ``obs``, nested to any depth."""
    digest = hashlib.sha256()
    _feed(digest, obs)
    return digest.hexdigest()


def require_same_observation(obs: Observation, expected_digest: str) -> None:
    """Raise unless ``obs`` has the stored digest.

    Raises:
        CheckpointError: The replayed episode took another course.
    """
    actual = observation_digest(obs)
    if actual != expected_digest:
        raise CheckpointError(
            "resume: expected the replayed episode to end in the stored observation "
            f"({expected_digest[:_SHOWN_DIGITS]}), got another ({actual[:_SHOWN_DIGITS]}): the "
            "environment or the partner does not repeat an episode from its seed, or its code "
            "changed since the run began; start the run again with overwrite."
        )


def _feed(digest: Any, value: object) -> None:
    """Add ``value`` to ``digest`` with its type and shape, so that no two values look alike."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, object]", value)
        digest.update(b"{%d" % len(mapping))
        for key in sorted(mapping):
            _feed(digest, key)
            _feed(digest, mapping[key])
    elif isinstance(value, str) or value is None:
        digest.update(repr(value).encode("utf-8"))
    elif isinstance(value, torch.Tensor):
        _feed(digest, value.detach().cpu().numpy())
    elif isinstance(value, np.ndarray | np.generic | bool | int | float):
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    elif isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        digest.update(b"[%d" % len(items))
        for item in items:
            _feed(digest, item)
    elif is_dataclass(value):
        for entry in fields(value):
            _feed(digest, entry.name)
            _feed(digest, getattr(value, entry.name))
    else:
        raise CheckpointError(
            "observation: expected mappings, sequences, dataclasses, arrays, numbers or text, got "
            f"{type(value).__name__}; convert it in the environment, or a resumed run cannot be "
            "compared with the stored one."
        )
