"""Invariants of the crossing partners: bounds, walls, equal rows, shield."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.partners.crossing import (
    ACCELERATION_LIMIT,
    CONTROL_STEP_S,
    SCALAR,
    Corridor,
    Sight,
    intercept_time,
    latest_safe_speed,
    stay_inside,
)
from cadenza.partners.interface import _FORBIDDEN_ATTRS
from cadenza.partners.registry import list_registered, load_partner
from cadenza.partners.spec import PartnerSpec

CROSSING = [name for name in list_registered() if name.startswith("crossing_")]
numbers = st.floats(-10, 10, width=32, allow_subnormal=False)
batches = arrays(
    np.float32, st.tuples(st.integers(1, 6), st.sampled_from([10, 14, 34])), elements=numbers
)


def partner(name):
    return load_partner(PartnerSpec(name, 0, extra={"uid": "partner"}))


def obs_with(state):
    return {"agent": {"partner": {"state": state}}}


@pytest.mark.parametrize("name", CROSSING)
@given(batch=batches, seed=st.integers(0, 2**32))
@settings(max_examples=50)
def test_row_of_a_batch_equals_the_scalar_action_byte_for_byte(name, batch, seed):
    batched, single = partner(name), partner(name)
    batched.reset(seed=0)
    for row in range(len(batch)):
        batched.reset_row(row, seed=seed + row)
    actions = batched.act(obs_with(batch))
    for row, state in enumerate(batch):
        single.reset(seed=seed + row)
        assert single.act(obs_with(state)).tobytes() == actions[row].tobytes()


@pytest.mark.parametrize("name", CROSSING)
@given(batch=batches)
@settings(max_examples=50)
def test_acceleration_never_exceeds_the_declared_bound(name, batch):
    robot = partner(name)
    robot.reset(seed=1)
    actions = robot.act(obs_with(batch))
    assert actions.shape == (len(batch), 2)
    assert np.abs(actions).max() <= ACCELERATION_LIMIT


@given(
    wishes=st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=200), position=st.floats(-0.9, 0.9)
)
def test_walls_hold_at_every_step_whatever_is_wished(wishes, position):
    corridor = Corridor(half_width=1.0, speed=0.8, acceleration=0.5, step_s=CONTROL_STEP_S)
    speed = 0.0
    for wish in wishes:
        a = stay_inside(position, speed, wish, corridor, SCALAR)
        assert abs(a) <= 0.5
        position += speed * CONTROL_STEP_S + 0.5 * a * CONTROL_STEP_S**2
        speed += a * CONTROL_STEP_S
        assert abs(position) <= 1.0 + 1e-12
        assert abs(speed) <= 0.8 + 1e-12


@given(distance=st.floats(0, 10), speed=st.floats(-3, 3), limit=st.floats(0.1, 2))
def test_latest_safe_speed_uses_up_the_way_exactly(distance, speed, limit):
    half = CONTROL_STEP_S / 2
    after = latest_safe_speed(distance, speed, limit, CONTROL_STEP_S, SCALAR)
    if after >= 0.0:
        needed = (speed + after) * half + after**2 / (2 * limit)
        assert needed == pytest.approx(distance, abs=1e-9)


vectors = st.tuples(st.floats(-5, 5), st.floats(-5, 5))


@given(r=vectors, w=vectors)
def test_intercept_time_is_reachable_and_no_earlier_time_is(r, w):
    view = Sight(*[0.0] * 6, *r, *w)
    time = intercept_time(view, 0.5, SCALAR)
    gap = [abs(offset + rate * time) for offset, rate in zip(r, w, strict=True)]
    assert max(gap) <= 0.25 * time**2 + 1e-6
    # An independent look at a grid of earlier times: some component is out of reach at each.
    earlier = np.linspace(0.0, max(time - 1e-3, 0.0), 400)[:, None]
    needed = np.abs(np.array(r) + np.array(w) * earlier).max(axis=1)
    if time > 1e-3:
        assert (needed > 0.25 * earlier[:, 0] ** 2 - 1e-9).all()


@given(name=st.sampled_from(sorted(_FORBIDDEN_ATTRS)), registered=st.sampled_from(CROSSING))
def test_forbidden_name_of_any_partner_cites_the_decision(name, registered):
    with pytest.raises(AttributeError, match=rf"\.{name}: .*ADR-009"):
        getattr(partner(registered), name)
