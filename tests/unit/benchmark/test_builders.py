"""Environments, partners and safety drivers from configurations."""

from dataclasses import fields

import numpy as np
import pytest
from pydantic import ValidationError

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import (
    background_seed,
    build_batched_safety_driver,
    build_env,
    build_partner,
    build_safety_driver,
    partner_spec,
)
from cadenza.benchmark.tasks import CROSSING, isolated_tasks, register_task
from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.types import EnvLike, VectorEnvLike
from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
from cadenza.envs.mpe import MPECooperativePushEnv, VectorMPECooperativePushEnv
from cadenza.envs.process_batch import ProcessBatch
from cadenza.partners import ScriptedHeuristicPartner
from cadenza.partners.interface import FrozenPartner
from cadenza.partners.registry import isolated_registry, load_partner, register_partner
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.runtime.options import SafetyOptions

WANDERER = PartnerConfig(class_name="crossing_wanderer")
SEATS = ("ego", "partner")


def crossing(**fields):
    return EnvConfig(task="crossing", episode_length=200, **fields)


@pytest.mark.parametrize("robots", [2, 3])
def test_partner_of_another_task_is_refused(robots):
    push_partner = PartnerConfig(class_name="scripted_heuristic")
    with pytest.raises(
        ConfigurationError, match=r"plays task 'crossing' \(.*crossing_chaser, "
    ) as e:
        build_env(many(robots), root_seed=0, partner=push_partner)
    assert "got one of mpe_cooperative_push" in str(e.value)


def test_partner_is_accepted_by_a_task_that_names_it_and_a_partner_without_tasks_by_all():
    crossing_seeker = PartnerConfig(class_name="crossing_goal_seeker")
    with isolated_tasks(), isolated_registry():
        own = register_task(CROSSING.model_copy(update={"task_id": "own"}))
        build_env(EnvConfig(task=own.task_id), root_seed=0, partner=crossing_seeker).close()

        @register_partner("anywhere")
        class Anywhere(ScriptedHeuristicPartner):
            """Plays all tasks."""

            card = None

        build_env(crossing(), root_seed=0, partner=PartnerConfig(class_name="anywhere")).close()


def many(robots, **fields):
    return crossing(options={"num_robots": robots}, **fields)


def zeros(env):
    return {uid: np.zeros(env.action_space[uid].shape, np.float32) for uid in env.agent_uids}


@pytest.mark.parametrize(
    ("task", "num_envs", "expected"),
    [
        ("crossing", 1, CrossingEnv),
        ("crossing", 3, VectorCrossingEnv),
        ("mpe_cooperative_push", 1, MPECooperativePushEnv),
        ("mpe_cooperative_push", 3, VectorMPECooperativePushEnv),
    ],
)
def test_built_environment_is_the_task_with_the_given_settings(task, num_envs, expected):
    config = EnvConfig(task=task, episode_length=7, agent_uids=("a", "b"), num_envs=num_envs)
    env = build_env(config, root_seed=5)
    assert type(env) is expected
    assert isinstance(env, EnvLike if num_envs == 1 else VectorEnvLike)
    assert (env.episode_length, env.root_seed, env.agent_uids) == (7, 5, ("a", "b"))
    assert getattr(env, "num_envs", 1) == num_envs
    own = build_env(config.model_copy(update={"episode_length": None}), root_seed=5)
    assert own.episode_length == {"crossing": 200, "mpe_cooperative_push": 50}[task]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_partner_obs": True}, r"env.mask_partner_obs: expected False"),
        ({"condition_id": "x"}, r"env.condition_id: expected None, got 'x'"),
        ({"options": {"robots": 3}}, r"'robots'.*known options: num_robots"),
        ({"options": {"num_robots": 9}}, r"expected an integer in \[2, 8\], got 9"),
        ({"options": {"num_robots": 3}}, r"3 robots: expected the partner whose copies"),
    ],
)
def test_setting_the_task_does_not_have_is_refused(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        build_env(crossing(**fields), root_seed=0)


def test_batch_of_a_task_without_batches_plays_the_same_one_by_one(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # without processes: faster here
    with isolated_tasks():
        register_task(CROSSING.model_copy(update={"task_id": "single", "supports_batches": False}))
        single = build_env(EnvConfig(task="single", num_envs=2), root_seed=0)
    assert isinstance(single, ProcessBatch)
    seen, _ = single.reset(seed=4)
    expected, _ = build_env(crossing(num_envs=2), root_seed=0).reset(seed=4)
    for uid, robot in expected["agent"].items():
        assert seen["agent"][uid]["state"].tobytes() == robot["state"].tobytes()
    single.close()


def test_rendering_a_batch_is_refused():
    with pytest.raises(ConfigurationError, match=r"render_mode None for a batch of 2"):
        build_env(crossing(num_envs=2), root_seed=0, render_mode="rgb_array")


def test_partner_is_built_with_every_field_of_its_configuration():
    config = PartnerConfig(class_name="crossing_goal_seeker", seed=3, extra={"max_speed": "0.5"})
    partner = build_partner(config)
    assert isinstance(partner, FrozenPartner)
    assert partner.spec == partner_spec(config)
    assert (partner.spec.seed, partner.spec.extra["max_speed"]) == (3, "0.5")


@pytest.mark.parametrize("num_envs", [1, 3])
def test_partner_built_for_an_environment_is_clipped_to_its_action_space(num_envs):
    env = build_env(crossing(num_envs=num_envs), root_seed=0)
    # The heuristic commands up to 1; a partner of the crossing task may use 0.5.
    config = PartnerConfig(extra={"uid": "partner", "target_xy": "9,9"})
    obs, _ = env.reset(seed=0)
    assert np.abs(build_partner(config).act(obs)).max() == 1.0
    assert np.abs(build_partner(config, env=env).act(obs)).max() == 0.5


@pytest.mark.parametrize("num_robots", [2, 4])
def test_driver_of_a_batch_guards_the_very_batch_it_was_built_from(num_robots):
    env = build_env(many(num_robots, num_envs=3), root_seed=0, partner=WANDERER)
    driver = build_batched_safety_driver(env, SafetyConfig(enabled=True, clamp_floor_ratio=0.5))
    assert isinstance(driver, BatchedSafetyDriver)
    assert driver.drives(env)
    assert (driver.num_envs, len(driver.partner_uids)) == (3, num_robots - 1)
    assert driver.lambda_bound == 0.5 * 2.0
    assert build_batched_safety_driver(env, SafetyConfig()) is None
    assert build_safety_driver(env, SafetyConfig()) is None


@pytest.mark.parametrize(
    ("build", "num_envs", "message"),
    [
        (build_safety_driver, 1, "MPECooperativePushEnv without build_agent_snapshots"),
        (build_batched_safety_driver, 2, "PushEnv without build_agent_batch"),
    ],
)
def test_filter_for_an_environment_it_cannot_guard_is_refused(build, num_envs, message):
    env = build_env(EnvConfig(task="mpe_cooperative_push", num_envs=num_envs), root_seed=0)
    with pytest.raises(ConfigurationError, match=message):
        build(env, SafetyConfig(enabled=True))


@pytest.mark.parametrize("num_envs", [1, 2])
def test_many_robots_look_like_two_seats(num_envs):
    env = build_env(many(5, num_envs=num_envs), root_seed=0, partner=WANDERER)
    assert env.agent_uids == SEATS
    assert env.robot_uids == ("ego", "partner", "robot_2", "robot_3", "robot_4")
    assert set(env.action_space.keys()) == set(SEATS)
    assert set(env.observation_space["agent"].keys()) == set(SEATS)
    obs, _ = env.reset(seed=0)
    assert tuple(obs["agent"]) == SEATS
    assert env.observation_space["agent"].contains(obs["agent"])
    assert obs["agent"]["ego"]["state"].shape[-1] == 6 + 4 * 4
    obs, *_ = env.step(zeros(env))
    assert tuple(obs["agent"]) == SEATS


@pytest.mark.parametrize("num_envs", [1, 2])
def test_stepping_many_robots_before_a_reset_is_an_error(num_envs):
    env = build_env(many(3, num_envs=num_envs), root_seed=0, partner=WANDERER)
    with pytest.raises(NotReadyError, match=r"call reset\(\) first"):
        env.step(zeros(env))


def rollout(env, seed, steps=40):
    env.reset(seed=seed)
    positions = []
    for _ in range(steps):
        env.step(zeros(env))
        positions.append(np.stack(list(env.robot_positions().values())))
    return np.stack(positions)


def test_background_robots_do_what_copies_of_the_partner_with_their_seeds_do():
    env = build_env(many(4), root_seed=2, partner=WANDERER)
    positions = rollout(env, seed=6, steps=1)
    reference = CrossingEnv(num_robots=4, root_seed=2)
    obs, _ = reference.reset(seed=6)
    actions = {uid: np.zeros(2, np.float32) for uid in SEATS}
    for uid in ("robot_2", "robot_3"):
        copy = load_partner(partner_spec(WANDERER, uid=uid))
        copy.reset(seed=background_seed(uid, 6))
        actions[uid] = copy.act(obs)
    reference.step(actions)
    expected = np.stack(list(reference.robot_positions().values()))
    assert positions[0].tobytes() == expected.tobytes()
    assert (actions["robot_2"] != actions["robot_3"]).any()


def test_batch_of_many_robots_replays_the_scalar_episodes_byte_for_byte():
    batch_size, length, steps = 3, 12, 40  # more than three episodes per row
    fields = {"options": {"num_robots": 4}, "task": "crossing", "episode_length": length}
    batch = build_env(EnvConfig(num_envs=batch_size, **fields), root_seed=1, partner=WANDERER)
    singles = [build_env(EnvConfig(**fields), root_seed=1, partner=WANDERER) for _ in range(3)]
    obs, _ = batch.reset(seed=20)
    episodes = [0] * batch_size
    for row, env in enumerate(singles):
        env.reset(seed=20 + row)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        action = {uid: rng.uniform(-1, 1, (batch_size, 2)).astype(np.float32) for uid in SEATS}
        obs, reward, terminated, truncated, info = batch.step(action)
        for row, env in enumerate(singles):
            one, one_reward, *flags, _ = env.step({uid: action[uid][row] for uid in SEATS})
            assert one_reward == reward[row]
            assert flags == [terminated[row], truncated[row]]
            if any(flags):
                final = info["final_observation"]["agent"]["ego"]["state"][row]
                assert final.tobytes() == one["agent"]["ego"]["state"].tobytes()
                assert tuple(info["final_observation"]["agent"]) == SEATS
                episodes[row] += 1
                one, _ = env.reset(seed=20 + row + episodes[row] * batch_size)
            ours = obs["agent"]["ego"]["state"][row]
            assert ours.tobytes() == one["agent"]["ego"]["state"].tobytes()
    assert min(episodes) >= 3


def test_background_robot_that_cannot_restart_rows_is_refused():
    class Foreign:
        def __init__(self, spec):
            self.spec = spec

        def reset(self, *, seed=None):
            pass

        def act(self, obs, *, deterministic=True):
            return np.zeros(2, np.float32)

    with isolated_registry():
        register_partner("foreign")(Foreign)
        assert build_partner(PartnerConfig(class_name="foreign"), env=object()).spec
        with pytest.raises(ConfigurationError, match=r"PartnerBase to drive 'robot_2', got F"):
            build_env(many(3), root_seed=0, partner=PartnerConfig(class_name="foreign"))


def test_safety_section_has_every_option_with_its_default():
    options = {field.name: field.default for field in fields(SafetyOptions)}
    del options["obstacles"]  # shapes belong to an environment, not to a file of a training
    section = {
        name: field.default
        for name, field in SafetyConfig.model_fields.items()
        if name not in {"enabled", "intervention_penalty"}  # of the training loop
    }
    older = {"integral_gain": 0.0, "multi_partner": "rows"}  # which older sealed plans hold
    assert section == {**options, **older}
    assert SafetyConfig().to_options() == SafetyOptions()


@pytest.mark.parametrize(
    "changes",
    [
        {"tau_brake": 0.2, "solver": "auto"},
        {"dtaci_steps": (0.01, 0.1), "conformal_rule": "dtaci"},
        {"cbf_power": 3, "barrier": "wae", "brake_hysteresis": False},
    ],
)
def test_safety_section_reaches_the_driver(changes):
    env = build_env(EnvConfig(task="crossing"), root_seed=0)
    driver = build_safety_driver(env, SafetyConfig(enabled=True, **changes))
    assert driver is not None
    assert driver.options == SafetyOptions(**changes)


def test_walls_of_an_environment_reach_the_driver():
    walls = (HalfSpace((0.0, -1.0), -9.0),)

    class Walled(CrossingEnv):
        def build_obstacles(self):
            return walls

    class WalledBatch(VectorCrossingEnv):
        def build_obstacles(self):
            return walls

    env, batch, safety = Walled(), WalledBatch(2), SafetyConfig(enabled=True)
    driver = build_safety_driver(env, safety)
    assert driver.options.obstacles == walls
    many = build_batched_safety_driver(batch, safety)
    env.reset(seed=0)
    batch.reset(seed=0)
    alone = driver.step(np.zeros(2)).info["static_margin"].min()
    assert many.step(np.zeros((2, 2))).static_margin[0] == alone < 20.0


def test_safety_section_refuses_unknown_keys_and_options_without_effect():
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        SafetyConfig.model_validate({"solvr": "daqp"})
    with pytest.raises(ConfigurationError, match=r"safety.dtaci_steps: expected its default with"):
        SafetyConfig(dtaci_steps=(0.1,))
    with pytest.raises(ConfigurationError, match='cbf_power belongs to barrier="wae"'):
        SafetyConfig(cbf_power=3)
