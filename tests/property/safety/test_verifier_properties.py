"""Invariants of the verifier's parts: exact distances, bounded opponents, honest conditions."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.safety.cbf import PairParameters, barrier_value, derated, row_level
from cadenza.safety.verifier.adversaries import (
    ADVERSARIES,
    EGO_NOMINALS,
    EgoView,
    PartnerView,
    bounded_push,
    nominal_action,
    unit,
)
from cadenza.safety.verifier.conditions import Condition, authority_left
from cadenza.safety.verifier.motion import smallest_distance

numbers = st.floats(-5.0, 5.0)
plants = st.sampled_from(["zoh", "semi_implicit"])


@st.composite
def motions(draw):
    dim = draw(st.sampled_from([2, 3]))
    return [draw(arrays(np.float64, dim, elements=numbers))[None] for _ in range(3)]


def passing_twice(drift):
    """Return a motion that comes near the origin after 0.25 s and after 0.75 s."""
    return [np.array([row]) for row in ([1.5, 0.1], [-8.0, drift], [16.0, 0.0])]


@given(motion=motions(), dt=st.floats(0.005, 1.0), plant=plants)
@example(motion=passing_twice(0.05), dt=1.2, plant="zoh")
@example(motion=passing_twice(-0.05), dt=0.9, plant="zoh")
def test_smallest_distance_is_what_dense_sampling_finds(motion, dt, plant):
    offset, velocity, accel = motion
    s = np.linspace(0.0, dt, 4001)[:, None]
    if plant == "zoh":
        path = offset + velocity * s + 0.5 * accel * s**2
        speed = np.linalg.norm(velocity + accel * s, axis=1).max()
    else:
        path = offset + (velocity + accel * dt) * s
        speed = np.linalg.norm(velocity + accel * dt)
    sampled = np.linalg.norm(path, axis=1).min()
    exact = smallest_distance(offset, velocity, accel, dt, plant)[0]
    assert sampled - 0.5 * speed * dt / 4000 - 1e-12 <= exact <= sampled + 1e-12


@st.composite
def partner_views(draw):
    dim, pairs = draw(st.sampled_from([2, 3])), 6
    vectors = arrays(np.float64, (pairs, dim), elements=numbers)
    scalars = arrays(np.float64, pairs, elements=st.floats(0.0, 0.999))
    return PartnerView(
        toward=unit(draw(vectors), np.eye(dim)[:1]),
        excess=draw(scalars),
        velocity=draw(vectors),
        own_velocity=draw(vectors),
        ego_velocity=draw(vectors),
        believed_toward=unit(draw(vectors), np.eye(dim)[:1]),
        age_s=0.1 * draw(scalars),
        taste=unit(draw(vectors), np.eye(dim)[:1]),
        phase=draw(scalars),
        draw=draw(vectors),
        step=draw(st.integers(0, 300)) + draw(st.floats(0.0, 0.99)),
        dt=0.05,
        bound=draw(st.sampled_from([0.0, 0.5, 3.0])),
    )


@pytest.mark.parametrize("name", sorted(ADVERSARIES))
@settings(max_examples=25)
@given(view=partner_views())
def test_no_opponent_breaks_its_bound(name, view):
    push = bounded_push(view, ADVERSARIES[name])
    assert push.shape == view.toward.shape
    assert np.isfinite(push).all()
    assert np.linalg.norm(push, axis=1).max() <= view.bound * (1.0 + 1e-12)


@pytest.mark.parametrize("name", sorted(EGO_NOMINALS))
@settings(max_examples=25)
@given(data=st.data(), limit=st.floats(0.1, 5.0))
def test_nominal_actions_stay_inside_the_open_box(name, data, limit):
    vectors = arrays(np.float64, (5, 2), elements=numbers)
    view = EgoView(
        ahead=unit(data.draw(vectors), np.eye(2)[:1]),
        velocity=data.draw(vectors),
        sideways=data.draw(vectors),
        to_goal=data.draw(vectors),
        draw=np.clip(data.draw(vectors), -1.0, 1.0),
        chance=np.linspace(0.0, 0.9, 5),
        dt=0.05,
        limit=limit,
    )
    action = nominal_action(view, EGO_NOMINALS[name])
    assert np.isfinite(action).all()
    assert np.abs(action).max() < limit


def condition(plant, *, dt=0.05):
    return Condition(
        plant=plant,
        dt=dt,
        alpha=1.5,
        push=0.5,
        relative_accel=2.0 * np.sqrt(2.0) + 0.5,
        contact_m=0.4,
        gamma=5.0,
        box=2.0,
    )


@given(
    direction=st.floats(0.0, 6.3),
    excess=st.floats(0.0, 2.0),
    closing=st.floats(-3.0, 3.0),
    tangential=st.floats(-2.0, 2.0),
    aside=st.floats(-1.0, 1.0),
    dt=st.sampled_from([0.1, 0.05, 0.005]),
    plant=plants,
)
def test_action_on_the_filters_row_meets_the_condition(
    direction, excess, closing, tangential, aside, dt, plant
):
    """The filter solves for the largest admissible speed; the condition only inserts it."""
    rule = condition(plant, dt=dt)
    n = np.array([np.cos(direction), np.sin(direction)])
    across = np.array([-n[1], n[0]])
    offset, velocity = (0.4 + excess) * n, -closing * n + tangential * across
    pair = PairParameters(
        alpha=1.5,
        partner_accel=0.5,
        relative_accel=rule.relative_accel,
        dt=dt,
        gamma=5.0,
        plant=plant,
        unheld_accel=0.5,
    )
    h = barrier_value(excess, closing, 1.5, dt, 5.0)
    assert rule.barrier_values(offset[None], velocity[None])[0] == pytest.approx(h, abs=1e-9)
    if h < 0.0:
        return  # outside the safe set the row asks for the impossible
    level, _ = row_level(0.4 + excess, 0.4, closing, abs(tangential), pair)
    on_row = -(level - 0.5) * n + aside * across
    short, _ = rule.shortfall(offset[None], velocity[None], on_row[None])
    assert short[0] <= 1e-9
    if plant == "semi_implicit" and level * dt + closing > 1e-3:  # no allowance: the row is sharp
        beyond = on_row - 0.1 * n
        assert rule.shortfall(offset[None], velocity[None], beyond[None])[0][0] > 1e-9


@given(
    action=arrays(np.float64, 3, elements=st.floats(-2.0, 2.0)),
    motion=motions(),
    plant=plants,
)
def test_no_action_of_the_box_misses_by_less_than_the_least(action, motion, plant):
    offset, velocity, _ = motion
    offset = offset + 1e-3
    rule = condition(plant)
    short, least = rule.shortfall(offset, velocity, action[None, : offset.shape[1]])
    assert short[0] >= least[0] - 1e-9


@given(
    partner=st.floats(0.0, 0.9),
    age=st.floats(0.0, 0.2),
    dt=st.sampled_from([0.1, 0.05, 0.005]),
    dim=st.sampled_from([2, 3]),
)
def test_authority_left_is_what_the_filter_counts_on(partner, age, dt, dim):
    pair = PairParameters(
        alpha=2.0 - partner,
        partner_accel=partner,
        relative_accel=1.0,
        dt=dt,
        gamma=5.0,
        plant="zoh",
    )
    expected = derated(pair, np.sqrt(dim) * 2.0, 0.4, age).alpha
    left = authority_left(
        ego_accel=2.0, partner_accel=partner, dim=dim, contact_m=0.4, dt=dt, max_age_s=age
    )
    assert left == pytest.approx(expected, abs=1e-12)
