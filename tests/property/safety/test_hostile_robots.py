"""Whatever a caller hands to the filter with a backup: one sentence, or a sound action."""

import math

import numpy as np
import pytest

from cadenza.core.errors import CadenzaError
from cadenza.core.seeding import derive_substream
from cadenza.safety import Bounds, SafetyOptions, SafetyRuntime
from cadenza.safety.backup import BackupFilter, BatchedBackupFilter
from cadenza.safety.control_models import (
    DoubleIntegratorControlModel,
    PartnerBound,
    UnicycleModel,
    VelocityModel,
)
from cadenza.safety.geometry import Ball, HalfSpace, Points
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot, WheeledSnapshot
from tests.campaigns import size

#: Calls of every door.
CALLS = size(1_250, 20_000)
WEIRD = [
    None,
    True,
    "text",
    b"bytes",
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -0.0,
    0,
    -1,
    10**400,
    1j,
    [],
    (),
    {},
    [1.0],
    [[1.0, 2.0]],
    np.zeros(0),
    np.zeros(3),
    np.zeros((2, 2)),
    np.array(["a", "b"]),
    np.array([math.nan, 0.0]),
    np.array([1e300, 1e300]),
    np.ma.masked_array([1.0, 2.0], [True, False]),
    object(),
    lambda: None,
    AgentSnapshot((0.0, 0.0), (0.0, 0.0), 0.2),
    AgentSnapshot((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 0.2),
    AgentSnapshot((1e9, 1e9), (1e9, -1e9), 1e9),
    AgentSnapshot((0.0, 0.0), (0.0, 0.0), 0.2, 1e9),
    HalfSpace((1.0, 0.0, 0.0), 0.0),
    [Ball((0.0, 0.0), 1.0)],
    [Points(np.zeros((0, 2)), 0.1)],
    [HalfSpace((1.0, 0.0), 0.0), None],
    PartnerBound("walker", 1e9, 0.0),
]


def sound(action, top):
    return (
        action.shape == (2,) and bool(np.isfinite(action).all()) and np.linalg.norm(action) <= top
    )


def one_sentence(error):
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) < 1_000


EGO = AgentSnapshot((0.0, 0.0), (0.0, 0.0), 0.2)
WHEELED_EGO = WheeledSnapshot((0.0, 0.0), (0.0, 0.0), 0.2, heading=0.0, yaw_rate=0.0)
WALKER = AgentSnapshot((1.5, 0.0), (0.0, 0.0), 0.2)
BOUND = PartnerBound("walker", 0.5)
BASE = VelocityModel("ego", 2, 1.0, 2.0)
WHEELS = UnicycleModel("ego", 1.0, 1.0, 1.0, 1.0, 1.0, 0.2)


def runtime():
    """A robot whose action is its acceleration, beside the same partner."""
    capacities = {"ego": 1.0, "walker": 0.3}
    models = {
        uid: DoubleIntegratorControlModel(uid, 2, capacity=most) for uid, most in capacities.items()
    }
    guard = SafetyRuntime(
        ego_uid="ego",
        control_models=models,
        bounds=Bounds(1.0, 1.0, 1.0, 0.0, 0.0),
        control_timestep=0.1,
        options=SafetyOptions(obstacles=(Ball((0.0, 3.0), 0.5),)),
    )

    def decide(nominal, agents, obstacles):
        around = {} if obstacles is None else {"obstacles": obstacles}
        return guard.step(nominal, agents, **around)

    return decide, guard.begin_episode


def backup(model):
    guard = BackupFilter(model, [BOUND], dt=0.1)

    def decide(nominal, agents, obstacles):
        return guard.filter(nominal, agents, obstacles=obstacles)

    return decide, guard.reset


def batched():
    """Two environments at once; the agents of a call are those of both."""
    guard = BatchedBackupFilter(BackupFilter(BASE, [BOUND], dt=0.1), 2)

    def decide(nominal, agents, obstacles):
        batch = agents
        planar = isinstance(agents, dict) and all(
            isinstance(agent, AgentSnapshot) and len(agent.position) == 2
            for agent in agents.values()
        )
        if planar:
            places = np.array([a.position for a in agents.values()])
            speeds = np.array([a.velocity for a in agents.values()])
            batch = AgentBatch(
                uids=tuple(agents),
                positions=np.stack([places, places]),
                velocities=np.stack([speeds, speeds]),
                radii=np.array([a.radius for a in agents.values()]),
            )
        both = np.tile(nominal, (2, 1)) if isinstance(nominal, np.ndarray) else nominal
        return guard.filter(both, batch, obstacles=obstacles)

    return decide, guard.reset


@pytest.mark.parametrize(
    ("door", "ego"),
    [
        (lambda: backup(BASE), EGO),
        (lambda: backup(WHEELS), WHEELED_EGO),
        (batched, EGO),
        (runtime, EGO),
    ],
    ids=["velocity", "wheels", "batched", "acceleration"],
)
def test_calls_answer_with_one_sentence_or_a_sound_action(door, ego):
    rng = derive_substream("tests.hostile-robots", root_seed=0).default_rng()
    (decide, reset), scene = door(), {"ego": ego, "walker": WALKER}
    usual = np.array([0.2, 0.0])

    def weird():
        return WEIRD[int(rng.integers(len(WEIRD)))]

    answered = 0
    for _ in range(CALLS):
        nominal, agents, obstacles = usual, dict(scene), None
        for part in rng.permutation(4)[: int(rng.integers(1, 3))]:
            if part == 0:
                nominal = weird()
            elif part == 1 and isinstance(agents, dict):
                agents[str(rng.choice(["ego", "walker", "stranger"]))] = weird()
            elif part == 2:
                obstacles = weird()
            else:
                agents = weird()
        try:
            step = decide(nominal, agents, obstacles)
        except (CadenzaError, TypeError) as error:
            one_sentence(error)
            continue
        answered += 1
        for action in np.atleast_2d(step.action):
            assert sound(action, math.sqrt(2.0) + 1e-9)
    assert answered > 0
    # And it works as before.
    reset()
    assert np.array_equal(np.atleast_2d(decide(usual, scene, None).action)[0], usual)


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: VelocityModel(a, 2, b),
        lambda a, b: VelocityModel("ego", a, 1.0, b),
        lambda a, b: VelocityModel("ego", 2, a, 1.0, limit=b),
        lambda a, b: VelocityModel("ego", 2, 1.0, lag_s=a, delay_s=b),
        lambda a, b: PartnerBound(a, b),
        lambda a, b: PartnerBound("walker", a, b),
        lambda a, b: UnicycleModel("ego", a, b, 1.0, 1.0, 1.0, 0.2),
        lambda a, b: BackupFilter(a, b, dt=0.1),
        lambda a, b: BackupFilter(VelocityModel("ego", 2, 1.0, 2.0), [], dt=a, obstacles=b),
        lambda a, b: BackupFilter(
            VelocityModel("ego", 2, 1.0, 2.0), dt=0.1, guarantee=a, margin_m=b
        ),
        lambda a, b: BackupFilter(
            VelocityModel("ego", 2, 1.0, 2.0), dt=0.1, position_error_m=a, contact_speed=b
        ),
        lambda a, b: BackupFilter(VelocityModel("ego", 2, 1.0, 2.0), dt=0.1).load_state_dict(
            {"plan": a, "base": b}
        ),
    ],
)
def test_settings_are_refused_in_one_sentence(make):
    for a in WEIRD:
        for b in (1.0, *WEIRD):
            try:
                make(a, b)
            except (CadenzaError, TypeError) as error:
                one_sentence(error)
