"""What a cycle may learn from: how many episodes, and which initial states.

Collecting:  an expert may fail four times of five, and every attempt counts against the rule
             ``max_collect_episodes``; so the most is a fifth of that, or of a cycle's seeds.
Choosing:    chosen episodes are named one by one in a single argument, which Linux limits to 128
             KiB; numbers below a million take at most eight characters each.
Seeds:       initial states that policies learn from are kept from every other use of a run, where
             anybody knows them. What initial weights were trained on, and what a dataset of another
             writer began from, nobody tells; the run's events and its status then say so.
"""

from collections.abc import Sequence
from typing import Final

from cadenza.loop.agents.improve_agent import ATTEMPTS_PER_SUCCESS, attempts_for
from cadenza.loop.backends.native_files import recorded_seeds
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.constitution.rules import ProposalBounds
from cadenza.loop.contracts.records import Proposal, SeedRange
from cadenza.loop.orchestrator.machine import Notice
from cadenza.loop.orchestrator.session import RunSession
from cadenza.loop.schedule import DeterministicProposer
from cadenza.loop.seeds import BLOCK, SeedLedger, hulls

#: Most episodes that one argument names.
MOST_LISTED: Final = 16_000


def collects(config: LoopConfig) -> bool:
    """Return whether the data of a cycle is collected rather than chosen."""
    return config.backend == "native" and config.seed_root is None


def schedule_of(config: LoopConfig, rules: Constitution) -> DeterministicProposer:
    """Return the schedule of a run, within which a language model may propose."""
    data = config.data
    return DeterministicProposer(
        config.seed_dataset,
        data.initial_episodes,
        data.growth,
        data.max_episodes,
        most_proposed=most_proposed(config, rules),
        moves=moves_of(config, rules),
    )


def moves_of(config: LoopConfig, rules: Constitution) -> ProposalBounds:
    """Return what proposals of a run may move beside its data.

    No rung where a person is asked before the ladder is climbed, none that is not on it, no more
    steps than a job may make, and a step size natively alone: LeRobot's policies have their own.
    """
    moves = rules.rules.proposals or ProposalBounds()
    ladder = {rung.name for rung in config.policy_ladder}
    asked = "escalate" in config.approval.gates
    limit, steps = rules.rules.limit("max_train_steps") or 1, moves.steps
    native = config.backend == "native"
    return moves.model_copy(
        update={
            "rungs": () if asked else tuple(name for name in moves.rungs if name in ladder),
            "steps": steps and (min(steps[0], limit), min(steps[1], limit)),
            "learning_rate": moves.learning_rate if native else None,
        }
    )


def most_proposed(config: LoopConfig, rules: Constitution) -> int:
    """Return the most episodes that a proposal other than the schedule's may ask for, >= 1."""
    if not collects(config):
        return MOST_LISTED
    return max(1, attempts_within(rules, None) // ATTEMPTS_PER_SUCCESS)


def attempts_within(rules: Constitution, episodes: int | None) -> int:
    """Return how many attempts ``episodes`` successes may take, or any number of them.

    What the rule ``max_collect_episodes`` does not allow is not asked for; without that rule the
    constitution refuses the job.
    """
    attempts = BLOCK if episodes is None else attempts_for(episodes)
    limit = rules.rules.limit("max_collect_episodes")
    return attempts if limit is None else max(1, min(attempts, limit))


def bounded(proposal: Proposal, schedule: DeterministicProposer, cycle: int) -> Proposal:
    """Return ``proposal`` with no more episodes than the schedule has or anybody may ask for.

    What it moves beside the data is within its bounds, too.
    """
    proposal = schedule.within(proposal)
    most = max(schedule.scheduled_episodes(cycle) or 1, schedule.most_proposed or 1)
    asked = proposal.num_episodes
    if asked is None or asked <= most:
        return proposal
    return proposal.model_copy(update={"num_episodes": most})


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
