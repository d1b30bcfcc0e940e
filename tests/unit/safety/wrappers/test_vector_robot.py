"""A batch of rooms is guarded as each of them is."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import cadenza
from cadenza.safety import AgentSnapshot, PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import HalfSpace, Sphere

DT, RADIUS, ENVS = 0.1, 0.2, 10
WALLS = [HalfSpace((1, 0), -1.5), HalfSpace((-1, 0), -1.5), Sphere((0.0, 1.0), 0.2)]
AROUND = {"partner": PartnerBound("person", 0.6), "obstacles": WALLS}


class Room(gym.Env):
    """An ideal base and a person that follows it; an episode lasts 12 steps."""

    control_timestep = DT
    model = VelocityModel("robot", 2, 1.0, limit="none")
    met, gap = 0, np.inf

    def __init__(self):
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.robot = self.np_random.uniform(-1.0, 1.0, 2) * (1.0, 0.5)
        self.person, self.velocity, self.steps = self.robot + np.array([0.0, -0.8]), np.zeros(2), 0
        return self.observation(), {}

    def observation(self):
        return np.concatenate((self.robot, self.person))

    def step(self, action):
        self.velocity = np.array(action)
        self.robot = self.robot + DT * self.velocity
        way = self.robot - self.person
        self.person = self.person + 0.6 * DT * way / np.linalg.norm(way)
        self.steps += 1
        self.met += 1
        self.gap = min(self.gap, 1.5 - abs(self.robot[0]) - RADIUS)
        return self.observation(), -float(np.abs(self.robot).sum()), False, self.steps >= 12, {}

    def build_agent_snapshots(self):
        return {
            "robot": AgentSnapshot(self.robot, self.velocity, RADIUS),
            "person": AgentSnapshot(self.person, (0.0, 0.0), RADIUS),
        }


class WheeledRoom(Room):
    """The same for a base that turns and drives at once."""

    model = UnicycleModel("robot", 1.0, 1.0, 4.0, np.inf, np.inf, RADIUS, look_ahead_m=0.3)

    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Box(-4.0, 4.0, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.heading, self.motion = 0.3, (0.0, 0.0)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.motion = action
        self.heading += DT * action[1]
        forward = np.array([np.cos(self.heading), np.sin(self.heading)])
        return super().step(action[0] * forward)

    def build_agent_snapshots(self):
        robot = self.model.snapshot(*self.robot, self.heading, *self.motion)
        return super().build_agent_snapshots() | {"robot": robot}


def guarded(env, room):
    walker = PartnerBound("person", 0.6)
    return cadenza.guard(env, robot=room.model, partner=walker, obstacles=WALLS)


@pytest.mark.parametrize("room", [Room, WheeledRoom])
def test_batch_of_rooms_is_guarded_as_each_room(room):
    batch = guarded(SyncVectorEnv([room] * ENVS), room)
    alone = [guarded(room(), room) for _ in range(ENVS)]
    batch.reset(seed=list(range(ENVS)))
    for row, env in enumerate(alone):
        env.reset(seed=row)
    rng, sources = np.random.default_rng(1), set()
    for _ in range(12):
        actions = rng.uniform(-1.0, 1.0, (ENVS, 2))
        observations, _, _, _, info = batch.step(actions)
        assert info["_safety"].all()
        for row, env in enumerate(alone):
            observation, _, _, _, single = env.step(actions[row])
            np.testing.assert_allclose(observations[row], observation, atol=1e-9)
            mine, theirs = info["safety"], single["safety"]
            for key in ("backup", "uncertified", "static_uncertified", "intervened"):
                assert mine[key][row] == theirs[key]
            assert mine["margin"][row, 0] == pytest.approx(theirs["margin"]["person"], abs=1e-9)
            sources.add(theirs["backup"])
    assert len(sources) > 1
    info = batch.step(actions)[-1]  # which begins new episodes
    assert not info["_safety"].any()
    assert batch.backup_filter.state_dict()["rows"][0]["plan"] is None


def test_policy_trained_through_a_guarded_batch_touches_no_wall():
    batch = SyncVectorEnv([Room] * ENVS)
    cadenza.PPO(guarded(batch, Room), rollout_length=40, seed=0).learn(400)
    assert sum(env.met for env in batch.envs) >= 300
    assert min(env.gap for env in batch.envs) >= 0.0


class HookedRoom(Room):
    """The room tells everything by itself."""

    ego_uid = "robot"

    def build_robot_models(self):
        return {"robot": self.model}

    def build_partner_bound(self):
        return PartnerBound("person", 0.6)

    def build_obstacles(self):
        return WALLS


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_environments_of_a_batch_offer_everything_by_themselves(kind):
    batch = kind([HookedRoom] * 3)
    told = cadenza.guard(SyncVectorEnv([Room] * 3), robot=Room.model, **AROUND)
    silent = cadenza.guard(batch)
    for env in (told, silent):
        env.reset(seed=5)
    for _ in range(20):
        action = np.tile([0.9, 0.4], (3, 1))
        (_, _, _, _, ours), (_, _, _, _, theirs) = silent.step(action), told.step(action)
        assert (ours["safety"]["applied_action"] == theirs["safety"]["applied_action"]).all()
        assert (ours["safety"]["static_margin"] == theirs["safety"]["static_margin"]).all()
    silent.close()


def test_asking_environments_in_processes_for_robots_leaves_them_alive():
    from tests.unit.safety.wrappers.plane_env import HookedPlaneEnv

    batch = cadenza.guard(AsyncVectorEnv([HookedPlaneEnv] * 2))
    batch.reset(seed=0)
    *_, info = batch.step(np.zeros((2, 2), np.float32))
    assert "lambda" in info["safety"]
    batch.close()


def test_batch_of_the_task_at_the_door_is_guarded_by_its_hooks():
    batch = cadenza.guard(gym.make_vec("cadenza/DoorwayDiffDrive-v1", num_envs=3))
    batch.reset(seed=0)
    for _ in range(60):
        *_, info = batch.step(np.tile(np.float32([1.0, 0.0]), (3, 1)))
        assert info["safety"]["margin"].shape == (3, 1)
        assert info["safety"]["static_margin"].shape == (3, 6)
        assert not info["contact"].any()
