import gymnasium as gym
import numpy as np
import pytest

from cadenza.comm import (
    URLLC_3GPP_R17,
    CommDegradationWrapper,
    DegradationProfile,
    FixedFormatCommChannel,
    PerLinkChannel,
)
from cadenza.core.errors import ConfigurationError
from cadenza.envs import (
    ChamberEnvCompatibilityError,
    CommShapingWrapper,
    CrossingEnv,
    MPECooperativePushEnv,
    PartnerIdAnnotationWrapper,
)
from cadenza.safety.runtime.env_hooks import EnvHooks


def per_link(env, profile):
    others = dict.fromkeys(env.agent_uids[1:], profile)
    return PerLinkChannel(others, receiver="ego", tick_period_ms=1e3 * env.control_timestep)


@pytest.mark.parametrize("make_env", [MPECooperativePushEnv, lambda: CrossingEnv(num_robots=4)])
@pytest.mark.parametrize(
    "make_channel",
    [
        lambda env: FixedFormatCommChannel(),
        lambda env: CommDegradationWrapper(
            FixedFormatCommChannel(), DegradationProfile(3.0, 2.0, 0.3)
        ),
        lambda env: per_link(env, DegradationProfile(150.0, 100.0, 0.3)),
    ],
)
def test_packets_carry_poses_and_lie_in_the_space(make_env, make_channel):
    env = make_env()
    wrapped = CommShapingWrapper(env, make_channel(env))
    space, positions = wrapped.observation_space, []
    obs, _ = wrapped.reset(seed=3)
    for tick in range(40):
        assert space.contains(obs), obs["comm"]
        positions.append(env.robot_positions())
        for uid, pose in obs["comm"]["pose"].items():
            then = positions[tick - int(obs["comm"]["aoi"][uid])]
            assert pose["xyz"] == (*then[uid], 0.0)
        ended = False
        obs, _, ended, _, _ = wrapped.step(env.action_space.sample())
        if ended:
            break
    assert set(obs["comm"]["pose"]) == set(env.agent_uids)
    sample = space.sample()
    assert space.contains(sample)
    assert sample["comm"]["pose"]["ego"]["xyz"].shape == (3,)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pose", "stranger"), {"xyz": (0.0,) * 3, "quat_wxyz": (1.0, 0, 0, 0)}),
        (("pose", "ego"), {"xyz": (0.0, 0.0), "quat_wxyz": (1.0, 0, 0, 0)}),
        (("pose", "ego"), {"xyz": (0.0, np.nan, 0.0), "quat_wxyz": (1.0, 0, 0, 0)}),
        (("aoi", "ego"), -1.0),
        (("aoi", "ego"), "old"),
        (("task_state", "ego"), {"grasp_side": 1}),
        (("learned_overlay",), 3),
        (("unknown",), 3),
    ],
)
def test_space_refuses_what_is_no_packet(path, value):
    wrapped = CommShapingWrapper(MPECooperativePushEnv(), FixedFormatCommChannel())
    obs, _ = wrapped.reset(seed=0)
    packet = obs["comm"]
    if len(path) == 2:
        packet[path[0]] = {**packet[path[0]], path[1]: value}
    else:
        packet[path[0]] = value
    assert not wrapped.observation_space.contains(obs)


class Recorder:
    """A channel that writes down how it is used."""

    def __init__(self):
        self.calls = []

    def reset(self, *, seed=None):
        self.calls.append(("reset", seed))

    def encode(self, state):
        self.calls.append(("encode", state))
        return FixedFormatCommChannel().encode(state)


def test_channel_is_asked_once_per_observation_and_gets_the_seed():
    channel = Recorder()
    env = MPECooperativePushEnv()
    wrapped = CommShapingWrapper(PartnerIdAnnotationWrapper(env, partner_id="0" * 16), channel)
    obs, _ = wrapped.reset(seed=7)
    assert channel.calls == [("reset", 7), ("encode", env.comm_state())]
    assert obs["meta"]["partner_id"] == "0" * 16
    assert wrapped.ego_uid == "ego"
    wrapped.step(env.action_space.sample())
    assert [name for name, _ in channel.calls] == ["reset", "encode", "encode"]


class Silent(gym.Env):
    observation_space = gym.spaces.Dict({"pose": gym.spaces.Dict({})})
    action_space = gym.spaces.Dict({})

    def reset(self, *, seed=None, options=None):
        return {"pose": {}}, {}


def test_env_that_says_nothing_is_heard_by_its_observation():
    channel = Recorder()
    CommShapingWrapper(Silent(), channel).reset()
    assert channel.calls == [("reset", None), ("encode", {"pose": {}})]


def test_env_without_named_observations_is_refused():
    with pytest.raises(ChamberEnvCompatibilityError, match="Dict observation space"):
        CommShapingWrapper(gym.make("CartPole-v1"), FixedFormatCommChannel())


def test_each_episode_meets_another_trace_and_a_seed_repeats_it():
    env = CrossingEnv()
    wrapped = CommShapingWrapper(env, per_link(env, URLLC_3GPP_R17["saturation"]))

    def ages(seed):
        rows = [wrapped.reset(seed=seed)[0]["comm"]["aoi"].get("partner")]
        still = {uid: np.zeros(2) for uid in env.agent_uids}
        for _ in range(150):
            rows.append(wrapped.step(still)[0]["comm"]["aoi"].get("partner"))
        return rows

    first, second = ages(1), ages(None)
    assert first != second
    assert ages(1) == first
    assert ages(None) == second


def test_filter_around_the_wrapper_sees_the_packets_with_their_ages():
    env = CrossingEnv()
    wrapped = CommShapingWrapper(env, per_link(env, DegradationProfile(100.0, 0.0, 0.0)))
    wrapped.reset(seed=0)
    hooks = EnvHooks.of(PartnerIdAnnotationWrapper(wrapped, partner_id="0" * 16))
    truth = []
    for step in range(6):
        truth.append(env.build_agent_snapshots())
        sent = max(0, step - 2)  # two control steps of 50 ms; before, the start is what is known
        heard = hooks.snapshots()
        assert heard["partner"].age_s == pytest.approx(0.05 * (step - sent))
        for name in ("position", "velocity"):
            then = getattr(truth[sent]["partner"], name).tolist()
            assert getattr(heard["partner"], name).tolist() == then
        assert heard["ego"].position.tolist() == truth[step]["ego"].position.tolist()
        wrapped.step(env.action_space.sample())
    shared = CommShapingWrapper(env, FixedFormatCommChannel())
    assert EnvHooks.of(shared).snapshots()["partner"].age_s == 0.0
    old = PerLinkChannel({"partner": URLLC_3GPP_R17["wifi"]}, receiver="ego", schema_version=1)
    with pytest.raises(ConfigurationError, match="schema version >= 2"):
        CommShapingWrapper(env, old)


@pytest.mark.parametrize("make_env", [MPECooperativePushEnv, lambda: CrossingEnv(num_robots=3)])
def test_state_given_what_is_true_is_the_state(make_env):
    env = make_env()
    obs, _ = env.reset(seed=2)
    for _ in range(5):
        obs = env.step(env.action_space.sample())[0]
    said = env.comm_state()
    for uid in env.agent_uids:
        others = [other for other in env.agent_uids if other != uid]
        known = {key: {o: said[key][o] for o in others} for key in ("pose", "velocity")}
        for believed in (known, {"pose": {}, "velocity": {}}):
            assert env.state_given(uid, believed).tobytes() == obs["agent"][uid]["state"].tobytes()


def test_state_given_an_old_packet_moves_the_other_alone():
    env = CrossingEnv(num_robots=3)
    obs, _ = env.reset(seed=2)
    old = {"xyz": (1.0, 2.0, 0.0), "quat_wxyz": (1.0, 0.0, 0.0, 0.0)}
    known = {"pose": {"partner": old}, "velocity": {"partner": (0.25, -0.5, 0.0)}}
    seen, truth = env.state_given("ego", known), obs["agent"]["ego"]["state"]
    x, y = env.robot_positions()["ego"]
    assert seen[6:10].tolist() == pytest.approx([1.0 - x, 2.0 - y, 0.25, -0.5])
    assert seen[:6].tolist() + seen[10:].tolist() == truth[:6].tolist() + truth[10:].tolist()
    push = MPECooperativePushEnv()
    obs, _ = push.reset(seed=0)
    seen, truth = (
        push.state_given("partner", {"pose": {"ego": old}}),
        obs["agent"]["partner"]["state"],
    )
    x, y = push.robot_positions()["partner"]
    assert seen[8:].tolist() == pytest.approx([1.0 - x, 2.0 - y])
    assert seen[:8].tolist() == truth[:8].tolist()
