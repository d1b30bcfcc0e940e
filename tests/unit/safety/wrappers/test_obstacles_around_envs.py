"""Walls around an environment whose ego commands its acceleration."""

import numpy as np
import pytest

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety import SafetyOptions
from cadenza.safety.geometry import HalfSpace, Obstacles, Points


def played(env, steps=120):
    """Push forward; return the ego's positions and the records."""
    env.reset(seed=0)
    positions, records = [], []
    for _ in range(steps):
        *_, info = env.step(np.ones(2, np.float32))
        positions.append(env.unwrapped.build_agent_snapshots()["ego"].position)
        records.append(info["safety"])
    return np.array(positions), records


def start():
    env = cadenza.guard("cadenza/Crossing-v1")
    env.reset(seed=0)
    ego = env.unwrapped.build_agent_snapshots()["ego"]
    return ego.position, ego.radius


@pytest.mark.parametrize("way", ["options", "shapes", "map", "scan"])
def test_ego_stops_before_a_wall_however_it_is_named(way):
    position, radius = start()
    wall = HalfSpace((0.0, -1.0), -float(position[1]) - 1.5)  # 1.5 m ahead of the start
    line = np.stack([np.linspace(-9.0, 9.0, 361), np.full(361, position[1] + 1.55)], axis=1)
    given = {
        "options": {"options": SafetyOptions(obstacles=(wall,))},
        "shapes": {"obstacles": [wall]},
        "map": {"obstacles": Obstacles([wall])},
        "scan": {"obstacles": lambda env, obs, info: [Points(line, 0.05)]},
    }[way]
    free, _ = played(cadenza.guard("cadenza/Crossing-v1"))
    assert free[:, 1].max() > position[1] + 1.5
    kept, records = played(cadenza.guard("cadenza/Crossing-v1", **given))
    assert kept[:, 1].max() <= position[1] + 1.5 - radius
    assert kept[:, 1].max() > position[1] + 1.0
    assert not any(record["static_uncertified"] for record in records)
    assert records[-1]["static_margin"].min() >= 0.0
    assert records[0]["backup"] == "none"
    assert records[-1]["intervened"]


def test_obstacles_and_fallbacks_of_the_caller_exclude_each_other():
    wall = HalfSpace((0.0, -1.0), -9.0)
    for obstacles in ([wall], lambda env, obs, info: [wall]):
        with pytest.raises(ConfigurationError, match="expected fallback 'retreat' beside obstac"):
            cadenza.guard("cadenza/Crossing-v1", obstacles=obstacles, fallback="stop")


def test_what_is_no_obstacle_is_refused():
    with pytest.raises(ConfigurationError, match="obstacles: expected"):
        cadenza.guard("cadenza/Crossing-v1", obstacles=3)
    with pytest.raises(ConfigurationError, match=r"shapes\[0\]: expected one of HalfSpace"):
        cadenza.guard("cadenza/Crossing-v1", obstacles=["wall"])
    for wrong in (None, 3, ["wall"], np.zeros((3, 2))):
        env = cadenza.guard("cadenza/Crossing-v1", obstacles=lambda e, o, i, w=wrong: w)
        env.reset(seed=0)
        with pytest.raises(InputError, match="expected"):
            env.step(np.ones(2, np.float32))
