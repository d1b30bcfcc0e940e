"""The vector wrapper: equal to one wrapper per environment, in every reset mode."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import ClipAction
from gymnasium.wrappers.vector import ClipAction as VectorClipAction

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.envs.residual import ResidualActions
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentBatch
from cadenza.safety.wrappers import SafetyFilterWrapper, VectorSafetyFilterWrapper
from cadenza.safety.wrappers.vector import stack_snapshots
from tests.unit.safety.wrappers.plane_env import (
    RADIUS,
    HookedPlaneEnv,
    PlaneEnv,
    plane_bounds,
    plane_models,
    plane_snapshots,
)

COPIES = 3
#: A conformal layer that moves in every step in which a forecast is scored.
LIVELY = SafetyOptions(lambda_safe=-0.5, eta=0.01, miss_rate=0.5)


class Unequal(HookedPlaneEnv):
    """Episodes of different lengths, so that copies reset at different times."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def step(self, action):
        *rest, truncated, info = super().step(action)
        return (*rest, truncated or self.steps >= self.length, info)


def policy(observations):
    rows = observations.reshape(len(observations), -1, 4)
    offsets = rows[:, 1, :2] - rows[:, 0, :2]
    return (2.0 * offsets / np.abs(offsets).max(axis=1, keepdims=True)).astype(np.float32)


def fleet(mode, lengths=(7, 11, 60), **options):
    envs = [lambda length=length: Unequal(length) for length in lengths]
    return VectorSafetyFilterWrapper(SyncVectorEnv(envs, autoreset_mode=mode), **options)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_batch_equals_one_wrapper_per_environment_across_resets(mode):
    batch = fleet(mode, options=LIVELY)
    singles = [SafetyFilterWrapper(Unequal(n), options=LIVELY) for n in (7, 11, 60)]
    observations, _ = batch.reset(seed=5)
    states = [env.reset(seed=5 + i)[0] for i, env in enumerate(singles)]
    done = [False] * COPIES
    intervened = resets = 0
    for _ in range(30):
        np.testing.assert_allclose(observations, states, rtol=0.0, atol=1e-9)
        actions = policy(observations)
        observations, *_, info = batch.step(actions)
        record = info["safety"]
        for i, env in enumerate(singles):
            if done[i]:  # the single env resets where the batch ignores the action
                states[i], done[i] = env.reset()[0], False
                assert not info["_safety"][i]
                resets += 1
                continue
            assert info["_safety"][i]
            states[i], _, terminated, truncated, one = env.step(actions[i])
            single = one["safety"]
            for name in ("intervened", "infeasible", "braked", "uncertified"):
                assert bool(record[name][i]) == single[name], name
            np.testing.assert_allclose(
                record["applied_action"][i], single["applied_action"], rtol=0.0, atol=1e-6
            )
            for name in ("margin", "slack", "constraint_violation", "lambda"):
                np.testing.assert_allclose(
                    record[name][i], list(single[name].values()), rtol=0.0, atol=1e-6
                )
            intervened += single["intervened"]
            done[i] = terminated or truncated
            if done[i] and mode is AutoresetMode.SAME_STEP:
                states[i], done[i] = env.reset()[0], False
                resets += 1
    assert intervened > 10
    assert resets >= 4


def test_disabled_resets_follow_the_mask():
    batch = fleet(AutoresetMode.DISABLED, lengths=(3, 60, 60), options=LIVELY)
    observations, _ = batch.reset(seed=0)
    for _ in range(3):
        observations, _, _, truncated, _ = batch.step(policy(observations))
    assert truncated.tolist() == [True, False, False]
    before = batch.driver.lambda_
    observations, _ = batch.reset(options={"reset_mask": truncated})
    assert np.array_equal(batch.driver.lambda_, before)
    batch.step(policy(observations))
    after = batch.driver.lambda_
    assert np.array_equal(after[0], before[0])  # nothing to score after a reset
    assert not np.array_equal(after[1], before[1])


def test_harmless_action_beside_a_filtered_one_takes_no_way_through_other_units():
    def to_control(action):
        return action * np.float32(0.3)

    def from_control(control):
        return np.asarray(control, dtype=np.float32) / np.float32(0.3)

    values = np.linspace(0.01, 0.02, 1000, dtype=np.float32)
    moved = values[from_control(to_control(values)) != values]
    assert moved.size > 0
    env = SyncVectorEnv([HookedPlaneEnv] * COPIES)
    batch = VectorSafetyFilterWrapper(
        env,
        bounds=plane_bounds(0.6),
        action_to_control=to_control,
        action_from_control=from_control,
    )
    observations, _ = batch.reset(seed=0)
    actions = 50.0 * policy(observations)  # out of the box: filtered
    actions[1] = moved[0]
    *_, info = batch.step(actions)
    assert info["safety"]["intervened"].tolist() == [True, False, True]
    assert info["safety"]["applied_action"][1].tolist() == actions[1].tolist()
    assert env.envs[1].unwrapped.executed[0].tolist() == actions[1].tolist()


def test_rounding_to_the_type_of_the_space_is_no_intervention():
    batch = VectorSafetyFilterWrapper(SyncVectorEnv([HookedPlaneEnv] * COPIES))
    observations, _ = batch.reset(seed=0)
    actions = 50.0 * policy(observations).astype(np.float64)  # out of the box: filtered
    actions[1] = 0.1  # harmless, and no float32
    *_, info = batch.step(actions)
    assert info["safety"]["intervened"].tolist() == [True, False, True]
    assert info["safety"]["intervention"][1] == 0.0


class PlaneBatch(gym.vector.VectorEnv):
    """A custom batch that knows nothing of the package."""

    def __init__(self):
        self.num_envs = 2
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_action_space = PlaneEnv().action_space
        self.single_observation_space = PlaneEnv().observation_space
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 2)
        self.envs_inside = [PlaneEnv(), PlaneEnv()]

    def reset(self, *, seed=None, options=None):
        seeds = [None, None] if seed is None else [seed, seed + 1]
        pairs = zip(self.envs_inside, seeds, strict=True)
        return np.stack([env.reset(seed=s)[0] for env, s in pairs]), {}

    def step(self, actions):
        steps = [env.step(a) for env, a in zip(self.envs_inside, actions, strict=True)]
        observations, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        return (
            np.stack(observations),
            np.array(rewards),
            np.array(terminated),
            np.array(truncated),
            {},
        )


def arrays(env, observation, info):
    rows = observation.reshape(len(observation), -1, 4)
    return AgentBatch(
        uids=("ego", "disc_0", "disc_1"),
        positions=rows[..., :2].copy(),
        velocities=rows[..., 2:].copy(),
        radii=np.full(3, RADIUS),
    )


def given(**changes):
    return {
        "ego_uid": "ego",
        "agents": arrays,
        "control_models": plane_models(2),
        "bounds": plane_bounds(),
        "control_timestep": 0.05,
        "plant": "zoh",
    } | changes


def test_custom_batch_is_guarded_through_callables():
    batch = VectorSafetyFilterWrapper(PlaneBatch(), **given())
    observations, _ = batch.reset(seed=3)
    for _ in range(59):
        observations, *_, info = batch.step(policy(observations))
        assert min(env.smallest_gap() for env in batch.env.envs_inside) > 0.0
    assert info["safety"]["intervened"].any()


def test_partner_swaps_are_noticed_per_environment():
    names = iter([["a", "b"], ["a", "c"]])
    batch = VectorSafetyFilterWrapper(
        PlaneBatch(), **given(partner_id=lambda _env, _obs, _info: next(names))
    )
    batch.reset(seed=0)
    for _ in range(2):
        batch.step(np.zeros((2, 2), dtype=np.float32))
    assert batch.driver.partner_swaps.tolist() == [0, 1]


class Sometimes(HookedPlaneEnv):
    """Its scene may be malformed."""

    bad = ""

    def build_agent_snapshots(self):
        if self.bad == "nan":
            return plane_snapshots(self, self.state.ravel() * np.nan, {})
        if self.bad == "none":
            return None
        scene = super().build_agent_snapshots()
        if self.bad == "missing":
            del scene["disc_1"]
        return scene


@pytest.mark.parametrize("bad", ["nan", "none", "missing", "action"])
def test_bad_scene_or_action_brakes_its_own_environment_alone(bad):
    env = SyncVectorEnv([Sometimes] * COPIES)
    batch = VectorSafetyFilterWrapper(env, options=SafetyOptions(on_bad_input="brake"))
    batch.reset(seed=0)
    actions = np.full((COPIES, 2), 0.3, dtype=np.float32)
    *_, info = batch.step(actions)
    assert info["safety"]["bad_input"].tolist() == [""] * COPIES
    if bad == "action":
        actions[1] = np.nan
    else:
        env.envs[1].bad = bad
    *_, info = batch.step(actions)
    problems = info["safety"]["bad_input"].tolist()
    assert [bool(text) for text in problems] == [False, True, False]
    assert info["safety"]["intervened"].tolist() == [False, True, False]
    executed = [single.unwrapped.executed[-1].tolist() for single in env.envs]
    assert executed[0] == executed[2] == actions[0].tolist()
    assert max(executed[1]) < 0.0  # against the velocity, which points along (1, 1)
    raising = VectorSafetyFilterWrapper(env)
    env.envs[1].bad = ""
    raising.reset(seed=0)
    if bad != "action":
        env.envs[1].bad = bad
    with pytest.raises((InputError, ConfigurationError)):
        raising.step(actions)


def test_misuse_is_refused():
    with pytest.raises(ConfigurationError, match="changes actions after the filter"):
        VectorSafetyFilterWrapper(VectorClipAction(PlaneBatch()), **given())
    corrected = ResidualActions(PlaneBatch(), lambda seen: np.zeros((len(seen), 2)), share=0.5)
    with pytest.raises(ConfigurationError, match="changes actions after the filter"):
        VectorSafetyFilterWrapper(corrected, **given())
    clipped = SyncVectorEnv([lambda: ClipAction(HookedPlaneEnv())])
    with pytest.raises(ConfigurationError, match="changes actions after the filter"):
        VectorSafetyFilterWrapper(clipped)
    with pytest.raises(ConfigurationError, match="build_agent_batch"):
        VectorSafetyFilterWrapper(PlaneBatch(), **given(agents=None))
    with pytest.raises(ConfigurationError, match="build_control_models"):
        VectorSafetyFilterWrapper(SyncVectorEnv([PlaneEnv]), **given(control_models=None))
    batch = VectorSafetyFilterWrapper(PlaneBatch(), **given())
    with pytest.raises(NotReadyError, match="call reset"):
        batch.step(np.zeros((2, 2), dtype=np.float32))
    batch.reset(seed=0)
    with pytest.raises(InputError, match=r"shape \(2, 2\)"):
        batch.step(np.zeros((3, 2), dtype=np.float32))


def test_scenes_that_do_not_stack_are_refused():
    scene = HookedPlaneEnv()
    scene.reset(seed=0)
    one = scene.build_agent_snapshots()
    assert stack_snapshots([one, one]).positions.shape == (2, 3, 2)
    fewer = {uid: one[uid] for uid in ("ego", "disc_0")}
    with pytest.raises(ConfigurationError, match="same agents"):
        stack_snapshots([one, fewer])
