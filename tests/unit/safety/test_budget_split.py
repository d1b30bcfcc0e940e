import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.budget_split import (
    SUPPORTED_STRATEGIES,
    BudgetSplitStrategy,
    ProportionalBudgetSplit,
    RelativeDegreeAwareBudgetSplit,
    make_budget_split,
    shared_authority,
)
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel
from tests.unit.safety.scenes import agent, box, call, slack


class EqualSplit:
    """Half each, whatever the agents can do."""

    name = "equal"

    def split(self, alpha_i, alpha_j):
        return 0.5, 0.5


def test_proportional_split_by_hand():
    assert ProportionalBudgetSplit().split(3.0, 1.0) == (0.75, 0.25)
    assert ProportionalBudgetSplit().split(2.0, 2.0) == (0.5, 0.5)


def test_relative_degree_split_counts_a_ramping_agent_by_half():
    # Degree 3 delivers alpha / 2 within a step: weights 2 and 3 / 2 of 2 + 1.5.
    split = RelativeDegreeAwareBudgetSplit(2, 3).split(2.0, 3.0)
    assert split == pytest.approx((2.0 / 3.5, 1.5 / 3.5))
    assert RelativeDegreeAwareBudgetSplit(4, 2).split(3.0, 1.0) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("name", SUPPORTED_STRATEGIES)
def test_every_listed_strategy_can_be_made_and_swaps_with_its_agents(name):
    strategy = make_budget_split(name)
    assert isinstance(strategy, BudgetSplitStrategy)
    assert strategy.name == name
    assert strategy.split(0.7, 2.1) == strategy.split(2.1, 0.7)[::-1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_budget_split("equal"), r"one of \('proportional',\), got 'equal'"),
        (lambda: RelativeDegreeAwareBudgetSplit(float("nan")), "whole degrees >= 2"),
        (lambda: RelativeDegreeAwareBudgetSplit(2, 101), "<= 100"),
        (lambda: ProportionalBudgetSplit().split("x", 1.0), "expected authorities > 0"),
        (lambda: RelativeDegreeAwareBudgetSplit(1, 2), "expected whole degrees >= 2.* got 1 and 2"),
        (lambda: RelativeDegreeAwareBudgetSplit().split(1.0, -1.0), "expected authorities > 0"),
        (lambda: shared_authority(ProportionalBudgetSplit(), 0.0, 1.0), "cannot cooperate"),
    ],
)
def test_split_out_of_range_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("shares", [(0.7, 0.7), (1.2, -0.2)])
def test_shares_that_are_no_shares_are_refused(shares):
    class Greedy(EqualSplit):
        def split(self, alpha_i, alpha_j):
            return shares

    with pytest.raises(ConfigurationError, match="expected two shares > 0 with sum 1 of 'equal'"):
        shared_authority(Greedy(), 1.0, 1.0)


def test_shared_authority_is_the_sum_only_for_proportional_shares():
    assert shared_authority(ProportionalBudgetSplit(), 3.0, 1.0) == (4.0, 0.75)
    # Half each: the weak agent brakes with 1 at most, so the pair counts for 2.
    assert shared_authority(EqualSplit(), 3.0, 1.0) == (2.0, 0.5)
    assert shared_authority(EqualSplit(), 1.0, 3.0) == (2.0, 0.5)
    # A ramping agent counts by half: 3 + 1 / 2.
    alpha, share = shared_authority(RelativeDegreeAwareBudgetSplit(2, 3), 3.0, 1.0)
    assert (alpha, share) == pytest.approx((3.5, 3.0 / 3.5))


# In the filter. Box 2, ego capacity 2, partner 1: alpha = 3, shares 2/3 and 1/3. dt = 0.1.


def sharing(split="proportional", capacities=(2.0, 1.0), **options):
    agents = {
        name: DoubleIntegratorControlModel(name, 2, capacity=value)
        for name, value in zip(("ego", "p"), capacities, strict=True)
    }
    return ExpCBFQP.ego_only(control_models=agents, budget_split=split, **options)


def facing(speed=1.2, gap=0.8):
    return {"ego": agent([0, 0], [speed, 0.0]), "p": agent([gap, 0])}


def level(alpha, e=0.4, w=1.2, dt=0.1):
    """Level of the whole row, slowing down or speeding up, from the equation of c_max."""
    three = 3.0 * alpha * dt
    c = 0.5 * (-three + (three**2 + 8.0 * alpha * e) ** 0.5)
    if w > c:
        c = alpha * (-dt + (dt * dt + 2.0 * (e - 0.5 * w * dt) / alpha) ** 0.5)
    return (c - w) / dt


def test_filter_keeps_its_share_of_the_row():
    expected = 2.0 / 3.0 * level(3.0, w=1.4)
    assert -2.0 < expected < 2.0
    action, info = call(sharing(), [2.0, 0.0], facing(1.4), dt=0.1)
    assert action[0] == pytest.approx(expected, abs=1e-12)
    assert (info["status"], info["uncertified"]) == ("optimal", False)


def test_filter_that_ramps_commands_what_delivers_its_share():
    # Ego of degree 3: phi = 1/2, alpha = 2 / 2 + 1 = 2, share 1/2, so the command takes all of it.
    split = RelativeDegreeAwareBudgetSplit(3, 2)
    action, info = call(sharing(split), [2.0, 0.0], facing(1.1), dt=0.1)
    assert action[0] == pytest.approx(level(2.0, w=1.1), abs=1e-12)
    assert info["uncertified"] is True
    # Its partner of degree 2 is asked for its own half only, and is not covered either.
    split = RelativeDegreeAwareBudgetSplit(2, 3)
    action, info = call(sharing(split, (1.0, 2.0)), [2.0, 0.0], facing(1.1), dt=0.1)
    assert action[0] == pytest.approx(0.5 * level(2.0, w=1.1), abs=1e-12)
    assert info["uncertified"] is True
    _, info = call(sharing(RelativeDegreeAwareBudgetSplit()), [2.0, 0.0], facing(1.4), dt=0.1)
    assert info["uncertified"] is False


def test_filter_that_shares_ignores_forecasts_and_lambda_still_tightens():
    agents = facing(1.4)
    plain, _ = call(sharing(), [2.0, 0.0], agents, dt=0.1)
    forecast = {"p": agent([0.8, 0.0], [-0.5, 0.0])}
    pushed, info = call(sharing(), [2.0, 0.0], agents, dt=0.1, predicted=forecast)
    assert pushed.tobytes() == plain.tobytes()
    assert info["uncertified"] is False
    tight, _ = call(sharing(), [2.0, 0.0], agents, dt=0.1, state=slack(fill=-0.25))
    assert plain[0] - tight[0] == pytest.approx(0.25, abs=1e-12)


def test_filter_that_shares_is_not_certified_on_old_packets():
    agents = facing()
    old = {**agents, "p": type(agents["p"])([0.8, 0.0], [0.0, 0.0], 0.2, 0.1)}
    fresh, _ = call(sharing(), [2.0, 0.0], agents, dt=0.1)
    action, info = call(sharing(), [2.0, 0.0], old, dt=0.1)
    assert action[0] < fresh[0]
    assert info["uncertified"] is True


def test_filter_classical_row_can_be_shared_too():
    guard = sharing(barrier="wae", cbf_gamma=1.0)
    # alpha = 3, e = 0.4, psi = sqrt(2.4): b = -(3 / psi) 1.2 + (psi - 1.2); two thirds of it.
    psi = 2.4**0.5
    expected = 2.0 / 3.0 * (-3.0 / psi * 1.2 + psi - 1.2)
    action, _ = call(guard, [2.0, 0.0], facing(), dt=0.1)
    assert action[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prediction_error": 0.1}, "leave prediction_error out"),
        ({"max_age_s": 0.1}, "do not keep the same row"),
        ({"split": "fair"}, "budget_split: expected one of"),
        ({"split": "relative_degree_aware"}, "take RelativeDegreeAwareBudgetSplit"),
    ],
)
def test_filter_split_beside_an_option_that_contradicts_it_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        sharing(**options)


def test_filter_partner_that_cannot_brake_cannot_share():
    with pytest.raises(ConfigurationError, match="guard without a split"):
        call(sharing(capacities=(2.0, 0.0)), [0.0, 0.0], facing(), bounds=box(2.0))
