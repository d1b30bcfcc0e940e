"""Which episodes a cycle takes from a seed dataset, and which results add up."""

from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.backends.base import SeedRange
from cadenza.loop.backends.native_episodes import outcomes_of, selected_episodes
from cadenza.loop.backends.native_files import SeedPage

#: Partner of each of twelve episodes.
PAGE = SeedPage(("a", "b", "c") * 4, 12)


def test_without_focus_the_first_episodes_are_taken():
    assert selected_episodes(PAGE, 5, ()) == (0, 1, 2, 3, 4)
    assert selected_episodes(PAGE, 5, ("stranger",)) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("count", [None, 12, 100])
def test_whole_dataset_needs_no_list(count):
    assert selected_episodes(PAGE, count, ("a",)) is None


def test_focus_takes_three_for_one():
    # Round 0 takes b's 1, 4, 7 beside 0 and 2; round 1 a's 3, c's 5 and b's last, 10.
    assert selected_episodes(PAGE, 5, ("b",)) == (0, 1, 2, 4, 7)
    assert selected_episodes(PAGE, 8, ("b",)) == (0, 1, 2, 3, 4, 5, 7, 10)


def test_task_filter_takes_its_partners_alone():
    assert selected_episodes(PAGE, None, (), ("c",)) == (2, 5, 8, 11)
    assert selected_episodes(PAGE, 3, (), ("a", "c")) == (0, 2, 3)
    assert selected_episodes(PAGE, 4, ("c",), ("a", "c")) == (0, 2, 5, 8)


def test_task_filter_on_a_stranger_is_refused():
    with pytest.raises(ConfigurationError, match=r"data.task_filter: .*\(a, b, c\), got 'z'"):
        selected_episodes(PAGE, 3, (), ("z",))
    with pytest.raises(ConfigurationError, match="it names none"):
        selected_episodes(SeedPage((), 3), 3, (), ("z",))


def test_dataset_of_another_writer_is_taken_in_order():
    assert selected_episodes(SeedPage((), 5), 2, ("a",)) == (0, 1)


def facts(**changes):
    episodes = [
        {"partner": "a", "seed": 7, "success": True, "return": 1.5},
        {"partner": "b", "seed": 8, "success": False, "return": -1.0},
    ]
    figures = {
        "overall": {"n_episodes": 2, "success_rate": 0.5},
        "per_task": {
            "a": {"n_episodes": 1, "success_rate": 1.0},
            "b": {"n_episodes": 1, "success_rate": 0.0},
        },
        "episodes": episodes,
    }
    return figures | changes


def test_outcomes_are_the_episodes_played():
    outcomes = outcomes_of(facts(), SeedRange(start=7, count=2), source=Path("x"))
    assert [(o.task, o.seed, o.success, o.score) for o in outcomes] == [
        ("a", 7, True, 1.5),
        ("b", 8, False, -1.0),
    ]


@pytest.mark.parametrize(("start", "count"), [(6, 2), (7, 3), (7, 1)])
def test_other_seeds_are_refused(start, count):
    with pytest.raises(IntegrityError, match=f"expected the seeds {start} to {start + count - 1}"):
        outcomes_of(facts(), SeedRange(start=start, count=count), source=Path("x"))


@pytest.mark.parametrize(
    "changes",
    [
        {"overall": {"n_episodes": 2, "success_rate": 1.0}},
        {"overall": {"n_episodes": 3, "success_rate": 0.5}},
        {"per_task": {"a": {"n_episodes": 1, "success_rate": 0.0}}},
        {"per_task": {"c": {"n_episodes": 1, "success_rate": 1.0}}},
    ],
)
def test_figures_that_do_not_follow_are_refused(changes):
    with pytest.raises(IntegrityError, match="that follow from the episodes"):
        outcomes_of(facts(**changes), SeedRange(start=7, count=2), source=Path("x"))
