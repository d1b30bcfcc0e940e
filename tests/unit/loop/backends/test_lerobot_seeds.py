"""What LeRobot's seeds must mean before a run, on facts as the script ``describe`` writes them."""

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.backends.lerobot_probe import require_seeds

GOOD = {"repeats": True, "differs": True}
IN_ORDER = [100, 101, 102, 103, 104]


def facts(evaluated=IN_ORDER, **tasks):
    return {"seeds": tasks or {"pusht_0": GOOD}, "evaluated_seeds": evaluated}


def test_seeds_that_choose_the_state_are_recorded_with_the_tasks_that_show_it():
    assert require_seeds(facts(b_1=GOOD, a_0=GOOD), source="f") == {
        "initial_states": "chosen by the seed, as resets of a_0, b_1 show",
        "evaluated_seeds": "start + episode, as a trial shows",
    }
    assert require_seeds(facts(None), source="f")["evaluated_seeds"] == "not known"


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"repeats": False}, "another state when it was reset from seed 1 again"),
        ({"differs": False}, "the state of seed 1 from seed 2 or 3 too"),
        ({"differs": 1}, "the state of seed 1"),
        ({"repeats": None}, "another state"),
    ],
)
def test_environment_that_does_not_follow_its_seeds_is_refused(changes, got):
    with pytest.raises(
        ConfigurationError,
        match=rf"libero_3: expected the seed to choose where an episode begins, got {got}.*\(f\); "
        r"policies could be tested on the states that they were trained on, .* Set eval.env_type",
    ):
        require_seeds(facts(libero_2=GOOD, libero_3={**GOOD, **changes}), source="f")


@pytest.mark.parametrize("seeds", [None, {}, []])
def test_environment_that_was_not_asked_is_refused(seeds):
    with pytest.raises(ConfigurationError, match="f: expected facts about the seeds of tasks"):
        require_seeds({"seeds": seeds, "evaluated_seeds": IN_ORDER}, source="f")


@pytest.mark.parametrize("evaluated", [[100, 101, 100, 101, 102], IN_ORDER[:4], "all"])
def test_evaluation_that_plays_other_seeds_is_refused(evaluated):
    with pytest.raises(ConfigurationError, match=r"lerobot-eval: expected episodes from the seeds"):
        require_seeds(facts(evaluated), source="f")
