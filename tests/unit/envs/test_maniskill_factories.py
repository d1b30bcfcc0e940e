"""What the ManiSkill folder does without ManiSkill: conditions, models, choices and errors."""

import importlib
import os
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError, MissingExtraError
from cadenza.envs import (
    ChamberEnvCompatibilityError,
    ConditionConfig,
    build_control_models_for_condition,
    make_stage1_pickplace_env,
    resolve_condition,
)
from cadenza.envs.maniskill import device, make_stage0_env, simulator
from cadenza.envs.maniskill.stage0 import Stage0TrainingEnv
from cadenza.envs.maniskill.stage1_conditions import AS_HETERO, AS_HOMO, CONDITION_IDS, OM_HETERO
from cadenza.safety.api import (
    AgentSnapshot,
    Bounds,
    DoubleIntegratorControlModel,
    JacobianControlModel,
)

BOUNDS = Bounds(1.0, 10.0, 10.0, 0.0, 50.0)
STATE = AgentSnapshot(np.zeros(3), np.zeros(3), 0.1)


@pytest.mark.parametrize(
    ("condition_id", "partner", "obs_mode", "om", "ft"),
    [
        ("stage1_pickplace_panda_only_mappo_shared_param", "panda_partner", "state_dict", 0, 0),
        ("stage1_pickplace_panda_plus_fetch_ego_aht_happo_per_agent", "fetch", "state_dict", 0, 0),
        ("stage1_pickplace_vision_only", "fetch", "rgb+depth+state_dict", 1, 0),
        (
            "stage1_pickplace_vision_plus_force_torque_plus_proprio",
            "fetch",
            "rgb+depth+state_dict",
            1,
            1,
        ),
    ],
)
def test_conditions_are_the_pre_registered_ones(condition_id, partner, obs_mode, om, ft):
    expected = ConditionConfig(
        condition_id, ("panda_wristcam", partner), obs_mode, bool(om), bool(ft)
    )
    assert resolve_condition(condition_id) == expected
    assert len(CONDITION_IDS) == 4


def test_unknown_condition_is_answered_with_the_known_before_any_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "sapien", None)
    for call in (
        lambda: resolve_condition("stage2"),
        lambda: make_stage1_pickplace_env(condition_id="stage2"),
        lambda: build_control_models_for_condition("stage2"),
    ):
        with pytest.raises(ValueError, match=r"not one of the four .*vision_only.*ADR-007"):
            call()


def test_models_without_a_simulator_declare_capacities():
    models = build_control_models_for_condition(AS_HETERO)
    ego, fetch = models["panda_wristcam"], models["fetch"]
    assert isinstance(ego, JacobianControlModel)
    assert (ego.action_dim, ego.position_dim, ego.max_cartesian_accel(BOUNDS)) == (8, 3, 10.0)
    with pytest.raises(NotImplementedError):
        ego.action_to_cartesian_accel(STATE, np.zeros(8))
    assert isinstance(fetch, DoubleIntegratorControlModel)
    assert (fetch.action_dim, fetch.max_cartesian_accel(BOUNDS)) == (2, 1.5)
    driven = build_control_models_for_condition(AS_HETERO, fetch_action_dim=13)["fetch"]
    assert (driven.action_dim, driven.max_cartesian_accel(BOUNDS)) == (13, 1.5)


def test_one_jacobian_serves_all_pandas_and_a_mapping_each_robot():
    def of(scale):
        return lambda state: scale * np.eye(3, 8)

    pair = build_control_models_for_condition(AS_HOMO, jacobian_fn=of(2.0))
    assert all(model.jacobian(STATE)[0, 0] == 2.0 for model in pair.values())
    each = build_control_models_for_condition(
        AS_HOMO,
        jacobian_fn={"panda_wristcam": of(1.0), "panda_partner": of(3.0)},
        control_timestep_s=0.05,
        partner_accel_capacity=1.5,
    )
    # A joint step within 0.05 s: divided by 0.05^2.
    assert each["panda_wristcam"].jacobian(STATE)[0, 0] == pytest.approx(400.0)
    assert each["panda_partner"].jacobian(STATE)[0, 0] == pytest.approx(1200.0)
    assert [m.max_cartesian_accel(BOUNDS) for m in each.values()] == [10.0, 1.5]


@pytest.mark.parametrize(
    "make", [make_stage0_env, lambda: make_stage1_pickplace_env(condition_id=AS_HOMO)]
)
def test_absent_simulator_is_named_with_its_extra(monkeypatch, make):
    monkeypatch.setitem(sys.modules, "sapien", None)
    with pytest.raises(
        ChamberEnvCompatibilityError,
        match=r"expected ManiSkill .*pip install 'cadenza\[maniskill\]'",
    ) as caught:
        make()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, ImportError)


def test_partner_agent_is_none_and_the_env_module_names_the_extra_without_maniskill(monkeypatch):
    for name in ("panda_partner", "base_env", "stage1_env"):
        monkeypatch.delitem(sys.modules, f"cadenza.envs.maniskill.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "sapien", None)
    monkeypatch.setitem(sys.modules, "mani_skill", None)
    module = importlib.import_module("cadenza.envs.maniskill.panda_partner")
    assert module.PandaPartner is None
    with pytest.raises(MissingExtraError, match=r"cadenza\[maniskill\]"):
        importlib.import_module("cadenza.envs.maniskill.stage1_env")
    for name in ("panda_partner", "base_env", "stage1_env"):
        sys.modules.pop(f"cadenza.envs.maniskill.{name}", None)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"episode_length": 0}, "episode_length"),
        ({"root_seed": -1}, "root_seed"),
        ({"num_envs": 0}, "num_envs"),
        ({"force_torque_noise_sigma": np.nan}, "force_torque_noise_sigma"),
        ({"partner_accel_capacity": -1.0}, "partner_accel_capacity"),
        ({"compat": "downstream"}, "compat"),
    ],
)
def test_argument_out_of_range_is_named(settings, name):
    with pytest.raises(InputError, match=name):
        make_stage1_pickplace_env(condition_id=OM_HETERO, **settings)


@pytest.mark.parametrize(
    ("argument", "variable", "images", "renders", "cuda", "expected"),
    [
        (None, "", False, False, False, "none"),
        (None, "", False, True, True, "none"),
        (None, "", True, True, False, "cpu"),
        (None, "", True, True, True, "gpu"),
        (None, "none", False, True, True, "none"),
        ("cpu", "none", True, True, True, "cpu"),
        (None, "sapien_cuda:1", True, True, True, "sapien_cuda:1"),
    ],
)
def test_render_backend_is_argument_then_variable_then_need(
    monkeypatch, argument, variable, images, renders, cuda, expected
):
    monkeypatch.setenv("CHAMBER_RENDER_BACKEND", variable)
    monkeypatch.setattr(simulator, "sapien_gpu_available", lambda: renders)
    monkeypatch.setattr(simulator, "torch_cuda_available", lambda: cuda)
    assert simulator.choose_render_backend("x", argument, images=images) == expected


@pytest.mark.parametrize(
    ("argument", "variable", "images", "message"),
    [
        ("none", "", True, "render_backend='none'"),
        (None, "none", True, "CHAMBER_RENDER_BACKEND='none'"),
        (None, "", True, "expected a device .* mesa-vulkan-drivers"),
        ("gpu", "", False, "expected a device .* CHAMBER_RENDER_BACKEND=none"),
    ],
)
def test_images_without_a_renderer_say_what_is_missing(
    monkeypatch, argument, variable, images, message
):
    monkeypatch.setenv("CHAMBER_RENDER_BACKEND", variable)
    monkeypatch.setattr(simulator, "sapien_gpu_available", lambda: False)
    with pytest.raises(ChamberEnvCompatibilityError, match=message):
        simulator.choose_render_backend("x", argument, images=images)


def test_several_scenes_on_a_cpu_are_refused(monkeypatch):
    monkeypatch.setattr(simulator, "torch_cuda_available", lambda: False)
    simulator.require_parallel("x", 1)
    with pytest.raises(ChamberEnvCompatibilityError, match="num_envs = 1 without CUDA, got 2"):
        simulator.require_parallel("x", 2)


def test_failure_of_the_simulator_keeps_its_words():
    with (
        pytest.raises(ChamberEnvCompatibilityError, match=r"no device.*CHAMBER_RENDER_BACKEND"),
        simulator.construction("x"),
    ):
        raise RuntimeError("no device")
    with pytest.raises(TypeError), simulator.construction("x"):
        raise TypeError


def test_device_helpers_never_raise(monkeypatch):
    monkeypatch.setitem(sys.modules, "sapien.render", None)
    assert device.sapien_gpu_available() is False
    assert device.sapien_cuda_renderer_available() is False
    assert device.torch_cuda_available() == (
        torch.cuda.is_available() and torch.cuda.device_count() > 0
    )
    assert device.torch_device().type in ("cuda", "mps", "cpu")
    report = device.device_report()
    assert os.linesep not in report
    assert report.endswith("SAPIEN renderer: none")


class FakeTeam(gym.Env):
    """Three robots that remember their actions."""

    def __init__(self):
        boxes = {uid: gym.spaces.Box(-1, 1, (n,)) for uid, n in (("a", 2), ("b", 3), ("c", 1))}
        self.action_space = gym.spaces.Dict(boxes)
        self.observation_space = gym.spaces.Dict({"agent": gym.spaces.Dict({})})

    def reset(self, *, seed=None, options=None):
        return {}, {}

    def step(self, action):
        self.last = action
        return {}, np.float32(0.0), False, False, {}


def test_training_env_drives_the_named_robots_and_truncates():
    env = Stage0TrainingEnv(FakeTeam(), agent_uids=("b", "a"), episode_length=2)
    assert (env.ego_uid, env.partner_uid, list(env.action_space)) == ("b", "a", ["a", "b"])
    env.reset(seed=0)
    action = {"a": np.ones(2), "b": np.ones(3)}
    assert env.step(action)[1:4] == (0.0, False, False)
    assert env.step(action)[3] is True
    assert env.unwrapped.last["c"].tolist() == [0.0]
    env.reset()
    assert env.step(action)[3] is False
    with pytest.raises(ValueError, match="missing uid 'a'"):
        env.step({"b": np.ones(3)})


@pytest.mark.parametrize("uids", [(), ("a", "z")])
def test_training_env_refuses_robots_it_does_not_have(uids):
    with pytest.raises(ValueError, match=r"agent_uids among \['a', 'b', 'c'\]"):
        Stage0TrainingEnv(FakeTeam(), agent_uids=uids)


def test_training_env_refuses_other_action_spaces():
    team = FakeTeam()
    team.action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})
    with pytest.raises(TypeError, match="Dict of Boxes"):
        Stage0TrainingEnv(team, agent_uids=("a",))


def test_robots_are_keyed_by_their_plain_names():
    class Robot:
        def __init__(self, uid):
            self.uid = uid

        def get_proprioception(self):
            return self.uid.upper()

    team = SimpleNamespace(agents=[Robot("arm"), Robot("base")])
    simulator.name_robots_plainly(team)
    assert list(team.agents_dict) == ["arm", "base"]
    assert team.get_proprioception() == {"arm": "ARM", "base": "BASE"}
    simulator.name_robots_plainly(single := Robot("arm"))
    assert not hasattr(single, "agents_dict")


def test_stand_in_takes_everything_but_private_names():
    material = simulator.Inert(base_color=[1, 0, 0, 1])
    material.roughness = 0.5
    assert (material.roughness, material.metallic) == (0.5, None)
    with pytest.raises(AttributeError):
        material.__deepcopy__  # noqa: B018
