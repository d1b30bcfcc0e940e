"""No proposal asks for what the rules refuse, or for what the work could not bring."""

import json

import pytest

from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.contracts.records import Proposal
from cadenza.loop.orchestrator.proposer import Plan, bounded_proposal, strict_plan, usable
from cadenza.loop.schedule import (
    BLOCK,
    MOST_LISTED,
    attempts_within,
    bounded,
    collects,
    most_proposed,
    schedule_of,
)


def rules(limit):
    content = {} if limit is None else {"max_collect_episodes": limit}
    return Constitution(content)


def config(**changes):
    document = {"run_name": "r", "seed_dataset": "local/x", "data": {"initial_episodes": 60}}
    return LoopConfig.from_document({**document, **changes}, source="test")


LEROBOT = {"backend": "lerobot", "policy_ladder": [{"name": "act"}], "eval": {"env_type": "pusht"}}


@pytest.mark.parametrize(
    ("limit", "episodes", "attempts"),
    [
        (1000, 100, 500),  # five attempts each
        (1000, 200, 1000),
        (1000, 300, 1000),
        (1000, None, 1000),
        (65_536, 20_000, BLOCK),
        (10**9, None, BLOCK),
        (None, 300, 1500),  # the constitution refuses them, by the missing rule
        (0, 300, 1),
    ],
)
def test_attempts_stay_within_the_rule_and_the_seeds(limit, episodes, attempts):
    assert attempts_within(rules(limit), episodes) == attempts


def test_most_that_may_be_proposed_leaves_the_expert_its_failures():
    assert collects(config())
    assert most_proposed(config(), rules(1000)) == 200
    assert most_proposed(config(), rules(10**9)) == BLOCK // 5
    assert most_proposed(config(), rules(3)) == 1
    for chosen in (config(seed_root="x"), config(**LEROBOT)):
        assert not collects(chosen)
        assert most_proposed(chosen, rules(1000)) == MOST_LISTED


def test_proposal_of_anybody_is_cut_to_what_the_rules_allow():
    schedule = schedule_of(config(), rules(1000))
    wild = Proposal(action="reuse_seed", dataset="local/x", num_episodes=10**6)
    assert bounded(wild, schedule, 0).num_episodes == 200
    assert bounded(wild, schedule, 2).num_episodes == 240  # the schedule's, checked before the run
    for fine in (200, None):
        proposal = wild.model_copy(update={"num_episodes": fine})
        assert bounded(proposal, schedule, 0) == proposal


MOVES = {"learning_rate": [1e-4, 1e-2], "steps": [10, 500], "rungs": ["bc_large", "act"]}
REPLY = {"action": "reuse_seed", "learning_rate": 5.0, "steps": 1, "batch_size": 9}


def moving(**changes):
    content = {"max_train_steps": 200, "proposals": {**MOVES, **changes}}
    return schedule_of(config(), Constitution(content))


def moved(proposal):
    return (proposal.learning_rate, proposal.steps, proposal.batch_size, proposal.rung)


def test_models_may_move_what_the_rules_name_as_far_as_they_say():
    def made(plan):
        return moved(bounded_proposal(plan, moving(), 0, None))

    strict = strict_plan(json.dumps({**REPLY, "steps": 900, "rung": "bc_large"}))
    assert made(strict) == (1e-2, 200, None, "bc_large")  # no job may make more steps than 200
    on_no_rung = usable(Plan, {**REPLY, "rung": "act"})  # of the ladder
    assert made(on_no_rung) == (1e-2, 10, None, None)
    assert made(usable(Plan, {**REPLY, "rung": 3})) == (1e-2, 10, None, None)
    assert usable(Plan, {**REPLY, "action": 3}) is None
    assert json.dumps({"steps": [10, 200]})[1:-1] in moving().told_moves()
