"""The Gymnasium wrapper: what it executes, what it reports, what it refuses."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import ClipAction, RescaleAction, TimeLimit

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.wrappers import SafetyFilterWrapper
from tests.unit.safety.wrappers.plane_env import (
    DT,
    FleetEnv,
    HookedPlaneEnv,
    PlaneEnv,
    plane_bounds,
    plane_models,
    task,
)


def drive(env, policy, *, seed=0):
    """Step one episode; return the infos."""
    observation, _ = env.reset(seed=seed)
    infos, done = [], False
    while not done:
        observation, _, terminated, truncated, info = env.step(policy(observation))
        infos.append(info)
        done = terminated or truncated
    return infos


def at_the_nearest_disc(observation):
    rows = observation.reshape(-1, 4)
    offsets = rows[1:, :2] - rows[0, :2]
    nearest = offsets[np.argmin(np.linalg.norm(offsets, axis=1))]
    return (2.0 * nearest / np.abs(nearest).max()).astype(np.float32)


def test_driving_at_a_disc_touches_it_without_the_wrapper_and_not_with_it():
    gaps = {}
    for wrapped in (False, True):
        env = PlaneEnv()
        guarded = SafetyFilterWrapper(env, **task()) if wrapped else env
        observation, _ = guarded.reset(seed=3)
        gap = np.inf
        for _ in range(60):
            observation, *_ = guarded.step(at_the_nearest_disc(observation))
            gap = min(gap, env.smallest_gap())
        gaps[wrapped] = gap
    assert gaps[False] < -0.1
    assert gaps[True] > 0.0


def test_record_says_what_was_asked_and_what_was_executed():
    env = PlaneEnv()
    infos = drive(SafetyFilterWrapper(env, **task()), at_the_nearest_disc)
    records = [info["safety"] for info in infos]
    assert [info["steps"] for info in infos] == list(range(1, 61))  # the env's own info stays
    for record, executed in zip(records, env.executed, strict=True):
        assert np.array_equal(record["applied_action"], executed)
        assert executed.dtype == np.float32
        assert np.abs(executed).max() <= 2.0
        assert record["intervened"] == bool(
            (record["applied_action"] != record["nominal_action"]).any()
        )
        assert record["intervened"] == (record["status"] != "inactive")
        difference = record["applied_action"] - record["nominal_action"]
        assert record["intervention"] == pytest.approx(np.linalg.norm(difference), abs=1e-6)
        assert set(record["barrier"]) == set(record["margin"]) == {"disc_0", "disc_1"}
    assert {record["status"] for record in records} >= {"inactive", "optimal"}
    scored = [record for record in records if "prediction_gap_loss" in record]
    assert len(scored) == 59  # all but the first, which has no forecast to score


def test_barrier_and_margin_are_those_of_the_state_before_the_action():
    # At rest, 1.2 m from a disc that closes in with 0.12 m/s: e = 1.2 - 0.4 - 0.001 = 0.799 and,
    # with alpha = 2 - 0.1, h = (-alpha dt + sqrt((alpha dt)^2 + 8 alpha e)) / 2 - 0.12.
    guarded = SafetyFilterWrapper(PlaneEnv(1), **task(1))
    guarded.reset(seed=0)
    *_, info = guarded.step(np.zeros(2, dtype=np.float32))
    assert info["safety"]["margin"]["disc_0"] == pytest.approx(0.799, abs=1e-12)
    reach = 1.9 * DT
    expected = 0.5 * (-reach + np.sqrt(reach**2 + 8 * 1.9 * 0.799)) - 0.12
    assert info["safety"]["barrier"]["disc_0"] == pytest.approx(expected, abs=1e-12)


def test_wrapped_env_passes_gymnasium_checks():
    check_env(SafetyFilterWrapper(HookedPlaneEnv()), skip_render_check=True)


def test_equal_seeds_give_equal_episodes_and_a_plain_reset_keeps_what_was_learnt():
    options = SafetyOptions(eta=0.5, miss_rate=0.5)
    guarded = SafetyFilterWrapper(PlaneEnv(), **task(), options=options)
    first, again = (drive(guarded, at_the_nearest_disc, seed=1) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a["safety"]["applied_action"], b["safety"]["applied_action"])
        assert a["safety"]["lambda"] == b["safety"]["lambda"]
    learnt = guarded.runtime.lambda_
    guarded.reset()
    assert guarded.runtime.lambda_ == learnt
    *_, info = guarded.step(np.zeros(2, dtype=np.float32))
    assert "prediction_gap_loss" not in info["safety"]  # no forecast is scored across a reset


def test_units_of_the_action_are_translated():
    scale = 4.0
    plain = drive(SafetyFilterWrapper(PlaneEnv(), **task()), at_the_nearest_disc)
    env = PlaneEnv(scale=scale)
    guarded = SafetyFilterWrapper(
        env,
        **task(),
        action_to_control=lambda action: action * scale,
        action_from_control=lambda control: control / scale,
    )
    scaled = drive(guarded, lambda obs: at_the_nearest_disc(obs) / np.float32(scale))
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(
            a["safety"]["applied_action"], b["safety"]["applied_action"] * scale, atol=1e-5
        )


def test_action_is_rounded_into_the_box():
    # 0.1 - 1e-9 lies between two float32; the nearer one is outside of the box.
    bound = np.nextafter(np.float32(0.1), np.float32(0.0))
    assert np.float32(0.1 - 1e-9) > bound
    env = PlaneEnv()
    env.action_space = gym.spaces.Box(-bound, bound, (2,), np.float32)
    models = plane_models(2, capacity=0.01)
    guarded = SafetyFilterWrapper(
        env, **task(control_models=models, bounds=plane_bounds(0.1 - 1e-9))
    )
    guarded.reset(seed=0)
    guarded.step(np.array([5.0, -5.0], dtype=np.float32))
    assert env.executed[0].tolist() == [float(bound), -float(bound)]


def test_dict_actions_keep_the_other_agents():
    env = FleetEnv()
    guarded = SafetyFilterWrapper(env, **task(1))
    observation, _ = guarded.reset(seed=0)
    for _ in range(40):
        other = np.array([0.5, 0.5], dtype=np.float32)
        action = {"ego": at_the_nearest_disc(observation), "disc_0": other}
        observation, *_, info = guarded.step(action)
        assert env.received[-1]["disc_0"] is other
        assert np.array_equal(env.received[-1]["ego"], info["safety"]["applied_action"])
    assert info["safety"]["intervened"]
    assert env.inner.smallest_gap() > 0.0


class Cornered(PlaneEnv):
    """Discs overlap the ego from both sides: no action meets both rows."""

    def reset(self, **arguments):
        super().reset(**arguments)
        self.state[:] = [[0, 0, 0.5, 0], [0.39, 0, -1, 0], [-0.39, 0.01, 1, 0]]
        return self.state.ravel().copy(), {}


def cornered(**changes):
    env = Cornered()
    guarded = SafetyFilterWrapper(env, **task(**changes))
    guarded.reset(seed=0)
    return env, guarded


@pytest.mark.parametrize("fallback", ["retreat", "stop", lambda request: np.array([0.25, -9.0])])
def test_fallback_decides_when_no_action_meets_the_rows(fallback):
    env, guarded = cornered(fallback=fallback)
    nominal = np.array([2.0, 2.0], dtype=np.float32)
    *_, info = guarded.step(nominal)
    record = info["safety"]
    assert record["infeasible"]
    assert record["intervened"]
    assert record["fallback"] == (fallback != "retreat")
    assert record["uncertified"]
    executed = env.executed[0]
    if fallback == "stop":
        assert executed[0] < 0.0 == executed[1]  # against the velocity (0.5, 0)
    elif fallback != "retreat":
        assert executed.tolist() == [0.25, -2.0]  # inside the box
    assert record["intervention"] == pytest.approx(
        float(np.linalg.norm(executed - nominal)), abs=1e-6
    )


def test_fallback_that_returns_the_nominal_action_is_called_unfiltered():
    nominal = np.array([2.0, 1.9], dtype=np.float32)
    env, guarded = cornered(fallback=lambda request: request.nominal)
    *_, info = guarded.step(nominal)
    record = info["safety"]
    assert env.executed[0].tolist() == nominal.tolist()
    assert record["infeasible"]
    assert record["fallback"]
    assert record["unfiltered"] is True
    assert record["intervened"] is False
    assert record["braked"] is False  # the runtime's action, braking or not, was not executed
    assert record["intervention"] == 0.0
    _, guarded = cornered()
    *_, info = guarded.step(nominal)
    assert info["safety"]["unfiltered"] is False


def test_intervention_in_a_nominal_action_that_is_none_is_not_a_number():
    env = PlaneEnv()
    guarded = SafetyFilterWrapper(env, **task(options=SafetyOptions(on_bad_input="brake")))
    guarded.reset(seed=0)
    *_, info = guarded.step(np.array([np.nan, 0.0], dtype=np.float32))
    assert np.isfinite(env.executed[0]).all()
    assert info["safety"]["intervened"]
    assert np.isnan(info["safety"]["intervention"])
    assert "finite" in info["safety"]["bad_input"]


@pytest.mark.parametrize("scene", [None, "nobody", []])
def test_source_that_gives_no_scene_is_refused_or_braked_for(scene):
    given = task(snapshots=lambda _env, _obs, _info: scene)
    guarded = SafetyFilterWrapper(PlaneEnv(), **given)
    guarded.reset(seed=0)
    with pytest.raises(InputError, match="snapshots: expected every agent's snapshot by id, got"):
        guarded.step(np.ones(2, dtype=np.float32))
    env = PlaneEnv()
    guarded = SafetyFilterWrapper(env, **(given | {"options": SafetyOptions(on_bad_input="brake")}))
    guarded.reset(seed=0)
    *_, info = guarded.step(np.ones(2, dtype=np.float32))
    assert env.executed[0].tolist() == [0.0, 0.0]
    assert "snapshots: expected" in info["safety"]["bad_input"]


def test_bad_fallback_answers_are_refused():
    _, guarded = cornered(fallback=lambda request: np.array([np.nan, 0.0]))
    with pytest.raises(InputError, match="fallback: expected finite numbers"):
        guarded.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(ConfigurationError, match="'retreat', 'stop' or a function"):
        SafetyFilterWrapper(PlaneEnv(), **task(fallback="pray"))
    with pytest.raises(ConfigurationError, match="on_bad_input='brake'"):
        SafetyFilterWrapper(
            PlaneEnv(), **task(fallback="stop", options=SafetyOptions(on_bad_input="brake"))
        )


def test_partner_identity_and_forces_reach_the_runtime():
    env = PlaneEnv(1)
    names = iter(["anna", "anna", "bert"])
    guarded = SafetyFilterWrapper(
        env,
        **task(1, bounds=type(plane_bounds())(2.0, 2.0, 10.0, 0.0, 5.0)),
        partner_id=lambda _env, _obs, _info: next(names),
        contact_forces=lambda env, _obs, _info: {
            ("disc_0", "ego"): 9.0 * (env.unwrapped.steps == 2)
        },
    )
    guarded.reset(seed=0)
    infos = [guarded.step(np.zeros(2, dtype=np.float32))[-1] for _ in range(3)]
    assert [info["safety"]["braked"] for info in infos] == [False, False, True]
    assert guarded.runtime.telemetry.run.counts["swaps"] == 1


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(3, dtype=np.float32), r"shape \(2,\), got \(3,\)"),
        (np.array(["a", "b"]), "real numbers"),
        (np.array([np.nan, 0.0], dtype=np.float32), "finite"),
        (np.ma.masked_array(np.ones(2, np.float32), mask=[True, False]), "without a mask"),
    ],
)
def test_malformed_actions_are_refused(action, message):
    guarded = SafetyFilterWrapper(PlaneEnv(), **task())
    with pytest.raises(NotReadyError, match="call reset"):
        guarded.step(np.zeros(2, dtype=np.float32))
    guarded.reset(seed=0)
    with pytest.raises(InputError, match=message):
        guarded.step(action)
    fleet = SafetyFilterWrapper(FleetEnv(), **task(1))
    fleet.reset(seed=0)
    with pytest.raises(InputError, match="action of the ego 'ego'"):
        fleet.step({"disc_0": np.zeros(2, dtype=np.float32)})


def test_action_wrappers_inside_are_refused_and_others_are_not():
    for wrapper in (ClipAction(PlaneEnv()), RescaleAction(PlaneEnv(), -1.0, 1.0)):
        with pytest.raises(ConfigurationError, match="changes actions after the filter"):
            SafetyFilterWrapper(wrapper, **task())
    inner = SafetyFilterWrapper(TimeLimit(PlaneEnv(), 5), **task())
    outer = ClipAction(inner)  # in the policy's half: what it does is filtered
    assert len(drive(outer, at_the_nearest_disc)) == 5


class Discrete(PlaneEnv):
    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Discrete(3)


class Integers(PlaneEnv):
    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Box(-2, 2, (2,), np.int64)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        (Discrete, {}, "expected a Box of actions"),
        (Integers, {}, "Box of float32 or float64"),
        (PlaneEnv, {"bounds": plane_bounds(3.0)}, "would clip a filtered action"),
        (PlaneEnv, {"action_to_control": np.negative}, "together"),
        (
            PlaneEnv,
            {"action_to_control": lambda a: a * 3.0, "action_from_control": lambda a: a},
            "to undo action_from_control",
        ),
        (
            PlaneEnv,
            {"action_to_control": lambda a: a, "action_from_control": lambda a: a[:1]},
            r"expected shape \(2,\), got \(1,\)",
        ),
        (PlaneEnv, {"snapshots": None}, "build_agent_snapshots"),
        (PlaneEnv, {"control_models": None}, "build_control_models"),
        (PlaneEnv, {"ego_uid": None}, "ego_uid"),
        (PlaneEnv, {"ego_uid": "nobody"}, "nobody"),
    ],
)
def test_misuse_is_refused_when_wrapping(env, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        SafetyFilterWrapper(env(), **task(**changes))
