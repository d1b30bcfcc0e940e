"""Which episodes a cycle takes from a seed dataset, and which results add up."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import ConfigurationError, IntegrityError, UnknownNameError
from cadenza.loop.backends.native import (
    PartnerFilter,
    SeedPage,
    outcomes_of,
    selected_episodes,
)
from cadenza.loop.contracts.records import SeedRange

#: Partner of each of twelve episodes.
PAGE = SeedPage(("a", "b", "c") * 4, 12)
EVERYBODY = PartnerFilter(None)


@pytest.mark.parametrize("count", [None, 12, 100])
def test_whole_dataset_needs_no_list(count):
    assert selected_episodes(PAGE, count, ("a",), EVERYBODY) is None
    assert selected_episodes(PAGE, count, ("a",), PartnerFilter("default")) is None


def one_by_one(partners, count, focus):
    """Rounds over the partners in the order of their first episode, by hand."""
    queues = {name: [] for name in partners}
    for number, name in enumerate(partners):
        queues[name].append(number)
    taken = []
    while any(queues.values()):
        for name, queue in queues.items():
            share = 3 if name in focus else 1
            taken += queue[:share]
            del queue[:share]
    return tuple(sorted(taken[:count]))


@given(
    partners=st.lists(st.sampled_from("dcba"), min_size=2, max_size=40),
    focus=st.sets(st.sampled_from("dcba"), min_size=1),
    data=st.data(),
)
def test_focus_takes_what_rounds_by_hand_take(partners, focus, data):
    count = data.draw(st.integers(1, len(partners) - 1))
    page = SeedPage(tuple(partners), len(partners))
    chosen = selected_episodes(page, count, sorted(focus), EVERYBODY)
    if focus & set(partners):
        assert chosen == one_by_one(partners, count, focus)
    else:
        assert chosen == tuple(range(count))


def test_task_filter_takes_its_partners_alone():
    assert selected_episodes(PAGE, None, (), PartnerFilter("c")) == (2, 5, 8, 11)
    assert selected_episodes(PAGE, 3, (), PartnerFilter("a,c")) == (0, 2, 3)
    assert selected_episodes(PAGE, 4, ("c",), PartnerFilter("a,c")) == (0, 2, 5, 8)


MET = SeedPage(("crossing_chaser", "crossing_wanderer", "crossing_chaser", "crossing_wanderer"), 4)


def test_task_filter_that_leaves_a_way_leaves_the_chaser_out():
    leaving = PartnerFilter("leaving_way")
    assert selected_episodes(MET, None, (), leaving) == (1, 3)
    assert leaving.among(("crossing_chaser", "crossing_wanderer")) == ("crossing_wanderer",)
    assert PartnerFilter("default").among(("crossing_chaser",)) == ("crossing_chaser",)
    assert PartnerFilter("a,c").among(("c", "b", "a")) == ("c", "a")


def test_task_filter_on_a_stranger_is_refused():
    with pytest.raises(ConfigurationError, match=r"data.task_filter: .*\(a, b, c\), got 'z'"):
        selected_episodes(PAGE, 3, (), PartnerFilter("a,z"))
    for text in ("z", "leaving_way"):
        with pytest.raises(ConfigurationError, match=f"it names none.*got '{text}'"):
            selected_episodes(SeedPage((), 3), 3, (), PartnerFilter(text))
    with pytest.raises(ConfigurationError, match=r"\(crossing_chaser\), got 'leaving_way'"):
        PartnerFilter("leaving_way").within(SeedPage(("crossing_chaser",), 1))
    with pytest.raises(UnknownNameError, match="'a'"):
        PartnerFilter("leaving_way").within(PAGE)


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
