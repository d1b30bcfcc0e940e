"""Which initial states a step of a run may use: no purpose ever sees a seed of another.

Seed data: a dataset that the run starts from brings seeds of its own. Where it names them they are
          kept from every purpose, as ranges that `hulls` makes of them.

Layout:   purpose p owns the seeds [p 2^28, (p + 1) 2^28), cut into 4096 blocks of 2^16; a cycle
          owns one block of each purpose, the next cycle the next one. The run's seed picks the
          first.
Promise:  ranges of different purposes or cycles are disjoint for all cycles below 4096; all seeds
          are below 2^30, which every simulator accepts.
Limits:   runs of different seeds may share initial states.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.loop.contracts.records import SeedRange

#: What initial states are used for: collecting data, harvesting the policy's own successes,
#: choosing between a candidate and its adapted copy, and comparing it with the reference.
Purpose: TypeAlias = Literal["data", "harvest", "select", "compare"]

#: What seeds are reserved for: a purpose of the run, or because its seed dataset has them.
SeedUse: TypeAlias = Purpose | Literal["seed_data"]

#: Seeds of one purpose.
REGION: Final = 2**28
#: Seeds of one purpose in one cycle; one episode needs one.
BLOCK: Final = 2**16
#: Cycles before the blocks of a region repeat.
MAX_CYCLES: Final = REGION // BLOCK

_PURPOSES: Final[tuple[str, ...]] = get_args(Purpose)


@dataclass(frozen=True, slots=True)
class SeedLedger:
    """Seeds of one run.

    Attributes:
        seed: Root seed of the run, >= 0.
    """

    seed: int

    def range(self, purpose: Purpose, cycle: int, *, count: int, skip: int = 0) -> SeedRange:
        """Return ``count`` seeds of a purpose in a cycle.

        Args:
            purpose: What they are for.
            cycle: The cycle, in 0..4095.
            count: How many, >= 1.
            skip: Seeds of the same purpose and cycle that were used before, as by earlier looks.

        Raises:
            InputError: Unknown purpose, cycle out of range, or more seeds than the block holds.
        """
        if purpose not in _PURPOSES:
            raise InputError(
                f"SeedLedger: expected a purpose of {', '.join(_PURPOSES)}, got {purpose!r}."
            )
        if not 0 <= cycle < MAX_CYCLES:
            raise InputError(f"SeedLedger: expected a cycle in 0..{MAX_CYCLES - 1}, got {cycle}.")
        if count < 1 or skip < 0 or skip + count > BLOCK:
            raise InputError(
                f"SeedLedger: expected count >= 1, skip >= 0 and at most {BLOCK} {purpose} seeds "
                f"per cycle, got {count} after {skip}; ask for fewer episodes."
            )
        block = (self._first_block() + cycle) % MAX_CYCLES
        start = _PURPOSES.index(purpose) * REGION + block * BLOCK + skip
        return SeedRange(start=start, count=count)

    def _first_block(self) -> int:
        """Return the block of cycle 0."""
        stream = derive_substream("loop.seed_blocks", root_seed=self.seed)
        return stream.integer_seed() % MAX_CYCLES


def hulls(seeds: Iterable[int]) -> tuple[SeedRange, ...]:
    """Return ranges that hold ``seeds``, one in each block that has some, ascending.

    A use of a block begins at its first seed, so it meets such a range only if it meets a seed.
    """
    ends: dict[int, tuple[int, int]] = {}
    for seed in seeds:
        first, last = ends.get(seed // BLOCK, (seed, seed))
        ends[seed // BLOCK] = min(first, seed), max(last, seed)
    return tuple(
        SeedRange(start=first, count=last - first + 1) for _, (first, last) in sorted(ends.items())
    )
