"""Building the ManiSkill tasks where ManiSkill is absent: what is refused, and by which words."""

import sys

import pytest

from cadenza.aht.config import EnvConfig
from cadenza.benchmark.builders import build_env
from cadenza.benchmark.tasks import STAGE1_PICKPLACE
from cadenza.core.errors import ConfigurationError
from cadenza.envs import ChamberEnvCompatibilityError
from cadenza.envs.maniskill.stage1_conditions import AS_HETERO, AS_HOMO, OM_HOMO


def build(task="stage1_pickplace", render_mode=None, **settings):
    return build_env(EnvConfig(task=task, **settings), root_seed=0, render_mode=render_mode)


def test_task_comes_in_the_two_conditions_with_a_flat_state():
    assert STAGE1_PICKPLACE.conditions == (AS_HOMO, AS_HETERO)
    with pytest.raises(ConfigurationError, match=r"condition_id: expected one of .*vision_only"):
        build(condition_id=OM_HOMO)
    with pytest.raises(ConfigurationError, match=r"condition_id: expected None, got"):
        build("crossing", condition_id=AS_HOMO)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("stage1_pickplace", {"agent_uids": ("panda_wristcam", "fetch")}, "panda_partner"),
        ("stage1_pickplace", {"render_mode": "rgb_array"}, "make_stage1_pickplace_env"),
        ("stage0_smoke", {"agent_uids": ("a", "b")}, "agent_uids: expected .*panda_wristcam"),
    ],
)
def test_setting_that_a_simulated_task_does_not_have_is_refused(task, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        build(task, **settings)


@pytest.mark.parametrize("task", ["stage0_smoke", "stage1_pickplace"])
def test_absent_simulator_is_named_with_its_extra(monkeypatch, task):
    monkeypatch.setitem(sys.modules, "sapien", None)
    with pytest.raises(ChamberEnvCompatibilityError, match=r"cadenza\[maniskill\]"):
        build(task)
