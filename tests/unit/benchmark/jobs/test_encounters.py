"""Who meets whom: shares of partners, names, and recordings that are what was played."""

import collections
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from cadenza.aht.config import EnvConfig
from cadenza.benchmark.builders import build_env
from cadenza.benchmark.jobs.collecting import EXPERT_NOISE
from cadenza.benchmark.jobs.encounters import (
    FOCUS_WEIGHT,
    ROOT_SEED,
    Encounters,
    chosen_partners,
    is_filtered,
    job_task,
    partner_round,
)
from cadenza.benchmark.policies import goal_pull
from cadenza.benchmark.stream_tasks import LawPolicy, swerve
from cadenza.core.errors import ConfigurationError

CROSSING = job_task("crossing")


def expert_encounters(filtered=True):
    return Encounters(
        CROSSING, filtered=filtered, make_policy=partial(LawPolicy, law=swerve, noise=EXPERT_NOISE)
    )


def test_partner_in_focus_gets_three_episodes_for_one():
    counts = collections.Counter(partner_round(("a", "b", "c"), ("c",)))
    assert counts == {"a": 1, "b": 1, "c": FOCUS_WEIGHT} == {"a": 1, "b": 1, "c": 3}


@pytest.mark.parametrize("focus", [(), ("b", "a")])
def test_focus_on_nobody_or_everybody_gives_equal_shares(focus):
    assert partner_round(("a", "b"), focus) == ("a", "b")


def test_suites_of_partners():
    assert chosen_partners(CROSSING, ()) == chosen_partners(CROSSING, ("default",))
    assert chosen_partners(CROSSING, ("default",)) == CROSSING.partners
    leaving = chosen_partners(CROSSING, ("leaving_way",))
    assert set(CROSSING.partners) - set(leaving) == {"crossing_chaser"}


BARE = CROSSING.model_copy(update={"supports_safety": False})


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        (lambda: partner_round(("a", "b"), ("z",)), r"--focus: expected partners.*\(a, b\), got '"),
        (lambda: partner_round(("a", "b"), ("a", "a")), "--focus: expected each partner once"),
        (lambda: chosen_partners(CROSSING, ("nobody",)), "--partners: expected default, .* got 'n"),
        (lambda: chosen_partners(CROSSING, CROSSING.partners[:1] * 2), "expected each partner onc"),
        (lambda: job_task("nothing"), "--task: Unknown env task 'nothing'"),
        (lambda: job_task("mpe_cooperative_push"), "expected a task with a success predicate"),
        (lambda: is_filtered("true", CROSSING), "expected on or off, got 'true'"),
        (lambda: Encounters(BARE, filtered=True, make_policy=lambda seat: None), "--filter: expec"),
    ],
)
def test_choices_that_do_not_exist_are_refused(attempt, told):
    with pytest.raises(ConfigurationError, match=told):
        attempt()


def test_filter_is_on_or_off_or_on_where_the_task_has_one():
    assert is_filtered("on", CROSSING)
    assert not is_filtered("off", CROSSING)
    assert is_filtered(None, CROSSING)
    assert not is_filtered(None, BARE)


def test_episode_does_not_depend_on_those_before_it():
    with expert_encounters() as first, expert_encounters() as second:
        first.play("crossing_wanderer", 1)
        result, recording = first.play("crossing_wanderer", 7)
        again, repeated = second.play("crossing_wanderer", 7)
    assert result == again
    assert np.array_equal(recording.states, repeated.states)
    assert np.array_equal(recording.actions, repeated.actions)


def test_recording_replays_to_the_same_states():
    # With the partner standing still, the recorded actions alone determine what the ego sees.
    with expert_encounters() as encounters:
        result, recording = encounters.play("crossing_stationary", 3)
    scene = EnvConfig(task="crossing", episode_length=CROSSING.episode_length)
    with closing(build_env(scene, root_seed=ROOT_SEED)) as env:
        states = [env.reset(seed=3)[0]["agent"]["ego"]["state"]]
        still = np.zeros(2, dtype=np.float32)
        for action in recording.actions:
            step = env.step({"ego": action, "partner": still})
            states.append(step[0]["agent"]["ego"]["state"])
    assert len(recording.rewards) == result.n_steps
    assert len(recording.states) == result.n_steps + 1
    assert sum(recording.rewards) == pytest.approx(result.episode_return)
    assert recording.terminated
    assert np.array_equal(np.stack(states), np.stack(recording.states))


def test_filter_prevents_contacts_of_an_expert_that_ignores_the_chaser():
    contacts = {}
    for filtered in (True, False):
        with Encounters(
            CROSSING,
            filtered=filtered,
            make_policy=partial(LawPolicy, law=goal_pull, noise=EXPERT_NOISE),
        ) as encounters:
            played = [encounters.play("crossing_chaser", seed)[0] for seed in range(4)]
        contacts[filtered] = sum(bool(result.contact) for result in played)
    assert contacts == {True: 0, False: 4}


def test_features_and_rate_are_those_of_the_environment():
    with expert_encounters() as encounters:
        assert encounters.features() == {"observation.state": [10], "action": [2]}
        assert encounters.control_rate_hz() == 20
