"""Many environments are decided together as each of them is by itself."""

import json
import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.backup import BackupFilter, BatchedBackupFilter, batched
from cadenza.safety.control_models import PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import Box, Capsule, HalfSpace, Obstacles, Points, Polygon, Sphere
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot, WheeledBatch, WheeledSnapshot
from tests.campaigns import size

DT, STEPS = 0.1, 3
#: The velocity bases divide by how far rows moved a command: there rounding grows.
ACTION_TOL = 1e-10
RESPONSES = {
    "norm": {"max_accel": 2.0},
    "axis": {"max_accel": 2.0, "limit": "axis"},
    "none": {"limit": "none"},
    "lag": {"lag_s": 0.2},
    "late": {"max_accel": 2.0, "delay_s": 0.15},
}
seeds = st.integers(0, 2**32 - 1)
counts = st.sampled_from([1, 40])
#: Below so many the scalar base decides: with 1, every candidate is tried together.
fews = st.sampled_from([1, batched.FEW])


def shapes(rng, dim):
    """Return walls and furniture, or a scan."""
    walls = [HalfSpace(s * axis, -1.2) for axis in np.eye(dim) for s in (1.0, -1.0)]
    spots = rng.uniform(-1.0, 1.0, (12, dim))
    more = [
        Sphere(spots[0], 0.2),
        Capsule(spots[1], spots[2], 0.1),
        Box(spots[3], np.full(dim, 0.2), **({"angle": 0.3} if dim == 2 else {})),
        Points(spots[4:], 0.05),
    ]
    if dim == 2:
        more.append(Polygon(spots[5] + np.array([[0.0, 0.0], [0.3, 0.0], [0.1, 0.3]])))
    some = [one for one in walls + more if rng.random() < 0.4]
    return Obstacles(some)


class World:
    """Random robots and partners that move a little at random, near each other and obstacles.

    Some partners ``jump``: where plans are remembered, they contradict them.
    """

    def __init__(self, rng, count, dim, uids, *, ages, jump=False):
        self.rng, self.uids, self.jump = rng, ("ego", *uids), jump
        self.x = rng.uniform(-1.0, 1.0, (count, len(self.uids), dim))
        self.v = rng.normal(size=self.x.shape) * rng.choice([0.0, 0.3, 1.0], (count, 1, 1))
        self.th, self.w = rng.uniform(-4.0, 4.0, count), rng.normal(size=count)
        self.age = np.zeros(self.x.shape[:2])
        if ages:
            self.age[:, 1:] = rng.choice([0.0, 0.05], self.age[:, 1:].shape)
        self.radii = rng.uniform(0.1, 0.3, len(self.uids))

    def step(self, ego_velocity):
        self.v[:, 0] = ego_velocity
        self.v[:, 1:] += 0.2 * self.rng.normal(size=self.v[:, 1:].shape)
        self.x += DT * self.v
        if self.jump:
            jumps = self.rng.random(self.age[:, 1:].shape) < 0.4
            away = self.rng.normal(size=self.x[:, 1:].shape)
            self.x[:, 1:][jumps] = (self.x[:, :1] + 0.7 * away)[jumps]
        self.th += DT * self.w

    def together(self):
        wheels = {"headings": self.th, "yaw_rates": self.w}
        kind, more = (WheeledBatch, wheels) if self.x.shape[2] == 2 else (AgentBatch, {})
        ages = self.age if self.age.any() else None
        return kind(
            uids=self.uids,
            positions=self.x,
            velocities=self.v,
            radii=self.radii,
            ages_s=ages,
            **more,
        )

    def alone(self, row):
        found = {
            uid: AgentSnapshot(self.x[row, k], self.v[row, k], self.radii[k], self.age[row, k])
            for k, uid in enumerate(self.uids)
        }
        if self.x.shape[2] == 2:
            found["ego"] = WheeledSnapshot(
                self.x[row, 0],
                self.v[row, 0],
                self.radii[0],
                heading=self.th[row],
                yaw_rate=self.w[row],
            )
        return found


def compare(model, rng, count, *, speeds, ages, errors, own_obstacles, jump, guarantee=None):
    """Decide some steps both ways; return how often each source was seen."""
    dim, seen = model.position_dim, []
    accel = rng.choice([math.inf, 4.0, 1.0, 0.0])
    bounds = [PartnerBound(f"p{k}", speed, accel) for k, speed in enumerate(speeds)]
    options = {"guarantee": guarantee}
    options |= {"position_error_m": 0.005, "velocity_error": 0.05} if errors else {}
    if isinstance(model, VelocityModel) and model.lag_s is not None:
        is_passive = len(bounds) > 1 or any(speed > model.max_speed for speed in speeds)
        options |= {"contact_speed": 0.05} if is_passive else {}
    walls = shapes(rng, dim)
    several = [walls, shapes(rng, dim), Obstacles([])]

    def make():
        return BackupFilter(model, bounds, dt=DT, obstacles=walls, **options)

    alone = [make() for _ in range(count)]
    together = BatchedBackupFilter(make(), count)
    world = World(rng, count, dim, [bound.uid for bound in bounds], ages=ages, jump=jump)
    world.radii[0] = getattr(model, "radius", world.radii[0])
    low, high = map(np.array, model.action_box())
    for step in range(STEPS):
        nominal = 1.2 * rng.uniform(low, high, (count, len(low)))
        nominal[rng.random(count) < 0.2] = 0.0
        given = [several[k] for k in rng.integers(0, 3, count)] if own_obstacles else None
        batch = together.filter(nominal, world.together(), obstacles=given)
        for row, one in enumerate(alone):
            shape = None if given is None else given[row]
            single = one.filter(nominal[row], world.alone(row), obstacles=shape)
            assert np.abs(batch.action[row] - single.action).max() <= ACTION_TOL
            assert batch.backup[row] == single.backup
            assert batch.uncertified[row] == single.uncertified
            assert batch.static_uncertified[row] == single.static_uncertified
            parts = len(single.static_margin)
            np.testing.assert_allclose(
                batch.static_margin[row, :parts], single.static_margin, atol=1e-12
            )
            assert np.isposinf(batch.static_margin[row, parts:]).all()
            np.testing.assert_allclose(batch.margin[row], list(single.margin.values()), atol=1e-12)
            plans = together.state_dict()["rows"][row], one.state_dict()
            for mine, theirs in zip(*(p["plan"] or [[], []] for p in plans), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=ACTION_TOL)
            assert (plans[0]["plan"] is None) == (plans[1]["plan"] is None)
            seen.append(single.backup)
        if step == 1:
            saved = json.loads(json.dumps(together.state_dict()))
            together = BatchedBackupFilter(make(), count)
            together.load_state_dict(saved)
        reset = np.flatnonzero(rng.random(count) < 0.2)
        together.reset(reset)
        for row in reset:
            alone[row].reset()
        world.step(batch.action if isinstance(model, VelocityModel) else world.v[:, 0])
    return seen


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("response", RESPONSES)
@settings(max_examples=size(4, 60), deadline=None)
@given(
    few=fews,
    seed=seeds,
    count=counts,
    speeds=st.sampled_from([(), (0.5,), (1.0,), (1.5,), (0.4, 1.2)]),
    ages=st.booleans(),
    errors=st.booleans(),
    own_obstacles=st.booleans(),
    jump=st.booleans(),
)
def test_batch_of_velocity_bases_decides_as_each_of_them(
    response, dim, few, seed, count, speeds, **drawn
):
    model = VelocityModel("ego", dim, 1.0, **RESPONSES[response])
    rng = np.random.default_rng(seed)
    with patch.object(batched, "FEW", few):
        compare(model, rng, count, speeds=speeds, **drawn)


WHEELS = {
    "slow": {"accel": 1.0, "yaw_accel": 4.0},
    "offset": {"accel": 1.0, "yaw_accel": 4.0, "center_offset_m": 0.1},
    "ideal": {"accel": math.inf, "yaw_accel": math.inf, "look_ahead_m": 0.3},
}


@pytest.mark.parametrize("wheels", WHEELS)
@settings(max_examples=size(4, 60), deadline=None)
@given(
    seed=seeds,
    count=counts,
    promise=st.sampled_from([((), None), ((0.3,), "escape"), ((0.3,), None), ((0.4, 1.2), None)]),
    ages=st.booleans(),
    errors=st.booleans(),
    own_obstacles=st.booleans(),
    jump=st.booleans(),
)
def test_batch_of_unicycles_decides_as_each_of_them(wheels, seed, count, promise, **drawn):
    rng, (speeds, guarantee) = np.random.default_rng(seed), promise
    disc = {"radius": float(rng.uniform(0.1, 0.3))}
    model = UnicycleModel("ego", 1.0, 0.8, 2.0, **(WHEELS[wheels] | disc))
    compare(model, rng, count, speeds=speeds, guarantee=guarantee, **drawn)


@pytest.mark.parametrize("speeds", [(0.6,), (1.2, 0.8)])
def test_comparison_meets_every_source(speeds):
    model = VelocityModel("ego", 2, 1.0, max_accel=2.0)
    rng = np.random.default_rng(3)
    with patch.object(batched, "FEW", 1):
        off = dict.fromkeys(("ages", "errors", "own_obstacles", "jump"), False)
        seen = compare(model, rng, 100, speeds=speeds, **off)
    wanted = {"none", "rows", "blend", "brake"} | ({"escape"} if len(speeds) == 1 else set())
    assert wanted <= set(seen)
