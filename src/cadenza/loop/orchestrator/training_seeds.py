"""Initial states that policies learn from: kept from every other use of a run, where anybody knows.

Limits:  what initial weights were trained on, and what a dataset of another writer began from, is
         told by nobody; the run's events and its status then say so.
"""

from collections.abc import Sequence

from cadenza.loop.backends.native_files import recorded_seeds
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import SeedRange
from cadenza.loop.orchestrator.proposal_bounds import collects
from cadenza.loop.orchestrator.session import RunSession
from cadenza.loop.orchestrator.transitions import Notice
from cadenza.loop.seeds import BLOCK, SeedLedger, hulls


def seeds_of_seed_data(config: LoopConfig) -> tuple[SeedRange, ...] | None:
    """Return ranges that hold the initial states of the seed dataset; None if nobody knows them.

    Raises:
        IntegrityError: What it says about its episodes is damaged.
    """
    if config.backend != "native" or config.seed_root is None:
        return None  # LeRobot's datasets do not say how their episodes began
    seeds = recorded_seeds(config.seed_root)
    return None if seeds is None else hulls(seeds)


def reserve_training_seeds(session: RunSession, config: LoopConfig) -> SeedRange:
    """Return the initial states to collect from; they, or the seed dataset's, are reserved.

    Raises:
        SeedOverlapError: The run uses some of them for something else.
        RecordConflictError: The seed dataset was another one in an earlier cycle.
        IntegrityError: What it says about its episodes is damaged.
    """
    # the first cycle's block for the whole run: more episodes then extend earlier ones
    block = SeedLedger(config.seed).range("data", 0, count=BLOCK)
    if collects(config):
        return session.reserve("data", block, cycle=0)
    known = seeds_of_seed_data(config)
    for number, seeds in enumerate(known or ()):
        session.reserve("seed_data", seeds, look=number, cycle=0)
    if session.state.cycle == 0:
        session.emit(_seen(known))
    return block


def _seen(known: Sequence[SeedRange] | None) -> Notice:
    """Return the event that tells the initial states of the seed dataset."""
    payload: dict[str, object] = {"seeds": "unknown"}
    if known is not None:
        payload = {"seeds": [[one.start, one.start + one.count - 1] for one in known]}
    return Notice(stage="collect", kind="seed_data_seeds", cycle=0, payload=payload)
