"""What was trained for one task contract is refused beside another, at every door."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import cadenza
from cadenza import contracts
from cadenza.aht.config import PartnerConfig
from cadenza.benchmark.builders import build_partner
from cadenza.benchmark.policies import EgoSeat, ego_seat, load_policy
from cadenza.contracts import ActionField, ObsField, TaskContract, register
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.envs import CrossingEnv, VectorCrossingEnv
from cadenza.envs.adapters import EgoGymEnv
from cadenza.envs.mpe import VectorMPECooperativePushEnv
from cadenza.learn.nn.portable import load_policy_file
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

SMALL = {"hidden_sizes": (8,)}


def reaching(unit="m", **changes):
    values = {
        "task_id": "reaching",
        "obs_spec": (ObsField("mode"), ObsField("position", 2, unit, "world")),
        "action_spec": (ActionField("velocity", 2, -1.0, 1.0, unit="m/s"),),
        "control_hz": 10,
    }
    return TaskContract(**{**values, **changes})


class Reaching(gym.Env):
    observation_space = spaces.Dict(
        mode=spaces.Discrete(2), position=spaces.Box(-1, 1, (2,), np.float32)
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, contract=None):
        if contract is not None:
            self.task_contract = contract

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"position": np.ones(2, np.float32), "mode": 1}, {}

    def step(self, action):
        return {"position": np.ones(2, np.float32), "mode": 1}, 0.0, False, False, {}


METRES, MILLIMETRES = lambda: Reaching(reaching()), lambda: Reaching(reaching("mm"))
TOLD = "observation position: expected unit mm, got m"


@pytest.mark.parametrize("name", ["SAC", "PPO", "DAgger"])
def test_agents_and_their_policies_keep_to_their_contract(name, tmp_path):
    agent = getattr(cadenza, name)(METRES, **SMALL, num_envs=1)
    agent.save(tmp_path / "agent")
    policy = tmp_path / "agent.policy.safetensors"
    assert load_policy_file(policy).contract == reaching()
    for file in (tmp_path / "agent", policy):
        for env in (MILLIMETRES, Reaching(reaching("mm"))):
            with pytest.raises(CheckpointError, match=TOLD):
                cadenza.load(file, env)
        with pytest.raises(CheckpointError, match="control_hz: expected 5, got 10"):
            cadenza.load(policy, reaching(control_hz=5))
        for env in (None, METRES, Reaching):  # the last one says nothing
            cadenza.load(file, env)
    silent = getattr(cadenza, name)(Reaching, **SMALL, num_envs=1)
    silent.save(tmp_path / "silent")
    cadenza.load(tmp_path / "silent", MILLIMETRES)
    cadenza.load(tmp_path / "silent.policy.safetensors", MILLIMETRES)
    with pytest.raises(CheckpointError, match=f"evaluate: .*{TOLD}"):
        agent.evaluate(1, env=MILLIMETRES, max_episode_steps=1)
    agent.evaluate(1, env=Reaching, max_episode_steps=1)
    loaded = type(agent).load(tmp_path / "agent")
    again = loaded.save(tmp_path / "again")
    with pytest.raises(CheckpointError, match=TOLD):
        cadenza.load(again, MILLIMETRES)


def test_contract_is_part_of_what_a_policy_is_and_absent_from_others():
    policies = [
        cadenza.PPO(env, **SMALL, num_envs=1).networks()[""]
        for env in (Reaching, METRES, MILLIMETRES)
    ]
    assert len({policy.content_id for policy in policies}) == 3
    headers = [policy.header() for policy in policies]
    assert [header["format"][-1] for header in headers] == ["1", "2", "2"]
    assert "contract" not in headers[0]


def test_agent_made_again_by_its_id_meets_the_contract_registered_since(tmp_path):
    gym.register("cadenza-tests/Reaching-v0", entry_point=Reaching)
    agent = cadenza.PPO("cadenza-tests/Reaching-v0", **SMALL, rollout_length=16, num_envs=1)
    assert agent.envs.contracts == {}
    register(reaching(task_id="reaching by id", env_id="cadenza-tests/Reaching-v0"))
    agent = cadenza.PPO("cadenza-tests/Reaching-v0", **SMALL, rollout_length=16, num_envs=1)
    agent.save(tmp_path / "agent")
    cadenza.load(tmp_path / "agent").learn(16, progress=False)
    register(replace(contracts.get("reaching by id"), version=2))
    with pytest.raises(CheckpointError, match="version: expected 2, got 1"):
        cadenza.load(tmp_path / "agent").learn(16, progress=False)


def test_wrappers_that_change_numbers_leave_the_contract_behind():
    def contract(wrap):
        return cadenza.PPO(lambda: wrap(gym.make("cadenza/Crossing-v1")), **SMALL).envs.contracts

    assert list(contract(lambda env: gym.wrappers.TimeLimit(env, 10))) == [""]
    assert list(contract(lambda env: gym.wrappers.NormalizeReward(env))) == [""]
    assert contract(gym.wrappers.NormalizeObservation) == {}
    assert contract(lambda env: gym.wrappers.FrameStackObservation(env, 2)) == {}
    assert contract(lambda env: gym.wrappers.RescaleAction(env, -1, 1)) == {}
    for mode in ("vector_entry_point", "sync"):
        batch = gym.make_vec("cadenza/Crossing-v1", num_envs=2, vectorization_mode=mode)
        assert list(cadenza.SAC(batch, **SMALL).envs.contracts) == [""]


def test_contract_of_other_sizes_is_refused_where_it_stands():
    with pytest.raises(ConfigurationError, match=r"3 observed and 2 acting .*of 2 and 2; correct"):
        cadenza.PPO(lambda: Reaching(reaching(obs_spec=(ObsField("position", 2),))))
    with pytest.raises(ValueError, match=r"task_contract: expected a TaskContract"):
        cadenza.PPO(lambda: Reaching("metres"))


def test_robots_of_a_team_have_contracts_of_their_own(tmp_path):
    team = cadenza.HAPPO(lambda n: VectorMPECooperativePushEnv(n), num_envs=2, **SMALL)
    team.save(tmp_path / "team")
    for uid in ("ego", "partner"):
        file = tmp_path / f"team.{uid}.policy.safetensors"
        policy = cadenza.load(file, VectorMPECooperativePushEnv(2))
        assert policy.contract.robot_uid == uid
        with pytest.raises(CheckpointError, match="task_id: expected crossing, got mpe_coop"):
            cadenza.load(file, CrossingEnv())
    assert set(cadenza.load(tmp_path / "team").envs.contracts) == {"ego", "partner"}
    with pytest.raises(CheckpointError, match=r"evaluate: .*task_id: expected crossing"):
        team.evaluate(2, env=VectorCrossingEnv(2))


@pytest.fixture(scope="module")
def crossing(tmp_path_factory):
    """Return a folder with a policy of crossing, in both formats, and one of other units."""
    folder = tmp_path_factory.mktemp("policies")
    agent = cadenza.SAC("cadenza/Crossing-v1", **SMALL)
    agent.export_policy(folder / "metres")
    agent.export_onnx(folder / "metres.onnx")

    class Feet(gym.Wrapper):
        @property
        def task_contract(self):
            told = contracts.get("crossing")
            first, *others = told.obs_spec
            seen = (ObsField(first.name, 2, "ft", first.frame), *others)
            return TaskContract(
                **{n: getattr(told, n) for n in told.__slots__} | {"obs_spec": seen}
            )

    other = cadenza.SAC(lambda: Feet(gym.make("cadenza/Crossing-v1")), **SMALL)
    other.export_policy(folder / "feet")
    other.export_onnx(folder / "feet.onnx")
    return folder


FEET = "observation position: expected unit m, got ft"


@pytest.mark.parametrize("kind", ["policy.safetensors", "onnx"])
def test_seats_of_an_evaluation_refuse_a_policy_of_another_contract(kind, crossing):
    seat = ego_seat(CrossingEnv(), "ego")
    load_policy(f"local://metres.{kind}", seat=seat, artifacts_root=crossing)
    with pytest.raises(CheckpointError, match=FEET):
        load_policy(f"local://feet.{kind}", seat=seat, artifacts_root=crossing)
    silent = EgoSeat(uid="ego", observation_dim=10, low=seat.low, high=seat.high)
    load_policy(f"local://feet.{kind}", seat=silent, artifacts_root=crossing)


@pytest.mark.parametrize("kind", ["policy.safetensors", "onnx"])
def test_partners_refuse_to_play_beside_another_contract(kind, crossing, monkeypatch):
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(crossing))
    name = "onnx" if kind == "onnx" else "policy"

    def beside(file):
        env, address = CrossingEnv(), f"local://artifacts/{file}.{kind}"
        extra = {"uid": "partner"}
        config = PartnerConfig(class_name=name, weights_uri=address, extra=extra)
        return EgoGymEnv(env, build_partner(config, env=env))

    env = beside("metres")  # the ego's policy, whose bounds are wider than the partner's
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    with pytest.raises(CheckpointError, match=FEET):
        beside("feet").reset(seed=0)
    spec = PartnerSpec(name, 0, 1, f"local://artifacts/feet.{kind}", extra={"uid": "a"})
    load_partner(spec).reset(seed=0)  # nobody says where it plays
