"""What environments remember beyond their episodes, read from them and put back.

Seen:    of an environment and of every wrapper around it, the state it offers (`state_dict` and
         `load_state_dict`), or else numbers, texts, arrays, generators and collections of such in
         its attributes and in those of objects of its own package: a curriculum's level, a
         normalizer's moments. What is as it was made is left out.
Unseen:  class and global variables, compiled simulators, objects that were not there when the
         environment was made, arrays above `MAX_BYTES`.
"""

import math
import random
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from cadenza.core.environments import CheckedEnv
from cadenza.core.errors import ConfigurationError
from cadenza.learn.env.parallel_team import ParallelTeam

#: Largest array that is read: it is copied at the start of every episode.
MAX_BYTES: Final = 2**20
#: Attributes that are no state: what is wrapped is a layer of its own, and spaces that nobody
#: seeded would give every run other bytes.
_SKIPPED: Final = ("env", "envs", "spec", "metadata", "observation_space", "action_space")
#: Layers that are passed over: their own attributes are those of the running step.
_STEPPERS: Final = (SyncVectorEnv, AsyncVectorEnv, CheckedEnv, ParallelTeam)
#: Ends the name of what is in an object that took another's place: such are only compared.
_REPLACED: Final = "*"
#: Kinds of values, typed Any so that none is narrowed to one of unknown elements.
_ARRAYS: Final[Any] = (np.ndarray, np.generic)
_CONTAINERS: Final[Any] = (list, tuple, dict)
_TENSOR: Final[Any] = torch.Tensor
_DICT: Final[Any] = dict
_NUMPY: Final[Any] = np.random.Generator
_LEGACY: Final[Any] = np.random.RandomState
_TORCH: Final[Any] = torch.Generator
_RANDOM: Final[Any] = random.Random
_BIT_GENERATORS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        np.random.MT19937,
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.Philox,
        np.random.SFC64,
    )
}
_COLLECTIONS: Final[dict[str, Any]] = {"list": list, "tuple": tuple, "set": set, "deque": deque}


class _Place(NamedTuple):
    """An attribute, "" for the whole owner, and what is there in plain values."""

    name: str
    owner: Any
    attribute: str
    plain: Any


class _NotPlainError(Exception):
    """A value that no file holds."""


class HeldState:
    """Remembers an environment as it was made; layers of type ``until`` and below are left out."""

    def __init__(self, env: Any, *, until: type | None = None) -> None:
        self._env, self._until = env, until
        self._objects: dict[str, int] = {}  # what was at each path first, by identity
        self._owners: dict[str, Any] = {}  # what is there
        self._made = {place.name: place.plain for place in self._places()}
        self._objects = {path: id(owner) for path, owner in self._owners.items()}

    def read(self) -> dict[str, Any]:
        """Return, by place, what has changed since: plain values and tuples of them."""
        now = {place.name: place.plain for place in self._places()}
        made = self._made
        return {n: p for n, p in now.items() if n not in made or p != made[n]}

    def put_back(self, held: Mapping[str, Any]) -> list[str]:
        """Put back what `read` returned, all else as it was made; return what it fails for."""
        wanted = self._made | dict(held)
        for place in self._places():
            if place.plain != wanted.get(place.name, place.plain):
                _put(place.owner, place.attribute, _value(wanted[place.name]))
        now = {place.name.removesuffix(_REPLACED): place.plain for place in self._places()}
        left: list[str] = []
        for key, plain in held.items():
            name = key.removesuffix(_REPLACED)
            path, _, attribute = name.rpartition(".")
            if name not in now and key == name and path in self._owners:  # made by the first reset
                _put(self._owners[path], attribute, _value(plain))
            elif name not in now or now[name] != plain:
                left.append(name.partition(".")[2])
        return left

    def _places(self) -> Iterator[_Place]:
        seen: set[int] = set()
        self._owners.clear()
        for number, layer in enumerate(_layers(self._env, self._until)):
            path = f"{number}.{type(layer).__name__}"
            yield from self._parts(path, layer, _package(layer), seen)

    def _parts(
        self, path: str, owner: Any, package: str, seen: set[int], suffix: str = ""
    ) -> Iterator[_Place]:
        """Yield the places within ``owner``, each object once."""
        if id(owner) in seen:
            return
        seen.add(id(owner))
        self._owners[path] = owner
        first = self._objects.get(path)
        if self._objects and first is None:  # the result of a step, say
            return
        if first not in (None, id(owner)):
            suffix = _REPLACED
        if _offers_state(owner):
            yield _Place(path + suffix, owner, "", _offered(owner))
            return
        for name, value in _attributes(owner):
            place = f"{path}.{name}"
            try:
                plain = _plain(value)
            except (_NotPlainError, RecursionError):
                parts: Any = {"": value}
                if isinstance(value, _CONTAINERS):
                    pairs: Any = value.items() if isinstance(value, _DICT) else enumerate(value)
                    parts = dict(pairs)
                for key, part in list(parts.items()):
                    is_own = _package(part) == package
                    if not isinstance(part, Enum) and (is_own or _offers_state(part)):
                        inside = f"{place}.{key}".strip(".")
                        yield from self._parts(inside, part, package, seen, suffix)
            else:
                if id(value) not in seen or not isinstance(plain, tuple):
                    yield _Place(place + suffix, owner, name, plain)
                seen.add(id(value))


def _layers(env: Any, until: type | None) -> Iterator[Any]:
    """Yield an environment's wrappers, outermost first, and the environment."""
    if until is not None and isinstance(env, until):
        return
    if type(env) not in _STEPPERS:
        yield env
    inside = getattr(env, "__dict__", {})
    for each in env.envs if isinstance(env, SyncVectorEnv | ParallelTeam) else [inside.get("env")]:
        if each is not None:
            yield from _layers(each, until)


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    slots = [name for kind in type(owner).__mro__ for name in vars(kind).get("__slots__", ())]
    for name in (*getattr(owner, "__dict__", ()), *slots):
        if name not in _SKIPPED and not name.startswith("__") and hasattr(owner, name):
            yield name, getattr(owner, name)


def _package(value: Any) -> str:
    return str(getattr(cast("Any", type)(value), "__module__", "")).partition(".")[0]


def _offers_state(value: Any) -> bool:
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(cast("Any", type)(value), name, None)) for name in names)


def _offered(owner: Any) -> Any:
    try:
        return _plain(dict(owner.state_dict()), largest=math.inf)
    except _NotPlainError as error:
        raise ConfigurationError(
            f"{type(owner).__name__}.state_dict: expected tensors, arrays, plain values and "
            "collections of such, got others, which no file holds."
        ) from error


def _put(owner: Any, attribute: str, new: Any) -> None:
    """Set the place to ``new`` where it can be set; `put_back` finds out whether it was."""
    old: Any = getattr(owner, attribute, None)
    try:
        if not attribute:
            owner.load_state_dict(new)
        elif isinstance(old, _ARRAYS[:1]) and old.shape == np.shape(new) and old.flags.writeable:
            old[...] = new  # others may have views of it
        else:
            setattr(owner, attribute, new)
    except (AttributeError, TypeError, ValueError):  # e.g. frozen
        return


def _plain(value: Any, largest: float = MAX_BYTES) -> Any:
    """Return ``value`` as a plain value, or as its kind and tuples of such."""
    own = cast("Any", type)(value)
    if value is None or own in (bool, str) or (own is float and not math.isnan(value)):
        return value
    if own is int:
        return value if abs(value) < 2**63 else ("int", str(value))
    if isinstance(value, _TENSOR) and value.nbytes <= largest:
        return ("tensor", _plain(value.detach().cpu().numpy(), largest))
    if isinstance(value, _ARRAYS) and value.nbytes <= largest and not value.dtype.hasobject:
        return ("array", value.dtype.str, value.shape, value.tobytes().hex())
    if isinstance(value, _NUMPY) and type(value.bit_generator).__name__ in _BIT_GENERATORS:
        return ("numpy", _plain(value.bit_generator.state))
    if isinstance(value, _LEGACY):
        return ("legacy", _plain(value.get_state(legacy=False)))
    if isinstance(value, _TORCH) and value.device.type == "cpu":
        return ("torch", _plain(value.get_state()))
    if isinstance(value, _RANDOM):
        return ("random", _plain(value.getstate()))
    if isinstance(value, _DICT):
        pairs = ((_plain(key), _plain(item, largest)) for key, item in value.items())
        return ("dict", *pairs)
    for name, kind in _COLLECTIONS.items():
        if own is kind:
            items = sorted(value, key=repr) if kind is set else value
            return (name, *(_plain(item, largest) for item in items))
    raise _NotPlainError


def _value(plain: Any) -> Any:
    """Return what `_plain` was given."""
    match plain:
        case ("int", digits):
            return int(digits)
        case ("tensor", content):
            return torch.from_numpy(np.array(_value(content)))  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        case ("array", dtype, shape, content):
            flat = np.frombuffer(bytes.fromhex(content), np.dtype(dtype))
            return flat.reshape(shape).copy()[()]
        case ("dict", *pairs):
            return {_value(key): _value(item) for key, item in pairs}
        case ("numpy", content):
            state = _value(content)
            bits = _BIT_GENERATORS[state["bit_generator"]](0)
            bits.state = state
            return np.random.Generator(bits)
        case ("legacy", content):
            legacy = np.random.RandomState(0)
            legacy.set_state(_value(content))
            return legacy
        case ("torch", content):
            return torch.Generator().set_state(_value(content))
        case ("random", content):
            generator = random.Random(0)  # noqa: S311 -- no secret
            generator.setstate(_value(content))
            return generator
        case (kind, *items):
            return _COLLECTIONS[cast("str", kind)](map(_value, items))
        case _:
            return plain
