"""`Bounds.action_rate` in the filter: off, giving way to the rows, or never giving way.

Scenes as in the filter's own tests: ego at the origin, partner at rest ahead, box 2.
"""

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.contracts import Bounds
from cadenza.safety.errors import ConcertoSafetyInfeasible
from tests.unit.safety.scenes import agent, ego_filter, slack

DT = 0.1
#: Largest change per step and component.
RATE = 0.5


def facing(speed, gap):
    return {"ego": agent([0, 0], [speed, 0.0]), "p": agent([gap, 0])}


FREE = facing(0.0, 5.0)
#: One row asks for u_x <= -1.6 or so.
DANGER = facing(1.13, 0.9)


def run(mode, nominal, previous, agents=FREE, *, rate=RATE, fill=0.0, **options):
    guard = ego_filter(rate_limit=mode, **options)
    return guard.filter(
        np.array(nominal, dtype=float),
        {"agent_states": agents},
        slack(fill=fill),
        Bounds(2.0, 2.0, rate, 0.0, 0.0),
        ego_uid="ego",
        partner_predicted_states={"p": agents["p"]},
        dt=DT,
        previous_action=None if previous is None else np.array(previous, dtype=float),
    )


def test_off_ignores_rate_and_previous_action():
    action, info = run("off", [1.5, -1.5], [0.0, 0.0])
    assert action.tolist() == [1.5, -1.5]
    assert (info["rate_active"], info["rate_exceeded"]) == (False, False)


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_a_free_action_changes_by_the_rate_per_component_at_most(mode):
    action, info = run(mode, [1.5, -0.3], [0.0, 0.0])
    assert action.tolist() == [0.5, -0.3]
    assert (info["rate_active"], info["rate_exceeded"]) == (True, False)
    assert info["status"] == "optimal"
    assert info["intervention"] == pytest.approx(1.0)
    assert info["uncertified"] is False


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_an_action_within_the_rate_passes_bit_for_bit(mode):
    action, info = run(mode, [0.1 + 0.2, -0.2], [0.0, 0.0])
    assert action.tobytes() == np.array([0.1 + 0.2, -0.2]).tobytes()
    assert (info["status"], info["rate_active"]) == ("inactive", False)


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_the_rate_and_the_box_both_hold(mode):
    assert run(mode, [5.0, 0.0], [1.8, 0.0])[0].tolist() == [2.0, 0.0]
    # A previous action outside of the box leaves its nearest bound.
    assert run(mode, [-2.0, 0.0], [7.0, 0.0])[0].tolist() == [2.0, 0.0]
    assert run(mode, [2.0, 0.0], [-7.0, 0.0])[0].tolist() == [-2.0, 0.0]


def needed():
    action, info = run("off", [2.0, 0.0], None, DANGER)
    assert info["status"] == "optimal"
    assert -2.0 < action[0] < -1.0
    return action[0]


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_rows_that_the_rate_can_meet_are_met_within_it(mode):
    previous = needed() + 0.3
    action, info = run(mode, [2.0, 0.0], [previous, 0.0], DANGER)
    assert action[0] == pytest.approx(needed(), abs=1e-12)
    assert (info["status"], info["rate_active"], info["rate_exceeded"]) == ("optimal", True, False)


def test_soft_gives_way_to_rows_that_need_more():
    action, info = run("soft", [2.0, 0.0], [2.0, 0.0], DANGER)
    assert action[0] == pytest.approx(needed(), abs=1e-12)
    assert (info["status"], info["rate_exceeded"]) == ("optimal", True)
    assert (info["rate_active"], info["uncertified"]) == (False, False)


def test_hard_never_gives_way_and_flags_the_step():
    action, info = run("hard", [2.0, 0.0], [2.0, 0.0], DANGER)
    assert action.tolist() == [1.5, 0.0]  # the least violation the rate leaves
    assert (info["status"], info["uncertified"]) == ("infeasible", True)
    assert info["rate_exceeded"] is False
    assert info["slack"] == pytest.approx([1.5 - needed()])


def test_hard_raises_when_asked_to_where_soft_does_not():
    with pytest.raises(ConcertoSafetyInfeasible, match="use the braking fallback"):
        run("hard", [2.0, 0.0], [2.0, 0.0], DANGER, on_infeasible="raise")
    assert run("soft", [2.0, 0.0], [2.0, 0.0], DANGER, on_infeasible="raise")[1]["rate_exceeded"]


def test_a_tightening_lambda_never_makes_the_rate_give_way():
    # lambda = -50 would ask for u_x < -37; the rate leaves -0.5 and the row itself nothing.
    action, info = run("soft", [0.3, 0.0], [0.0, 0.0], facing(0.3, 1.5), fill=-50.0)
    assert action[0] == pytest.approx(-0.5, abs=1e-6)
    assert info["rate_exceeded"] is False
    assert info["lambda"]["ego", "p"] > -50.0


def test_previous_action_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"previous_action: expected shape \(2,\), got \(3,\)"):
        run("soft", [0.0, 0.0], [0.0, 0.0, 0.0])
