"""Wrappers around any environment with per-uid dict spaces: control rates, senses, identities.

A wrapper whose assumption fails raises at construction, never silently does nothing. Attributes of
the inner env stay reachable: Gymnasium 1 forwards none, but loops and the safety driver read
``ego_uid``, ``control_timestep`` and the snapshot builders from whatever env they are given.
Channels are numpy or torch, of one env or of a batch of them.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError
from cadenza.envs.inputs import (
    ChamberEnvCompatibilityError,
    ObservationLayoutError,
)
from cadenza.envs.spaces import sub_spaces


class ForwardingWrapper(
    gym.Wrapper[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]
):
    """A `gym.Wrapper` that answers public attributes it lacks from the env inside."""

    def __getattr__(self, name: str) -> Any:
        """Return attribute ``name`` of the inner env."""
        # Without the second test, copying or unpickling recurses: there ``env`` itself is missing.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


class ObservationWrapper(ForwardingWrapper):
    """Base of the wrappers that change observations alone."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and change its first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step and change the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.observation(observation), reward, terminated, truncated, info

    @abstractmethod
    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` changed; the argument itself does not change."""


def observation_entries(owner: str, env: gym.Env[Any, Any]) -> dict[str, gym.Space[Any]]:
    """Return the entries of the observation space of ``env``."""
    entries = sub_spaces(env.observation_space)
    if entries is None:
        raise ObservationLayoutError(
            f"{owner}: expected an env with a Dict observation space, "
            f"got {type(env.observation_space).__name__}; "
            "wrap it so that observations are keyed by name."
        )
    return entries


#: Keys from the top of an observation to one channel.
Path = tuple[str, ...]


def channel_box(owner: str, space: gym.Space[Any], path: Path) -> gym.spaces.Box[Any]:
    """Return the Box of one channel, which is a vector or a batch of vectors."""
    found: gym.Space[Any] = space
    for depth, key in enumerate(path):
        entries = sub_spaces(found)
        if entries is None or key not in entries:
            known = "no Dict" if entries is None else f"only {sorted(entries)}"
            raise ObservationLayoutError(
                f"{owner}: expected the observation space to have {'.'.join(path[: depth + 1])!r}, "
                f"got {known} there."
            )
        found = entries[key]
    if not isinstance(found, gym.spaces.Box) or len(found.shape) not in (1, 2):
        raise ObservationLayoutError(
            f"{owner}: expected {'.'.join(path)!r} to be a Box (D,) or (N, D), got {found}."
        )
    return cast("gym.spaces.Box[Any]", found)


def channel_value(owner: str, obs: Mapping[str, Any], path: Path) -> NDArray[Any]:
    """Return one channel as numpy, (D,) or (N, D)."""
    node: Any = obs
    for depth, key in enumerate(path):
        if not isinstance(node, Mapping) or key not in node:
            raise ObservationLayoutError(
                f"{owner}: expected the observation to have {'.'.join(path[: depth + 1])!r}, got "
                "none; a missing channel is never filled with zeros."
            )
        node = cast("Mapping[str, Any]", node)[key]
    value = as_array(node)
    if value.ndim not in (1, 2):
        raise ObservationLayoutError(
            f"{owner}: expected {'.'.join(path)!r} of shape (D,) or (N, D), got {value.shape}."
        )
    return value


def as_array(value: Any) -> NDArray[Any]:
    """Return an array or tensor as numpy, on the CPU."""
    torch = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def concatenated(owner: str, parts: Sequence[NDArray[Any]]) -> Float32Array:
    """Return channels side by side, float32: (D,) for one env, also where it comes as (1, D).

    Raises:
        ObservationLayoutError: Batch sizes differ.
    """
    rows = [part.reshape(1, -1) if part.ndim == 1 else part for part in parts]
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        raise ObservationLayoutError(
            f"{owner}: expected channels of one batch size, got inconsistent batch dims "
            f"{[len(row) for row in rows]}."
        )
    joined = np.concatenate(rows, axis=1, dtype=np.float32)
    return joined[0] if len(joined) == 1 else joined


def joined_space(boxes: Sequence[gym.spaces.Box[Any]]) -> gym.spaces.Box[Any]:
    """Return the space of what `concatenated` gives, unbounded."""
    width = sum(box.shape[-1] for box in boxes)
    batch = boxes[0].shape[0] if len(boxes[0].shape) == 2 else 1
    shape = (width,) if batch == 1 else (batch, width)
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


class PerAgentActionRepeatWrapper(ForwardingWrapper):
    """Let robot ``uid`` change its action only every ``action_repeat[uid]`` steps.

    Its effective rate is the env's rate divided by the count. Between changes the action submitted
    for it is ignored and its last one repeated; over N steps it changes ceil(N / count) times. The
    first action after a reset is always used.

    A safety filter decides the ego's action anew in every step, so an ego that holds its actions
    cannot be guarded; partners may hold theirs.
    """

    def __init__(self, env: gym.Env[Any, Any], action_repeat: Mapping[str, int]) -> None:
        """Wrap ``env``; robots that ``action_repeat`` does not name act on every step.

        Raises:
            ChamberEnvCompatibilityError: The action space is not a Dict.
            InputError: A count is not an integer >= 1, or a uid is not in the action space.
        """
        known = sub_spaces(env.action_space)
        if known is None:
            raise ChamberEnvCompatibilityError(
                "PerAgentActionRepeatWrapper: expected an env with a Dict action space keyed by "
                f"uid, got {type(env.action_space).__name__}."
            )
        super().__init__(env)
        self._repeat: dict[str, int] = {}
        for uid, count in action_repeat.items():
            if uid not in known:
                raise InputError(
                    f"PerAgentActionRepeatWrapper: expected uids of the action space "
                    f"{list(known)}, got {uid!r}."
                )
            self._repeat[uid] = whole_number(
                f"PerAgentActionRepeatWrapper.action_repeat[{uid!r}]", count, least=1
            )
        self._remaining: dict[str, int] = {}
        self._held: dict[str, Any] = {}

    def build_control_models(self) -> Any:
        """Return the control models of the env inside, for a filter that guards its ego.

        Raises:
            ChamberEnvCompatibilityError: The ego holds its actions: the filter's would be dropped.
        """
        uid: str = self.env.get_wrapper_attr("ego_uid")
        if self._repeat.get(uid, 1) > 1:
            raise ChamberEnvCompatibilityError(
                f"PerAgentActionRepeatWrapper: expected action_repeat[{uid!r}] = 1 with a safety "
                f"filter, got {self._repeat[uid]}: the held action would replace the filtered one; "
                "let the ego act on every step, or switch the filter off."
            )
        return self.env.get_wrapper_attr("build_control_models")()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and forget all held actions."""
        result = self.env.reset(seed=seed, options=options)
        self._remaining.clear()
        self._held.clear()
        return result

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step with each robot's new or held action; uids that ``action`` lacks stay absent.

        An action that the env refuses is not held: the wrapper is as before the call.

        Raises:
            InputError: ``action`` is not keyed by uid.
        """
        if not isinstance(action, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "PerAgentActionRepeatWrapper: expected action to map every uid to an array, got "
                f"{type(action).__name__}."
            )
        held, remaining = dict(self._held), dict(self._remaining)
        for uid, submitted in action.items():
            if remaining.get(uid, 0) == 0:
                # A copy: the caller may reuse its array before the hold ends.
                held[uid] = deepcopy(submitted)
                remaining[uid] = self._repeat.get(uid, 1)
            remaining[uid] -= 1
        result = self.env.step({uid: held[uid] for uid in action})
        self._held, self._remaining = held, remaining
        return result


class TextureFilterObsWrapper(ObservationWrapper):
    """Replace every channel of ``obs["agent"][uid]`` outside the uid's keep list by zeros.

    Shapes, dtypes and the observation space stay as they are, so a policy network need not know
    what it does not see. Kept channels are passed on unchanged, and so are robots without a keep
    list, robots whose observation is no mapping, and everything outside ``obs["agent"]``.
    """

    def __init__(self, env: gym.Env[Any, Any], keep_per_agent: Mapping[str, Iterable[str]]) -> None:
        """Wrap ``env``; an empty list in ``keep_per_agent`` blanks all channels of its robot.

        Raises:
            InputError: A keep list is a single string, names a robot the observation space does not
                hold, or a channel that robot does not have.
        """
        super().__init__(env)
        self._keep: dict[str, frozenset[str]] = {}
        robots = sub_spaces((sub_spaces(env.observation_space) or {}).get("agent"))
        for uid, names in keep_per_agent.items():
            if isinstance(names, str):
                raise InputError(
                    f"TextureFilterObsWrapper: expected a list of channels for {uid!r}, "
                    f"got the string {names!r}; write [{names!r}]."
                )
            keep = self._keep[uid] = frozenset(names)
            if robots is None:
                continue
            if uid not in robots:
                raise InputError(
                    f"TextureFilterObsWrapper: expected uids of the observation space "
                    f"{sorted(robots)}, got {uid!r}."
                )
            channels = sub_spaces(robots[uid])
            if channels is not None and (unknown := sorted(keep - channels.keys())):
                raise InputError(
                    f"TextureFilterObsWrapper: expected channels of {uid!r} among "
                    f"{sorted(channels)}, got {unknown}."
                )

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` filtered; the argument itself does not change."""
        agent = observation.get("agent")
        if not isinstance(agent, Mapping):
            return observation
        robots = cast("Mapping[str, Any]", agent)
        filtered = {uid: self._filtered(uid, channels) for uid, channels in robots.items()}
        return {**observation, "agent": filtered}

    def _filtered(self, uid: str, channels: Any) -> Any:
        keep = self._keep.get(uid)
        if keep is None or not isinstance(channels, Mapping):
            return channels
        return {
            name: value if name in keep else zeroed(f"obs.agent.{uid}.{name}", value)
            for name, value in cast("Mapping[str, Any]", channels).items()
        }


def zeroed(name: str, value: Any) -> Any:
    """Return ``value`` with every number replaced by zero; all else stays, devices too.

    ``value`` is an array, tensor, number, or a mapping, list or tuple of these, to any depth.

    Raises:
        ChamberEnvCompatibilityError: A leaf is no number: passing it on would leak what was to be
            hidden.
    """
    if isinstance(value, np.ndarray):
        return np.zeros_like(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        return {key: zeroed(f"{name}.{key}", entry) for key, entry in mapping.items()}
    if isinstance(value, list | tuple):
        entries = cast("list[Any] | tuple[Any, ...]", value)
        blank = [zeroed(f"{name}[{k}]", entry) for k, entry in enumerate(entries)]
        return blank if isinstance(entries, list) else tuple(blank)
    if isinstance(value, bool | int | float | np.number | np.bool_):
        number = cast("Any", value)
        return type(number)(0)
    torch = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    raise ChamberEnvCompatibilityError(
        f"{name}: expected arrays, tensors or numbers to blank, got {type(value).__name__}; "
        "keep this channel or remove it from the observation."
    )


#: Length and alphabet of the identity a `PartnerSpec` gives.
PARTNER_ID_LENGTH = 16
HEXADECIMAL = "0123456789abcdef"


class PartnerIdAnnotationWrapper(ObservationWrapper):
    """Add the partner's identity to every observation.

    The space gains ``meta.partner_id``, 16 hexadecimal characters; entries of an existing ``meta``
    are kept. The identity itself is not checked: `PartnerSpec` is its source.
    """

    def __init__(self, env: gym.Env[Any, Any], *, partner_id: str) -> None:
        """Wrap ``env``.

        Raises:
            ChamberEnvCompatibilityError: The observation space is not a Dict.
            InputError: ``partner_id`` is not a string.
        """
        entries = observation_entries("PartnerIdAnnotationWrapper", env)
        super().__init__(env)
        meta = sub_spaces(entries.get("meta")) or {}
        meta["partner_id"] = gym.spaces.Text(
            PARTNER_ID_LENGTH, min_length=PARTNER_ID_LENGTH, charset=HEXADECIMAL
        )
        entries["meta"] = gym.spaces.Dict(meta)
        self.observation_space = gym.spaces.Dict(entries)
        self.set_partner_id(partner_id)

    @property
    def partner_id(self) -> str:
        """Identity that the next observation carries."""
        return self._partner_id

    def set_partner_id(self, partner_id: str) -> None:
        """Change the identity from the next reset or step on; nothing is reset.

        Raises:
            InputError: ``partner_id`` is not a string.
        """
        if not isinstance(partner_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
            raise InputError(
                f"PartnerIdAnnotationWrapper: expected partner_id to be str, got {partner_id!r}."
            )
        self._partner_id = partner_id

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` with the identity; the argument itself does not change."""
        present = observation.get("meta")
        meta = dict(cast("Mapping[str, Any]", present)) if isinstance(present, Mapping) else {}
        return {**observation, "meta": {**meta, "partner_id": self._partner_id}}
