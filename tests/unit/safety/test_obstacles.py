"""Obstacles of the runtime: walls are never touched, partners are kept away as before."""

import json
import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety import Bounds, DoubleIntegratorControlModel, SafetyOptions
from cadenza.safety.control_models import JacobianControlModel
from cadenza.safety.geometry import Ball, Box, HalfSpace, Obstacles, Points
from cadenza.safety.runtime import SafetyRuntime
from cadenza.safety.solvers import DaqpSolver
from tests.unit.safety.scenes import agent

RADIUS, DT, C = 0.2, 0.05, 2.0
WALL = HalfSpace((-1.0, 0.0), -1.0)  # solid where x >= 1


def runtime(*partners, partner_accel=0.7, capacity=C, model=None, **options):
    models = {"ego": model or DoubleIntegratorControlModel("ego", 2)}
    models |= {
        uid: DoubleIntegratorControlModel(uid, 2, capacity=partner_accel) for uid in partners
    }
    return SafetyRuntime(
        ego_uid="ego",
        control_models=models,
        bounds=Bounds(C, capacity, 1.0, 0.0, 0.0),
        control_timestep=DT,
        options=SafetyOptions(**options),
    )


def far():
    return {"p": agent([-8.0, 0.0])}


def drive(guard, x, v, nominal, others=far, steps=80, **given):
    """Follow one nominal action; return every step, and the positions within all of them."""
    x, v, taken, path = np.array(x, float), np.array(v, float), [], []
    for _ in range(steps):
        step = guard.step(np.array(nominal, float), {"ego": agent(x, v)} | others(), **given)
        taken.append(step)
        path += [x + v * s + 0.5 * step.action * s * s for s in np.linspace(0, DT, 5)[1:]]
        x, v = path[-1], v + step.action * DT
    return taken, np.array(path)


def test_robot_driven_at_a_wall_stops_before_it_and_says_where_actions_came_from():
    taken, path = drive(runtime("p", obstacles=(WALL,)), (-1, 0), (0, 0), (C, 0.0))
    infos = [step.info for step in taken]
    assert not any(info["static_uncertified"] or info["uncertified"] for info in infos)
    assert 0.799 - 5e-3 < path[:, 0].max() <= 0.799 + 1e-9  # 1 m less radius and 1 mm of margin
    assert infos[0]["backup"] == "none"
    assert taken[0].action.tolist() == [C, 0.0]
    assert {info["backup"] for info in infos} <= {"none", "rows", "blend", "brake"}
    assert infos[0]["static_margin"] == pytest.approx([2.0 - RADIUS - 1e-3])
    assert infos[-1]["status"] == "optimal"


def test_step_without_obstacles_has_no_word_about_them():
    step = runtime("p").step(np.zeros(2), {"ego": agent([0, 0])} | far())
    assert not {"static_margin", "static_uncertified", "backup"} & step.info.keys()


def test_scan_of_one_call_stands_beside_the_lasting_obstacles():
    angles = np.linspace(-math.pi, math.pi, 360, endpoint=False)
    round_ = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    scan = Points(round_, 0.02)
    for given in ((scan,), Obstacles([scan])):
        guard = runtime("p", obstacles=(WALL,))
        taken, path = drive(guard, (0, 0), (0, 0), (0.0, C), obstacles=given)
        assert taken[0].info["static_margin"].shape == (361,)
        assert 1.2 < path[:, 1].max() <= 1.5 - 0.02 - RADIUS
        _, path = drive(guard, (0, 0), (0, 0), (C, 0.0), obstacles=given)
        assert path[:, 0].max() <= 1.0 - RADIUS


# Two balls of 100 m as a funnel of 0.2 rad: as partners, and as obstacles.
SIDES = [np.array([-math.sin(0.1), sign * math.cos(0.1)]) for sign in (1.0, -1.0)]
CENTERS = [-(100.0 + RADIUS + 0.04) * side for side in SIDES]


def test_funnel_that_rows_run_into_is_no_danger_for_a_robot_that_can_stop():
    def walls():
        return {uid: agent(at, radius=100.0) for uid, at in zip("ab", CENTERS, strict=True)}

    as_partners = runtime("a", "b", partner_accel=0.0, margin_m=0.0)
    taken, path = drive(as_partners, (0, 0), (1, 0), (C, 0), walls, 60)
    assert not taken[0].uncertified
    depths = [np.linalg.norm(path - at, axis=1).min() - 100.0 - RADIUS for at in CENTERS]
    assert min(depths) < -0.04  # 44 mm inside, with braking on top
    shapes = tuple(Ball(at, 100.0) for at in CENTERS)
    as_obstacles = runtime("p", margin_m=0.0, obstacles=shapes)
    taken, path = drive(as_obstacles, (0, 0), (1, 0), (C, 0), far, 60)
    assert not any(step.info["static_uncertified"] for step in taken)
    assert Obstacles(shapes).gaps(path)[0].min() - RADIUS >= -1e-9


def test_lone_partner_is_kept_away_until_a_wall_is_in_the_way():
    walls = tuple(HalfSpace(n, -1.5) for n in ((1, 0), (-1, 0), (0, 1), (0, -1)))
    guard = runtime("p", obstacles=(*walls, Box((0.6, 0.6), (0.2, 0.1), angle=0.5)))
    rng = np.random.default_rng(1)
    p, w = np.array([-1.2, -1.2]), np.zeros(2)
    x, v, certified, uncertified, sources = np.zeros(2), np.zeros(2), 0, 0, set()
    for k in range(400):
        nominal = rng.uniform(-C, C, 2) if k % 2 else 3.0 * (p - x)
        step = guard.step(nominal, {"ego": agent(x, v), "p": agent(p, w)})
        sources.add(step.info["backup"])
        certified, uncertified = certified + (not step.uncertified), uncertified + step.uncertified
        assert not step.info["static_uncertified"]
        for s in np.linspace(0, DT, 9)[1:]:
            here = x + v * s + 0.5 * step.action * s * s
            line = here - p
            accel = 0.7 * line / np.linalg.norm(line)
            p, w = p + w * DT / 8 + 0.5 * accel * (DT / 8) ** 2, w + accel * DT / 8
            assert step.uncertified or np.linalg.norm(here - p) >= 2 * RADIUS
            assert Obstacles(walls).gaps(here)[0].min() >= RADIUS
        x, v = here, v + step.action * DT
        if np.linalg.norm(x - p) < 2 * RADIUS + 0.01 or np.abs(p).max() > 3.0:
            p, w = -np.sign(x) * 1.2, np.zeros(2)
            guard.begin_episode()
    assert certified > 300 > uncertified > 0
    assert {"none", "rows", "brake"} <= sources


def test_robot_measured_too_near_is_told_and_comes_no_nearer():
    taken, path = drive(runtime("p", obstacles=(WALL,)), (0.9, 0), (0, 0), (C, 0.5), steps=20)
    assert all(step.info["static_uncertified"] for step in taken)
    assert path[:, 0].max() <= 0.9 + 1e-9
    assert path[-1, 1] > 0.1  # it may slide along
    fast, _ = drive(runtime("p", obstacles=(WALL,)), (0.5, 0), (2, 0), (C, 0), steps=1)
    assert fast[0].info["static_uncertified"]
    assert fast[0].info["backup"] == "brake"
    assert fast[0].action.tolist() == [-C, 0.0]


def test_broken_promise_of_the_ego_itself_is_named_for_walls_too():
    guard = runtime("p", obstacles=(WALL,))
    guard.step(np.array([C, 0.0]), {"ego": agent([0, 0])} | far())
    step = guard.step(np.zeros(2), {"ego": agent([0.0, 0.0], [0.0, 0.0])} | far())  # did not move
    assert "ego" in step.breached
    assert step.info["static_uncertified"]


def test_passive_robot_beside_a_wall_stands_still_when_it_is_hit():
    guard = runtime("a", "b", obstacles=(WALL,), multi_partner="passive")
    x, v, touched = np.zeros(2), np.zeros(2), 0
    hunters = {
        "a": [np.array([-1.0, 0.3]), np.zeros(2)],
        "b": [np.array([-0.5, -1.2]), np.zeros(2)],
    }
    for _ in range(60):
        agents = {uid: agent(*state) for uid, state in hunters.items()}
        step = guard.step(np.array([C, 0.3]), {"ego": agent(x, v)} | agents)
        for s in np.linspace(0, DT, 9)[1:]:
            here, speed = x + v * s + 0.5 * step.action * s * s, v + step.action * s
            assert here[0] <= 1.0 - RADIUS
            for state in hunters.values():
                line = here - state[0]
                accel = 0.7 * line / np.linalg.norm(line)
                state[0] = state[0] + state[1] * DT / 8 + 0.5 * accel * (DT / 8) ** 2
                state[1] = state[1] + accel * DT / 8
                if np.linalg.norm(here - state[0]) < 2 * RADIUS:
                    touched += 1
                    assert np.linalg.norm(speed) <= 1e-9
        x, v = here, v + step.action * DT
    assert touched > 0


def test_passive_robot_that_is_caught_beside_a_wall_slows_down():
    # Its braking would be met by a partner, and so would be what the policy wants.
    x, v = np.array([0.733, 0.0]), np.array([0.262, -0.5])
    others = {
        "a": agent([1.18, -0.411], [-0.645, 0.594]),
        "b": agent([0.467, 0.342], [0.74, -0.95]),
    }
    guard = runtime("a", "b", obstacles=(WALL,), guarantee="passive")
    step = guard.step(np.array([-0.747, -1.856]), {"ego": agent(x, v)} | others)
    assert step.uncertified
    assert (step.info["static_uncertified"], step.braked) == (False, False)
    assert np.linalg.norm(v + step.action * DT) <= np.linalg.norm(v) - C * DT + 1e-9


JACOBIAN = JacobianControlModel(
    "ego", 2, 2, jacobian_fn=lambda _: np.eye(2), max_cartesian_accel_value=1.0
)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: runtime("p", obstacles=[WALL]), "SafetyOptions.obstacles: expected a tuple of sh"),
        (lambda: runtime("p", obstacles=("wall",)), r"shapes\[0\]: expected one of HalfSpace, Bal"),
        (lambda: runtime("p", obstacles=(Ball((0, 0, 5), 1.0),)), "expected 2-D shapes, got 3-D"),
        (
            lambda: runtime("p", obstacles=(WALL,), rate_limit="hard"),
            "expected rate_limit 'off' or 'soft', got 'hard'",
        ),
        (
            lambda: runtime("p", obstacles=(WALL,), solver="closed_form"),
            "expected a solver that takes many rows, such as 'daqp', got 'closed_form'",
        ),
        (
            lambda: runtime("p", obstacles=(WALL,), model=JACOBIAN, capacity=1.0),
            "expected an ego whose action is its acceleration, got JacobianControlModel",
        ),
    ],
)
def test_obstacles_that_nothing_can_be_promised_about_are_refused(make, told):
    with pytest.raises(ConfigurationError, match=told):
        make()


@pytest.mark.parametrize("given", [(Ball((0, 0, 5), 1.0),), ("wall",), [3]])
def test_malformed_scan_is_bad_input_and_leaves_the_lasting_obstacles(given):
    guard = runtime("p", obstacles=(WALL,))
    with pytest.raises(InputError, match="expected"):
        guard.step(np.zeros(2), {"ego": agent([0, 0])} | far(), obstacles=given)
    braking = runtime("p", obstacles=(WALL,), on_bad_input="brake")
    agents = {"ego": agent([0.3, 0], [1.2, 0])} | far()
    first = braking.step(np.array([C, 0.0]), agents, obstacles=given)
    assert first.action.tolist() == [0.0, 0.0]  # nothing is known yet
    assert first.info["static_uncertified"]
    sound = braking.step(np.array([C, 0.0]), agents)
    assert not sound.info["static_uncertified"]
    blind = braking.step(np.array([C, 0.0]), agents, obstacles=given)
    assert blind.bad_input is not None
    assert blind.action[0] < 0.0
    assert blind.info["static_uncertified"]


@pytest.mark.parametrize("wrong", [{"u": [math.nan, 0.0]}, {"seen": {}}])
def test_refused_observation_leaves_what_stands_around(wrong):
    """Shapes of a refused call are forgotten; a robot that brakes on bad input heeds them."""
    seen = {"ego": agent([0, 0])} | far()
    u, bad = np.array(wrong.get("u", [C, 0.0])), wrong.get("seen", seen)
    guard = runtime("p")
    with pytest.raises(InputError):
        guard.step(u, bad, obstacles=(WALL,))
    assert "static_margin" not in guard.step(np.zeros(2), seen).info
    braking = runtime("p", on_bad_input="brake")
    braking.step(np.zeros(2), seen)
    blind = braking.step(u, bad, obstacles=(WALL,))
    assert blind.bad_input is not None
    assert blind.info["static_margin"] == pytest.approx([1.0 - RADIUS - 1e-3])


def test_chosen_solver_decides_beside_obstacles(monkeypatch):
    """In a corner two walls are active, and DAQP is not asked where another solver is named."""
    corner = (WALL, HalfSpace((0.0, -1.0), -1.0))
    _, path = drive(runtime("p", obstacles=corner), (0, 0), (0, 0), (C, C))

    def refused(*_, **__):
        raise AssertionError

    monkeypatch.setattr(DaqpSolver, "run", refused)
    _, same = drive(runtime("p", obstacles=corner, solver="quadprog"), (0, 0), (0, 0), (C, C))
    assert same == pytest.approx(path, abs=1e-6)


def test_passive_robot_stays_at_rest_in_the_very_step_that_first_names_a_wall():
    """A lone partner drives at a robot at rest, from which it would flee with nothing around."""
    guard, speed = runtime("p", guarantee="passive"), -0.6
    for k, given in enumerate(({}, {}, {"obstacles": (HalfSpace((1.0, 0.0), -0.9),)})):
        agents = {"ego": agent([0, 0]), "p": agent([0.5 + k * DT * speed, 0], [speed, 0])}
        step = guard.step(np.zeros(2), agents, **given)
        guard.note_executed(np.zeros(2))
    assert step.action.tolist() == [0.0, 0.0]


def test_walls_of_the_last_scan_are_part_of_the_state():
    first, second = (runtime("p", on_bad_input="brake") for _ in range(2))
    first.step(np.zeros(2), {"ego": agent([0, 0], [1, 0])} | far(), obstacles=(WALL,))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    blind = [one.step_blind(np.zeros(2), InputError("no packet")) for one in (first, second)]
    assert blind[0].info["static_margin"] == blind[1].info["static_margin"]
    assert blind[0].action.tolist() == blind[1].action.tolist()
    assert second.state_dict() == first.state_dict()
    second.begin_episode()  # which nobody has named a wall in
    assert "around" not in second.state_dict()
    for broken in ([{"wall": {}}], 3, [{"half_space": {"normal": [1.0], "offset": 0.0}}]):
        with pytest.raises(InputError):
            second.load_state_dict(first.state_dict() | {"around": broken})
    assert "around" not in second.state_dict()


def test_soft_rate_limit_gives_way_to_a_wall_and_to_nothing_else():
    guard = runtime("p", obstacles=(WALL,), rate_limit="soft")
    x, v, last = np.zeros(2), np.zeros(2), None
    for k in range(40):
        nominal = np.array([C, 0.0] if k < 25 else [-C, C])
        step = guard.step(nominal, {"ego": agent(x, v)} | far())
        change = 0.0 if last is None else float(np.abs(step.action - last).max())
        assert step.info["rate_exceeded"] == (change > 1.0 + 1e-9)
        if step.info["rate_exceeded"]:
            assert step.info["backup"] == "brake"
        x, v, last = x + v * DT + 0.5 * step.action * DT**2, v + step.action * DT, step.action
    assert x[0] <= 1.0 - RADIUS


def test_rows_are_not_shared_beside_obstacles():
    with pytest.raises(ConfigurationError, match="a wall may keep a partner from taking its part"):
        runtime("p", obstacles=(WALL,), budget_split="proportional")


@pytest.mark.parametrize(("contact_speed", "obstacles"), [(0.0, (WALL,)), (0.25, ())])
def test_passive_robot_whose_actions_are_rounded_to_float32_rests_at_contacts(
    contact_speed, obstacles
):
    guard = runtime("a", "b", obstacles=obstacles, guarantee="passive", contact_speed=contact_speed)
    rng, fastest, touched = np.random.default_rng(4), 0.0, 0
    for _ in range(30):
        guard.begin_episode()
        x, v, people = np.zeros(2), np.zeros(2), {}
        for uid, turn in zip("ab", rng.uniform(0.0, 2.0 * math.pi, 2), strict=True):
            way = np.array([math.cos(turn), math.sin(turn)])
            people[uid] = [2.0 * way + [0.0, 0.1], -0.7 * way]  # past or through the start
        for _ in range(70):
            scene = {uid: agent(*motion) for uid, motion in people.items()}
            nominal = 3.0 * (np.array([1.0, 0.3]) - v)
            step = guard.step(nominal.clip(-C, C), {"ego": agent(x, v)} | scene)
            assert not step.uncertified
            u = np.float32(step.action)
            x, v = x + v * DT + 0.5 * u * DT**2, v + u * DT
            for motion in people.values():
                motion[0] = motion[0] + motion[1] * DT
                if np.linalg.norm(x - motion[0]) < 2.0 * RADIUS:
                    touched, fastest = touched + 1, max(fastest, float(np.linalg.norm(v)))
    assert touched > 0
    assert fastest <= contact_speed + 1e-6
