from dataclasses import replace

import pytest

from cadenza.loop.knowledge.observations import (
    Measurement,
    RunOutcome,
    agree,
    all_agree,
    contradict,
    difference_interval,
    direction,
)


def outcome(first, last, episodes=40):
    return RunOutcome("r", Measurement(first, episodes), Measurement(last, episodes))


def test_difference_interval_is_newcombes():
    # Newcombe 1998, table II, method 10: 56/70 - 48/80 has bounds 0.0524 and 0.3339
    low, high = difference_interval(Measurement(56 / 70, 70), Measurement(48 / 80, 80))
    assert low == pytest.approx(0.0524, abs=5e-5)
    assert high == pytest.approx(0.3339, abs=5e-5)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [((0.2, 40), (0.8, 40), 1), ((0.8, 40), (0.2, 40), -1), ((0.5, 40), (0.6, 40), 0),
     ((0.0, 0), (1.0, 0), 0)],
)  # fmt: skip
def test_direction_needs_evidence(before, after, expected):
    assert direction(Measurement(*before), Measurement(*after)) == expected


def test_runs_agree_on_level_and_direction():
    assert agree(outcome(0.5, 0.6), outcome(0.55, 0.5))
    assert not agree(outcome(0.5, 0.9), outcome(0.5, 0.5))
    # equal ends, opposite ways: 0.2 -> 0.6 rose, 1.0 -> 0.6 fell
    assert contradict(outcome(0.2, 0.6), outcome(1.0, 0.6))


def test_runs_of_one_seed_are_one_piece_of_evidence():
    same = outcome(0.5, 0.5)
    one, two = replace(same, seed=1), replace(same, seed=2)
    assert not all_agree([one, one])
    assert all_agree([one, one, two])
    assert not all_agree([one, same])  # a run of an unknown seed may be the same
    assert not all_agree([same, same, same])
    assert all_agree([one, two, same])
    assert not all_agree([one, two, replace(outcome(0.5, 0.95), seed=2)])


@pytest.mark.parametrize(
    ("rate", "episodes", "precise"),
    [(0.5, 20, False), (0.5, 22, True), (0.0, 1, False), (0.0, 5, False), (0.0, 6, True),
     (1.0, 6, True), (0.5, 0, False), (1.0, 0, False)],
)  # fmt: skip
def test_precision_needs_episodes(rate, episodes, precise):
    assert Measurement(rate, episodes).precise is precise


@pytest.mark.parametrize("episodes", [0, 1, 4])
def test_runs_of_few_or_unknown_episodes_do_not_replicate(episodes):
    few = replace(outcome(0.0, 0.0, episodes), seed=1)
    assert not all_agree([few, replace(few, seed=2)])
    many = replace(outcome(0.0, 0.0), seed=3)
    assert not all_agree([few, many])
    assert all_agree([few, many, replace(many, seed=4)])
