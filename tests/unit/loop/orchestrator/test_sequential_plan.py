import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.loop.config import LoopConfig
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan


def plan(**changes) -> SequentialPlan:
    settings = {"first": 10, "growth": 2.0, "max_episodes": 80, "alpha": 0.05, "comparisons": 2}
    return SequentialPlan(**(settings | changes))


def test_sizes_grow_by_the_factor_to_the_budget():
    assert plan().sizes == (10, 20, 40, 80)
    assert plan(max_episodes=100).sizes == (10, 20, 40, 100)  # 80 is within sqrt(2) of 100
    assert plan(max_episodes=120).sizes == (10, 20, 40, 80, 120)
    assert plan(max_episodes=12).sizes == (10, 12)
    assert plan(max_episodes=10).sizes == (10,)
    assert plan(first=1, growth=1.1, max_episodes=5).sizes == (1, 2, 3, 4, 5)
    assert plan(growth=1e308).sizes == (10, 80)


def test_late_spending_follows_its_formula():
    share = 0.05 / 2
    z = stats.norm.ppf(1 - share / 2)
    spent = [2 * stats.norm.sf(z / (t**0.5)) for t in (1 / 8, 1 / 4, 1 / 2, 1)]
    expected = [spent[0], spent[1] - spent[0], spent[2] - spent[1], spent[3] - spent[2]]
    assert plan().alphas == pytest.approx(expected, rel=1e-9)
    assert sum(plan().alphas) == pytest.approx(share)


def test_even_spending_gives_every_look_the_same():
    assert plan(spending="even").alphas == pytest.approx([0.00625] * 4)


def test_one_look_spends_all():
    assert plan(max_episodes=10, comparisons=1).alphas == pytest.approx((0.05,))


def test_plan_of_a_run_reads_its_configuration():
    config = LoopConfig.model_validate(
        {
            "run_name": "r",
            "seed_dataset": "d",
            "policy_ladder": [{"name": "bc"}],
            "budgets": {"max_cycles": 5},
            "thresholds": {"alpha": 0.1},
            "eval": {"n_episodes": 16, "max_episodes": 64, "extension_growth": 4.0},
        }
    )
    assert SequentialPlan.of_run(config) == SequentialPlan(
        first=16, growth=4.0, max_episodes=64, alpha=0.1, comparisons=4
    )


def test_plan_of_a_run_of_one_cycle_has_a_comparison_left():
    config = LoopConfig.model_validate(
        {
            "run_name": "r",
            "seed_dataset": "d",
            "policy_ladder": [{"name": "bc"}],
            "budgets": {"max_cycles": 1},
            "eval": {"n_episodes": 7, "max_episodes": 7},
        }
    )
    made = SequentialPlan.of_run(config)
    assert (made.comparisons, made.sizes) == (1, (7,))


@pytest.mark.parametrize(("n_episodes", "budget"), [(10, 420), (500, 500)])
def test_plan_of_a_run_without_budget_takes_the_recommended_one(n_episodes, budget):
    config = LoopConfig.model_validate(
        {
            "run_name": "r",
            "seed_dataset": "d",
            "policy_ladder": [{"name": "bc"}],
            "eval": {"n_episodes": n_episodes, "max_episodes": None},
        }
    )
    assert SequentialPlan.of_run(config).max_episodes == budget


def test_looks_left_counts_down_to_zero():
    assert [plan().looks_left(look) for look in range(4)] == [3, 2, 1, 0]


@pytest.mark.parametrize("look", [-1, 4])
def test_looks_left_refuses_a_look_that_is_not_planned(look):
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
        ({"comparisons": 0}, "comparisons: expected >= 1, got 0"),
    ],
)
def test_plan_refuses_settings_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        plan(**changes)
