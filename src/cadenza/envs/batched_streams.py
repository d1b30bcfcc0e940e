"""First uniform draws of many named substreams at once, with the bytes of one at a time.

`named_uniforms` equals, row by row,

    derive_substream(f"{prefix}{index}", root_seed=root).default_rng().random(count)

but runs numpy's seeding and generator as array arithmetic: opening thousands of generators in a
Python loop costs more than stepping thousands of environments. `counter_uniforms` draws from a
counter-based generator instead, which needs no seeding at all; it is a different stream.

Source:  SeedSequence: numpy/random/bit_generator.pyx, after M. E. O'Neill, "Simple portable C++
         seed entropy"; PCG64: M. E. O'Neill, HMC-CS-2014-0905 (XSL-RR 128/64); Philox4x64-10:
         J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
Axes:    N = rows (one substream each), K = draws per row.
Arithmetic: unsigned integers wrap on purpose (modulo 2^32 and 2^64).
"""

from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream

Words32: TypeAlias = NDArray[np.uint32]
Words64: TypeAlias = NDArray[np.uint64]

_POOL_SIZE: Final = 4
_MASK32: Final = 0xFFFFFFFF
_INIT_A: Final = 0x43B0D7E5
_MULT_A: Final = 0x931E8875
_INIT_B: Final = 0x8B51F9DD
_MULT_B: Final = 0x58F38DED
_MIX_LEFT: Final = np.uint32(0xCA01F9DD)
_MIX_RIGHT: Final = np.uint32(0x4973F715)
_HALF_WORD: Final = np.uint32(16)

#: Multiplier of PCG64's linear congruential step, high and low word.
_PCG_HIGH: Final = np.uint64(0x2360ED051FC65DA4)
_PCG_LOW: Final = np.uint64(0x4385DF649FCCF645)

#: Philox4x64-10: multipliers, key increments and rounds.
_PHILOX_M0: Final = np.uint64(0xD2E7470EE14C6C93)
_PHILOX_M1: Final = np.uint64(0xCA5A826395121157)
_PHILOX_W0: Final = np.uint64(0x9E3779B97F4A7C15)
_PHILOX_W1: Final = np.uint64(0xBB67AE8584CAA73B)
_PHILOX_ROUNDS: Final = 10

_LOW32: Final = np.uint64(_MASK32)
_32: Final = np.uint64(32)
#: A double in [0, 1) is the top 53 bits of a word times 2^-53.
_DROPPED_BITS: Final = np.uint64(11)
_DOUBLE_STEP: Final = 1.0 / 9007199254740992.0


def named_uniforms(
    prefix: str, indices: NDArray[np.int64], *, root_seed: int, count: int
) -> FloatArray:
    """Return the first ``count`` uniform draws in [0, 1) of the substreams ``f"{prefix}{index}"``.

    ``indices`` has the shape (N,), the draws (N, K).
    """
    base = blake2b(prefix.encode("utf-8"), digest_size=16)
    digests: list[bytes] = []
    for index in indices.tolist():
        digest = base.copy()
        digest.update(b"%d" % index)
        digests.append(digest.digest())
    keys = np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64).reshape(-1, 2)
    draws = _pcg64_doubles(_seed_words(root_seed, keys), count)
    # A key below 2^32 is seeded with fewer words; one in 2^31 rows, so it may be slow.
    for row in np.flatnonzero((keys <= _LOW32).any(axis=1)).tolist():
        stream = derive_substream(f"{prefix}{indices[row]}", root_seed=root_seed)
        draws[row] = stream.default_rng().random(count)
    return draws


def counter_uniforms(
    name: str,
    rows: NDArray[np.int64],
    episodes: NDArray[np.int64],
    *,
    root_seed: int,
    count: int,
) -> FloatArray:
    """Return draws of a counter-based generator, keyed by experiment and row, counted by episode.

    Row (i, e) equals ``Generator(Philox(key=[k, i], counter=[0, e, 0, 0])).random(count)`` with k
    the first word of the substream ``name`` under ``root_seed``.

    Args:
        name: Purpose of the draws.
        rows: Environment numbers i, shape (N,).
        episodes: Episode numbers e, shape (N,).
        root_seed: Experiment seed, >= 0.
        count: Draws per row, K.

    Returns:
        Uniform draws in [0, 1), shape (N, K).
    """
    stream = derive_substream(name, root_seed=root_seed)
    key = stream.seed_sequence.generate_state(1, np.uint64)[0]
    words: list[Words64] = []
    for block in range(-(-count // 4)):
        counter = (
            np.full(rows.shape, block + 1, np.uint64),
            episodes.astype(np.uint64),
            np.zeros(rows.shape, np.uint64),
            np.zeros(rows.shape, np.uint64),
        )
        words.extend(_philox_block(counter, key, rows.astype(np.uint64)))
    return np.stack([_doubles(word) for word in words[:count]], axis=1)


def _seed_words(root_seed: int, keys: Words64) -> tuple[Words64, Words64, Words64, Words64]:
    """Return ``SeedSequence(root_seed, spawn_key=key).generate_state(4, uint64)`` per key.

    Args:
        root_seed: Entropy, >= 0.
        keys: Spawn keys of two words above 2^32 - 1 each, shape (N, 2).
    """
    entropy = _words32(root_seed)
    entropy += [0] * (_POOL_SIZE - len(entropy))
    pool, constant = _mixed_pool(entropy)
    # The spawn key follows, low half of each word first.
    for word in (keys[:, 0], keys[:, 1]):
        for half in ((word & _LOW32).astype(np.uint32), (word >> _32).astype(np.uint32)):
            for slot in range(_POOL_SIZE):
                hashed, constant = _hashed(half, constant)
                pool[slot] = _mixed(pool[slot], hashed)
    constant = _INIT_B
    state: list[Words64] = []
    for position in range(2 * _POOL_SIZE):
        word32 = pool[position % _POOL_SIZE] ^ np.uint32(constant)
        constant = constant * _MULT_B & _MASK32
        word32 = word32 * np.uint32(constant)
        word32 = word32 ^ (word32 >> _HALF_WORD)
        state.append(word32.astype(np.uint64))
    low, high = state[0::2], state[1::2]
    first, second, third, fourth = (lo | (hi << _32) for lo, hi in zip(low, high, strict=True))
    return first, second, third, fourth


def _mixed_pool(entropy: list[int]) -> tuple[list[Words32], int]:
    """Return SeedSequence's pool after the entropy words, and the hash constant reached."""
    words = [np.full(1, word, np.uint32) for word in entropy]
    constant = _INIT_A
    pool: list[Words32] = []
    for word in words[:_POOL_SIZE]:
        hashed, constant = _hashed(word, constant)
        pool.append(hashed)
    for source in range(_POOL_SIZE):
        for target in range(_POOL_SIZE):
            if source != target:
                hashed, constant = _hashed(pool[source], constant)
                pool[target] = _mixed(pool[target], hashed)
    for word in words[_POOL_SIZE:]:
        for target in range(_POOL_SIZE):
            hashed, constant = _hashed(word, constant)
            pool[target] = _mixed(pool[target], hashed)
    return pool, constant


def _hashed(value: Words32, constant: int) -> tuple[Words32, int]:
    following = constant * _MULT_A & _MASK32
    product = (value ^ np.uint32(constant)) * np.uint32(following)
    return product ^ (product >> _HALF_WORD), following


def _mixed(x: Words32, y: Words32) -> Words32:
    result = x * _MIX_LEFT - y * _MIX_RIGHT
    return result ^ (result >> _HALF_WORD)


def _words32(value: int) -> list[int]:
    """Return ``value`` as little-endian 32-bit words, at least one."""
    words = [value & _MASK32]
    while value := value >> 32:
        words.append(value & _MASK32)
    return words


def _pcg64_doubles(seed: tuple[Words64, Words64, Words64, Words64], count: int) -> FloatArray:
    """Return the first doubles of PCG64 generators, shape (N, K).

    Args:
        seed: Words of the initial state (high, low) and of the stream (high, low), shape (N,) each.
        count: Draws per generator, K.
    """
    start_high, start_low, stream_high, stream_low = seed
    one, top = np.uint64(1), np.uint64(63)
    step = ((stream_high << one) | (stream_low >> top), (stream_low << one) | one)
    # Seeding: from state 0, step, add the initial state, step. The first step gives the increment.
    state = _pcg_step(_sum128(step, (start_high, start_low)), step)
    draws = np.empty((start_high.size, count), dtype=np.float64)
    for column in range(count):
        state = _pcg_step(state, step)
        high, low = state
        folded, turn = high ^ low, high >> np.uint64(58)
        word = (folded >> turn) | (folded << ((np.uint64(64) - turn) & top))
        draws[:, column] = _doubles(word)
    return draws


def _pcg_step(
    state: tuple[Words64, Words64], increment: tuple[Words64, Words64]
) -> tuple[Words64, Words64]:
    high, low = state
    product_high, product_low = _product128(low, _PCG_LOW)
    product_high = product_high + high * _PCG_LOW + low * _PCG_HIGH
    return _sum128((product_high, product_low), increment)


def _sum128(x: tuple[Words64, Words64], y: tuple[Words64, Words64]) -> tuple[Words64, Words64]:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < x[1]).astype(np.uint64), low


def _product128(x: Words64, constant: np.uint64) -> tuple[Words64, Words64]:
    """Return high and low word of ``x * constant``."""
    constant_low, constant_high = constant & _LOW32, constant >> _32
    x_low, x_high = x & _LOW32, x >> _32
    cross = x_high * constant_low + ((x_low * constant_low) >> _32)
    middle = x_low * constant_high + (cross & _LOW32)
    return x_high * constant_high + (cross >> _32) + (middle >> _32), x * constant


def _philox_block(
    counter: tuple[Words64, Words64, Words64, Words64], key: np.uint64, rows: Words64
) -> tuple[Words64, Words64, Words64, Words64]:
    """Return the four output words of one Philox4x64-10 block per row."""
    c0, c1, c2, c3 = counter
    k0, k1 = np.full(rows.shape, key, np.uint64), rows
    for _ in range(_PHILOX_ROUNDS):
        high0, low0 = _product128(c0, _PHILOX_M0)
        high1, low1 = _product128(c2, _PHILOX_M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _PHILOX_W0, k1 + _PHILOX_W1
    return c0, c1, c2, c3


def _doubles(words: Words64) -> FloatArray:
    return (words >> _DROPPED_BITS).astype(np.float64) * _DOUBLE_STEP
