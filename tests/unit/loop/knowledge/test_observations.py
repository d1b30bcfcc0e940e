from dataclasses import replace

import pytest

from cadenza.loop.knowledge.observations import (
    MAX_LISTED,
    MAX_ROWS,
    Measurement,
    Observation,
    RunOutcome,
    agree,
    all_agree,
    contradict,
    derived_lessons,
    difference_interval,
    direction,
    observations_text,
    outcomes,
    plain_name,
)


def seen(cycle, run="r", rate=0.5, episodes=10, **more):
    fields = {"date": "2026-01-02", "suite": "s", "policy": "p", "decision": "promote"} | more
    return Observation(run=run, cycle=cycle, measured=Measurement(rate, episodes), **fields)


def test_seed_stands_in_lines_and_rows():
    assert seen(3, seed=7).line() == f"{seen(3).line()} · seed 7"
    found = [seen(cycle, seed=2**31 - 1) for cycle in range(MAX_LISTED + 2)]
    assert "| 2026-01-02 | 2147483647 |" in observations_text(found)
    ((outcome,),) = outcomes(found).values()
    assert outcome.seed == 2**31 - 1


def test_refused_candidates_are_not_what_a_run_found():
    decisions = ["iterate", "promote", "provisional", "rollback", "escalate"]
    found = [
        seen(cycle, rate=cycle / 10, decision=decision) for cycle, decision in enumerate(decisions)
    ]
    for cycle in range(5, 5 + MAX_LISTED):
        ((outcome,),) = outcomes(found).values()
        assert (outcome.first.rate, outcome.last.rate) == (0.1, 0.2)
        found.append(seen(cycle, rate=0.9, decision="iterate"))
    assert "| r | s | p | 0-4 | 10.0% of 10 | 20.0% of 10 | iterate 1, promote 1" in (
        observations_text(found)
    )


def test_unknown_number_of_episodes_is_said():
    found = [seen(3, episodes=0)]
    line = "- 2026-01-02 · run r · cycle 3 · s · policy p · success 50.0% · decision promote"
    assert observations_text(found) == line
    lessons = derived_lessons(found, compare=False)
    assert "s, 50.0% of an unknown number of episodes when last kept by 1 run." in lessons


def test_older_observations_roll_up_and_stay_known():
    total = MAX_LISTED + 7
    decisions = ["promote", "iterate", "iterate"]
    found = [seen(cycle, rate=cycle / 100, decision=decisions[cycle % 3]) for cycle in range(total)]
    text = observations_text(found)
    assert [f"· cycle {cycle} ·" in text for cycle in range(total)] == [False] * 7 + [True] * 40
    assert "| r | s | p | 0-6 | 0.0% of 10 | 6.0% of 10 | promote 3, iterate 4 | 2026-01-02 |" in (
        text
    )
    ((outcome,),) = outcomes(found).values()
    assert (outcome.first.rate, outcome.last.rate) == (0.0, 0.45)  # the last promotion


def test_text_is_bounded_however_many_runs_there_are():
    text = observations_text([seen(0, run=f"run{run}") for run in range(3 * MAX_ROWS)])
    rows = [line for line in text.split("\n") if line.startswith("| run")]
    assert (len(rows), text.count("\n- ")) == (MAX_ROWS + 1, MAX_LISTED)
    assert rows[-1].startswith(f"| run{3 * MAX_ROWS - MAX_LISTED - 1} |")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a b_c", "a b_c"),
        ("", "unnamed"),
        ("é" * 100, "é" * 100),
        # the digits: printf ... | sha256sum
        ("a · b|c", "a _ b_c~8969ad2fae15"),
        (" x\n y ", "x y~a26cbd609e75"),
        ("\x1b", "_~77adfc95029e"),
        ("  ", "unnamed~6c179f21e6f6"),
    ],
)
def test_plain_name(name, plain):
    assert plain_name(name) == plain


def test_lesson_pools_the_episodes_of_independent_runs():
    runs = (seen(0, run="a", rate=0.5, seed=1), seen(0, run="b", rate=0.9, seed=2))
    lessons = derived_lessons(runs, compare=False)
    assert (
        "s, 70.0% of 20 episodes (95% interval 48.1% to 85.5%) when last kept by 2 runs." in lessons
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
