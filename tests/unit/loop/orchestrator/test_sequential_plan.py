import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.loop.orchestrator.decision import SequentialPlan


def plan(**changes):
    settings = {"first": 10, "growth": 2.0, "max_episodes": 80, "alpha": 0.05}
    return SequentialPlan(**(settings | changes))


def test_sizes_grow_by_the_factor_to_the_budget():
    assert plan().sizes == (10, 20, 40, 80)
    assert plan(max_episodes=100).sizes == (10, 20, 40, 100)  # 80 is within sqrt(2) of 100
    assert plan(max_episodes=120).sizes == (10, 20, 40, 80, 120)
    assert plan(max_episodes=12).sizes == (10, 12)
    assert plan(max_episodes=10).sizes == (10,)
    assert plan(first=1, growth=1.1, max_episodes=5).sizes == (1, 2, 3, 4, 5)
    assert plan(growth=1e308).sizes == (10, 80)


@pytest.mark.parametrize("before", [0.0, 0.025, 0.0375])
def test_a_comparison_spends_half_of_what_is_left_late(before):
    share = (0.05 - before) / 2
    z = stats.norm.ppf(1 - share / 2)
    spent = [2 * stats.norm.sf(z / (t**0.5)) for t in (1 / 8, 1 / 4, 1 / 2, 1)]
    expected = [spent[0], spent[1] - spent[0], spent[2] - spent[1], spent[3] - spent[2]]
    assert plan().alphas(before) == pytest.approx(expected, rel=1e-9)
    assert sum(plan().alphas(before)) == pytest.approx(share)


def test_futility_is_shared_by_all_looks_but_the_last():
    assert plan().futility == pytest.approx(0.2 / 3)
    assert plan(max_episodes=10).futility == pytest.approx(0.2)


def test_episodes_needed_follow_their_formula():
    # z(0.975) = 1.960, z(0.8) = 0.842; half of (1 + 0.1^2) differ, so n = 394, with Fleiss'
    # correction 414, with the looks 476
    assert plan().episodes_needed(0.1) == 476
    with pytest.raises(InputError, match=r"gain: expected in \(0, 1\), got 1\.0"):
        plan().episodes_needed(1.0)


@pytest.mark.parametrize("look", [-1, 4])
def test_looks_left_counts_down_to_zero_and_refuses_a_look_that_is_not_planned(look):
    assert [plan().looks_left(planned) for planned in range(4)] == [3, 2, 1, 0]
    with pytest.raises(InputError, match=rf"expected a look in 0\.\.3, got {look}"):
        plan().looks_left(look)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": 0}, "expected 1 <= first <= max_episodes, got 0 and 80"),
        ({"first": 81}, "expected 1 <= first <= max_episodes, got 81 and 80"),
        ({"growth": 1.0}, "growth: expected > 1, got 1.0"),
        ({"growth": float("inf")}, "growth: expected > 1, got inf"),
        ({"growth": float("nan")}, "growth: expected > 1, got nan"),
        ({"alpha": 0.0}, r"alpha: expected a probability in \(0, 0\.5\), got 0\.0"),
        ({"alpha": 0.5}, r"alpha: expected a probability in \(0, 0\.5\), got 0\.5"),
    ],
)
def test_plan_refuses_settings_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        plan(**changes)
