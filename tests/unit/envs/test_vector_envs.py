"""Contract of the planar vector tasks, and what each adds."""

from functools import partial

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.types import VectorEnvLike
from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
from cadenza.envs.doorway import (
    DoorwayDiffDriveEnv,
    DoorwayEnv,
    VectorDoorwayDiffDriveEnv,
    VectorDoorwayEnv,
)
from cadenza.envs.mpe import MPECooperativePushEnv, VectorMPECooperativePushEnv

PAIRS = [
    pytest.param(VectorMPECooperativePushEnv, MPECooperativePushEnv, id="mpe"),
    pytest.param(VectorCrossingEnv, CrossingEnv, id="crossing"),
    pytest.param(VectorDoorwayEnv, DoorwayEnv, id="doorway"),
    pytest.param(VectorDoorwayDiffDriveEnv, DoorwayDiffDriveEnv, id="doorway_diffdrive"),
]
VECTORS = [pytest.param(pair.values[0], id=pair.id) for pair in PAIRS]


def still(env):
    return {uid: np.zeros((env.num_envs, 2)) for uid in env.agent_uids}


def ego(obs):
    return obs["agent"]["ego"]["state"]


@pytest.mark.parametrize(("vector", "scalar"), PAIRS)
def test_spaces_and_attributes_are_those_of_the_scalar_env(vector, scalar):
    many, one = vector(3), scalar()
    assert isinstance(many, VectorEnvLike)
    assert many.single_observation_space == one.observation_space
    assert many.single_action_space == one.action_space
    assert many.observation_space.contains(many.reset(seed=0)[0])
    assert many.observation_space.contains(many.step(many.action_space.sample())[0])
    for name in ("agent_uids", "ego_uid", "partner_uid", "control_timestep", "episode_length"):
        assert getattr(many, name) == getattr(one, name)
    assert many.num_envs == 3


@pytest.mark.parametrize(("vector", "scalar"), PAIRS)
def test_reset_starts_the_episodes_of_its_seeds_or_moves_on_from_zero(vector, scalar):
    many, one = vector(3), scalar()
    for given, seeds in ((None, (0, 1, 2)), (None, (3, 4, 5)), ([5, 0, 9], (5, 0, 9))):
        obs = (vector(3) if given else many).reset(seed=given)[0]
        for row, seed in zip(ego(obs), seeds, strict=True):
            assert row.tobytes() == ego(one.reset(seed=seed)[0]).tobytes()


@pytest.mark.parametrize("vector", VECTORS)
def test_same_step_reset_returns_both_observations(vector):
    env = vector(2, episode_length=1)
    first = ego(env.reset(seed=0)[0]).copy()
    obs, _, terminated, truncated, info = env.step(still(env))
    assert truncated.tolist() == [True, True]
    assert terminated.tolist() == [False, False]
    # Nobody moved, so the final observation is the first one, but for the time that the door tells
    # after 10 numbers or more; the new one is another episode's.
    np.testing.assert_array_equal(ego(info["final_observation"])[:, :10], first[:, :10])
    assert info["final_obs"] is info["final_observation"]
    assert info["_final_obs"].tolist() == [True, True]
    assert (ego(obs) != first).any(axis=1).all()
    np.testing.assert_array_equal(ego(obs), ego(vector(2).reset(seed=2)[0]))


@pytest.mark.parametrize("vector", VECTORS)
def test_observations_of_earlier_steps_do_not_change(vector):
    env = vector(2)
    first = env.reset(seed=0)[0]
    kept = ego(first).copy()
    env.step({uid: np.ones((2, 2)) for uid in env.agent_uids})
    np.testing.assert_array_equal(ego(first), kept)


@pytest.mark.parametrize("vector", VECTORS)
def test_philox_layouts_are_reproducible_and_another_stream(vector):
    philox = vector(4, rng="philox", root_seed=1)
    first = ego(philox.reset(seed=0)[0]).copy()
    np.testing.assert_array_equal(ego(philox.reset(seed=0)[0]), first)
    assert (ego(vector(4, root_seed=1).reset(seed=0)[0]) != first).any(axis=1).all()
    assert (ego(vector(4, rng="philox").reset(seed=0)[0]) != first).any(axis=1).all()
    # Copy and episode select the draws: copy 1 at seed 0 is copy 0 at seed 1.
    np.testing.assert_array_equal(ego(philox.reset(seed=1)[0])[:3], first[1:])


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs: expected an integer >= 1, got 0"),
        ({"num_envs": 1, "episode_length": 0}, "episode_length: expected an integer >= 1"),
        ({"num_envs": 1, "root_seed": -1}, "root_seed: expected an integer >= 0"),
        ({"num_envs": 1, "autoreset": "never"}, "autoreset 'same_step' or 'next_step', got 'never"),
        ({"num_envs": 1, "rng": "mt19937"}, "rng 'substream' or 'philox', got 'mt19937'"),
        ({"num_envs": 1, "agent_uids": ("a", "a")}, "distinct"),
        ({"num_envs": 1, "agent_uids": ("a", "b", "c")}, "2-tuple"),
    ],
)
def test_construction_with_bad_argument_names_it(vector, arguments, message):
    with pytest.raises(InputError, match=message):
        vector(**arguments)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize(
    ("seed", "message"),
    [(-1, "seed: expected an integer >= 0"), ([1], "2 seeds, got 1"), (2**62, r"seed < 2\^62")],
)
def test_reset_with_bad_seed_names_it(vector, seed, message):
    with pytest.raises(InputError, match=message):
        vector(2).reset(seed=seed)


@pytest.mark.parametrize("vector", VECTORS)
def test_step_before_reset_asks_for_it(vector):
    env = vector(2)
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(still(env))


BAD_ACTIONS = [
    ({"ego": np.zeros((2, 2))}, "missing uid 'partner'"),
    (
        {"ego": np.zeros((2, 2)), "partner": np.zeros(2)},
        r"'partner' to have shape \(2, 2\), got \(2,\)",
    ),
    ({"ego": np.zeros((3, 2)), "partner": np.zeros((2, 2))}, r"'ego' to have shape \(2, 2\)"),
    (
        {"ego": np.zeros((2, 2)), "partner": np.array([[0, 0], [0, np.nan]])},
        r"finite action of 'partner', got \[0.0, nan\] in env 1",
    ),
    ({"ego": np.zeros((2, 2)), "partner": "up"}, "'partner' to be .* of (real )?numbers, got str"),
]


TORCH = pytest.param(partial(VectorMPECooperativePushEnv, backend="torch"), id="torch")


@pytest.mark.parametrize("vector", [*VECTORS, TORCH])
@pytest.mark.parametrize(("action", "message"), BAD_ACTIONS)
def test_step_with_bad_action_names_robot_and_env(vector, action, message):
    env = vector(2)
    env.reset(seed=0)
    with pytest.raises(InputError, match=message):
        env.step(action)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_step_with_huge_finite_actions_is_no_error(backend):
    env = VectorMPECooperativePushEnv(2, backend=backend)
    env.reset(seed=0)
    huge = np.full((2, 2), 1e308)  # the sum overflows although every entry is finite
    obs = env.step({"ego": huge, "partner": huge})[0]
    assert ego(obs)[:, 2:4].tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_torch_backend_returns_tensors_that_agree_with_numpy(precision):
    tensors = VectorMPECooperativePushEnv(5, backend="torch", precision=precision, episode_length=3)
    arrays = VectorMPECooperativePushEnv(5, episode_length=3)
    rng = np.random.default_rng(0)
    assert isinstance(ego(tensors.reset(seed=2)[0]), torch.Tensor)
    arrays.reset(seed=2)
    tolerance = 1e-15 if precision == "float64" else 1e-6
    for step in range(7):
        action = {uid: rng.uniform(-2, 2, (5, 2)) for uid in arrays.agent_uids}
        given = {uid: torch.from_numpy(value) for uid, value in action.items()}
        obs_t, reward_t, terminated_t, truncated_t, info_t = tensors.step(given)
        obs, reward, terminated, truncated, info = arrays.step(action)
        assert obs_t["agent"]["ego"]["state"].dtype == torch.float32
        np.testing.assert_allclose(ego(obs_t).numpy(), ego(obs), atol=tolerance, rtol=0)
        np.testing.assert_allclose(reward_t.numpy(), reward, rtol=tolerance)
        assert terminated_t.tolist() == terminated.tolist()
        assert truncated_t.tolist() == truncated.tolist()
        assert ("final_observation" in info_t) == ("final_observation" in info) == (step % 3 == 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "jax"}, "backend 'numpy' or 'torch', got 'jax'"),
        ({"device": "cuda"}, "device 'cpu' and precision 'float64' with backend 'numpy'"),
        ({"precision": "float32"}, "use backend='torch'"),
        ({"backend": "torch", "precision": "float16"}, "'float64' or 'float32', got 'float16'"),
        ({"backend": "torch", "device": "abacus"}, "usable torch device, got 'abacus'"),
    ],
)
def test_construction_with_bad_backend_names_it(arguments, message):
    with pytest.raises(InputError, match=message):
        VectorMPECooperativePushEnv(2, **arguments)


# Safety hooks.


@pytest.mark.parametrize("num_robots", [2, 5])
def test_hooks_show_what_the_scalar_environment_shows(num_robots):
    batch = VectorCrossingEnv(3, num_robots=num_robots)
    batch.reset(seed=5)
    rng = np.random.default_rng(num_robots)
    actions = {uid: rng.uniform(-1, 1, (3, 2)).astype("float32") for uid in batch.agent_uids}
    batch.step(actions)
    seen = batch.build_agent_batch()
    for row in range(3):
        scalar = CrossingEnv(num_robots=num_robots)
        scalar.reset(seed=5 + row)
        scalar.step({uid: action[row] for uid, action in actions.items()})
        expected = scalar.build_agent_snapshots()
        actual = seen.snapshots(row)
        assert list(actual) == list(expected)
        for uid, snapshot in expected.items():
            assert actual[uid].position.tobytes() == snapshot.position.tobytes()
            assert actual[uid].velocity.tobytes() == snapshot.velocity.tobytes()
            assert actual[uid].radius == snapshot.radius
    assert batch.build_control_models() == scalar.build_control_models()
    assert batch.build_bounds() == scalar.build_bounds()
    assert (batch.plant, batch.control_timestep) == (scalar.plant, scalar.control_timestep)


def test_hook_before_the_first_reset_is_refused():
    with pytest.raises(NotReadyError, match="expected a state, got none yet"):
        VectorCrossingEnv(2).build_agent_batch()
