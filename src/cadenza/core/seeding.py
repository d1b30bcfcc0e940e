"""Named random substreams: the only source of randomness in the package.

Derivation:  key = BLAKE2b(utf8(name), 16 bytes) read as two big-endian uint64;
             SeedSequence(entropy=root_seed, spawn_key=key); PCG64 through `default_rng`.
Promise:     equal (name, root_seed) give byte-identical draws on every machine and in every
             process; a different name or root gives an independent stream.
"""

from dataclasses import dataclass
from hashlib import blake2b
from numbers import Integral
from typing import Final

import numpy as np

from cadenza.core.errors import InputError

#: Integer seeds handed to simulators and torch lie in [0, 2^31 - 1): valid for every library.
INTEGER_SEED_BOUND: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Substream:
    """Identity of one random stream; equal identities compare and hash equal.

    Attributes:
        name: Purpose of the stream, e.g. ``"training.episode.3"``.
        root_seed: Experiment seed, >= 0.
        spawn_key: Words that select the stream under the root; children append their index.
    """

    name: str
    root_seed: int
    spawn_key: tuple[int, ...]

    @property
    def seed_sequence(self) -> np.random.SeedSequence:
        """Fresh seed sequence of this stream."""
        return np.random.SeedSequence(entropy=self.root_seed, spawn_key=self.spawn_key)

    def default_rng(self) -> np.random.Generator:
        """Return a fresh generator; two calls give identical draws."""
        return np.random.default_rng(self.seed_sequence)

    def integer_seed(self) -> int:
        """Return the stream's first integer in [0, 2^31 - 1), for libraries that want an int."""
        return int(self.default_rng().integers(0, INTEGER_SEED_BOUND))

    def child(self, index: int) -> "Substream":
        """Return sub-stream ``index``; a pure function, unlike numpy's counting ``spawn``.

        Raises:
            InputError: ``index`` is negative or not an integer.
        """
        number = _checked_integer(index, "Substream.child: index")
        return Substream(f"{self.name}[{number}]", self.root_seed, (*self.spawn_key, number))

    def spawn(self, n: int) -> "list[Substream]":
        """Return children 0 ... n-1; equal calls return equal children.

        Raises:
            InputError: ``n`` is negative or not an integer.
        """
        count = _checked_integer(n, "Substream.spawn: n")
        return [self.child(index) for index in range(count)]


def derive_substream(name: str, *, root_seed: int = 0) -> Substream:
    """Return the stream that ``name``, its purpose, selects under ``root_seed``, the experiment's.

    Raises:
        InputError: Empty name, or a root seed that is negative or not an integer.
    """
    if not name:
        raise InputError("derive_substream: expected a non-empty name, got ''.")
    root = _checked_integer(root_seed, f"derive_substream({name!r}): root_seed")
    digest = blake2b(name.encode("utf-8"), digest_size=16).digest()
    key = (int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big"))
    return Substream(name, root, key)


def _checked_integer(value: object, label: str) -> int:
    """Return ``value`` as a Python int >= 0; bools and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise InputError(f"{label}: expected an integer >= 0, got {value!r}.")
    return int(value)
