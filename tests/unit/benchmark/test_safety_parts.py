"""The parts of a safety filter, from an environment's hooks or from its spaces alone."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.aht.config import load_config
from cadenza.benchmark import (
    TrainedPolicyFactory,
    build_bounds_for_env,
    build_control_models,
    build_emergency_controllers,
    build_env,
    build_safety_dt,
    build_safety_filter,
    build_safety_snapshot_builder,
)
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.core.shipped_configs import shipped_config
from cadenza.safety import Bounds, CartesianAccelEmergencyController


def bare(space=None):
    if space is None:
        box = spaces.Box(-3.0, 2.0, (2,))
        space = spaces.Dict({"a": box, "b": box})
    return SimpleNamespace(action_space=space)


@pytest.fixture(scope="module")
def crossing():
    cfg = load_config(config_path=shipped_config("train/crossing"))
    env = build_env(
        cfg.env.model_copy(update={"num_envs": 1}), root_seed=0, partner=cfg.partners[0]
    )
    env.reset(seed=0)
    return env


def test_hooks_of_the_environment_win(crossing):
    assert build_bounds_for_env(crossing) == crossing.build_bounds()
    assert build_safety_dt(crossing) == crossing.control_timestep == 0.05
    assert set(build_control_models(crossing)) == {"ego", "partner"}
    read = build_safety_snapshot_builder(crossing)
    np.testing.assert_array_equal(
        read(crossing)["ego"].position, crossing.build_agent_snapshots()["ego"].position
    )


def test_without_hooks_actions_are_accelerations():
    env = bare()
    assert build_bounds_for_env(env) == Bounds(3.0, 3.0, 6.0, 0.0, 0.0)
    assert build_safety_dt(env) == 0.02
    assert build_safety_dt(env, fallback=0.1) == 0.1
    assert build_safety_snapshot_builder(env) is None
    assert {uid: m.action_dim for uid, m in build_control_models(env).items()} == {"a": 2, "b": 2}
    controllers = build_emergency_controllers(env)
    assert all(type(c) is CartesianAccelEmergencyController for c in controllers.values())
    assert build_safety_filter(env).filter is not None
    endless = bare(spaces.Dict({"a": spaces.Box(-np.inf, np.inf, (2,))}))
    assert build_bounds_for_env(endless).action_linf_component == 1.0


@pytest.mark.parametrize(
    ("space", "error"),
    [
        (spaces.Box(-1.0, 1.0, (2,)), ConfigurationTypeError),
        (spaces.Dict({"a": spaces.Discrete(3)}), ConfigurationTypeError),
        (spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2, 2))}), ConfigurationError),
    ],
)
def test_other_spaces_are_refused(space, error):
    with pytest.raises(error):
        build_control_models(bare(space))


def test_trained_policy_takes_seats_and_seed_from_the_cell(tmp_path):
    changes = [
        "total_frames=400",
        "checkpoint_every=400",
        "env.num_envs=1",
        "happo.rollout_length=200",
        f"artifacts_root={tmp_path}",
        f"log_dir={tmp_path}",
        "evaluation.every_frames=0",
    ]
    cfg = load_config(config_path=shipped_config("train/mpe_cooperative_push"), overrides=changes)
    env = build_env(
        cfg.env.model_copy(update={"agent_uids": ("one", "two")}), root_seed=0, partner=cfg.partner
    )
    env.ego_uid, env.partner_uid = "one", "two"
    factory = TrainedPolicyFactory(cfg=cfg)
    used = factory.configuration(env, 7)
    assert (used.seed, used.env.agent_uids, used.partner.extra["uid"]) == (7, ("one", "two"), "two")
    obs, _ = env.reset(seed=0)
    action = factory(env, 7)(obs)
    assert (action.shape, action.dtype) == ((2,), np.float32)
    np.testing.assert_array_equal(factory(env, 7)(obs), action)  # the same training, not another
