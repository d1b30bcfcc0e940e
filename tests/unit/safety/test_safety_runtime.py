"""The runtime without an env: partners, packets, braking, bad input, telemetry."""

import itertools
import json
import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.runtime.observation import PacketAges
from cadenza.safety.runtime.options import RuntimeSetup, SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot
from tests.unit.safety.scenes import Duel, agent, models

PAIR = ("ego", "p1")
FAR = {"ego": agent([0, 0]), "p1": agent([3, 0])}


def make_runtime(partners=("p1",), bounds=None, **options):
    return SafetyRuntime(
        ego_uid="ego",
        control_models=models(0.5, 2, partners),
        bounds=Bounds(2.0, 2.0, 1.0, 0.0, 5.0) if bounds is None else bounds,
        control_timestep=0.05,
        options=SafetyOptions(**options),
    )


def aged(age, position=(3.0, 0.0), velocity=(0.0, 0.0)):
    return AgentSnapshot(np.array(position), np.array(velocity), 0.2, age)


def push(runtime, steps, partner_id=None, accel=-0.5, gap=3.0, speed=0.0):
    """Let the partner accelerate against every forecast; return the last step."""
    duel = Duel([[0.0, 0.0], [gap, 0.0]], [[0.0, 0.0], [speed, 0.0]], 0.05)
    for _ in range(steps):
        step = runtime.step(np.zeros(2), duel.snapshots(), partner_id=partner_id)
        duel.step([[0.0, 0.0], [accel, 0.0]])
    return step


# partners


def test_runtime_returning_partner_starts_where_it_left():
    runtime = make_runtime(lambda_safe=-0.01)
    left = push(runtime, 10, "a").lambda_[PAIR]
    warm = runtime.state_dict()["adaptation"]["seat"]["state"]["warmup_steps_remaining"]
    assert left < -0.1
    assert push(runtime, 1, "b").lambda_[PAIR] == -0.01
    back = push(runtime, 1, "a")
    assert back.loss is None  # nothing was forecast of this partner
    assert back.lambda_[PAIR] == left
    seat = runtime.state_dict()["adaptation"]["seat"]
    assert seat["state"]["warmup_steps_remaining"] == warm < 50
    assert runtime.telemetry.run.counts["swaps"] == 2
    assert runtime.telemetry.run.counts["warm_starts"] == 1


def test_runtime_unknown_partner_and_the_first_known_one_change_nothing():
    runtime = make_runtime()
    push(runtime, 5)
    before = runtime.lambda_
    runtime.begin_episode()
    assert push(runtime, 1, "a").lambda_ == before
    runtime.begin_episode()
    assert push(runtime, 1, None).lambda_ == before
    assert runtime.telemetry.run.counts["swaps"] == 0


def test_runtime_remembers_a_bounded_number_of_partners_oldest_first():
    runtime = make_runtime(partner_memory=2, lambda_safe=-0.01)
    for name in "abcd":
        push(runtime, 10, name)
    kept = [k["partner_id"] for k in runtime.state_dict()["adaptation"]["kept"]]
    assert kept == ["b", "c"]
    assert push(runtime, 1, "a").lambda_[PAIR] == -0.01
    assert push(runtime, 1, "c").lambda_[PAIR] < -0.1
    assert runtime.telemetry.run.counts["warm_starts"] == 1
    runtime.begin_run(0)
    assert runtime.state_dict()["adaptation"]["kept"] == []


def test_runtime_start_follows_the_error_bound_and_the_box():
    # Constant velocity makes no claim, so the partner's own bound counts: -0.5 m/s^2, far away.
    runtime = make_runtime(lambda_start="error_bound")
    step = runtime.step(np.zeros(2), FAR)
    assert step.lambda_[PAIR] == step.info["lambda"][PAIR] == -0.5
    # At rest just outside contact: c_max with e = 6 mm. The box leaves -2 - level at most.
    runtime.begin_run(0)
    near = {"ego": agent([0, 0]), "p1": agent([0.407, 0])}
    step = runtime.step(np.zeros(2), near)
    alpha, dt, e = 1.5, 0.05, 0.006
    c_max = 0.5 * (-3 * alpha * dt + math.sqrt(9 * alpha**2 * dt**2 + 8 * alpha * e))
    assert step.lambda_[PAIR] == pytest.approx(max(-0.5, -2.0 - (c_max / dt - 0.5)), abs=1e-6)
    # Closing fast, the box leaves less than the error asks for: e = 0.069, w = 0.415, so that
    # c_max = alpha (-dt + sqrt(dt^2 + 2 (e - w dt / 2) / alpha)) = 0.351 and -2 - level = -0.22.
    runtime.begin_run(0)
    fast = {"ego": agent([0, 0], [0.415, 0]), "p1": agent([0.47, 0])}
    step = runtime.step(np.zeros(2), fast)
    c_max = alpha * (-dt + math.sqrt(dt * dt + 2 * (0.069 - 0.415 * dt / 2) / alpha))
    assert step.lambda_[PAIR] == pytest.approx(-2.0 - ((c_max - 0.415) / dt - 0.5), abs=1e-6)
    assert -0.3 < step.lambda_[PAIR] < -0.1
    assert not step.infeasible


def test_runtime_start_uses_the_claim_of_the_forecast_within_the_bound():
    # One packet: 3 sqrt(2 (1 + 0.05 / 3)) = 4.3 m/s^2, above 0.7 * 2.
    runtime = make_runtime(lambda_start="error_bound", predictor_kind="constant_acceleration")
    assert runtime.step(np.zeros(2), FAR).lambda_[PAIR] == pytest.approx(-1.4)


# packets and forecasts


def test_runtime_reads_partner_and_ages_from_the_observation():
    runtime = make_runtime(max_age_s=0.2)
    obs = {"agent_states": FAR, "meta": {"partner_id": "a"}, "comm": {"aoi": {"p1": 2}}}
    runtime.step_from_obs(np.zeros(2), obs)
    other = make_runtime(max_age_s=0.2)
    # Without a stamp the age is not known for sure, but this partner is at rest either way.
    step = other.step(np.zeros(2), {"ego": FAR["ego"], "p1": aged(0.1)}, partner_id="a")
    read, told = runtime.state_dict(), other.state_dict()
    assert read["ages"] == told["ages"] == {"p1": 0.1}
    assert read["adaptation"] == told["adaptation"]
    assert not step.uncertified
    assert runtime.telemetry.run.counts["uncertified"] == 1
    # Without meta and comm the observation is that of a lone scene.
    plain = make_runtime()
    plain.step_from_obs(np.zeros(2), {"agent_states": FAR})
    assert plain.state_dict()["adaptation"]["partner_id"] is None


def test_runtime_takes_the_largest_of_ages_that_contradict_and_says_so():
    bounds = Bounds(2.0, 2.0, 1.0, 120.0, 0.0)
    obs = {"agent_states": {"ego": FAR["ego"], "p1": aged(0.15)}, "comm": {"aoi": {"p1": 1}}}

    def taken(**options):
        runtime = make_runtime(bounds=bounds, max_age_s=0.3, **options)
        step = runtime.step_from_obs(np.zeros(2), obs)
        return runtime.state_dict()["ages"]["p1"], step.uncertified

    assert taken() == (0.15, True)
    assert taken(comm_tick_s=0.11) == (0.15, False)  # within a step: the stamp stands
    assert taken(comm_tick_s=0.2) == (0.15, False)
    assert taken(comm_tick_s=0.21) == (0.21, True)
    assert taken(latency_floor=True, comm_tick_s=0.15) == (0.15, False)
    obs["agent_states"] = FAR
    assert taken(latency_floor=True) == (0.12, True)
    assert taken() == (0.05, True)
    obs["comm"] = {"aoi": {"p1": 0}}
    assert taken() == (0.0, False)


@pytest.mark.parametrize("delay", [0, 3])
def test_runtime_late_packets_are_scored_against_their_own_time(delay):
    """The partner moves as forecast until step 6 and then accelerates; a packet k steps late shows
    that k steps later, with the very score it would have had."""
    duel = Duel([[0.0, 0.0], [3.0, 0.0]], [[0.0, 0.0], [-0.1, 0.0]], 0.05)
    runtime = make_runtime(max_age_s=0.3, eta=0.0)
    seen, losses = [], {}
    for k in range(20):
        seen.append(duel.snapshots()["p1"])
        if k >= delay:
            packet = seen[k - delay]
            late = AgentSnapshot(packet.position, packet.velocity, 0.2, delay * 0.05)
            step = runtime.step(np.zeros(2), {"ego": FAR["ego"], "p1": late})
            losses[k] = step.loss
        duel.step([[0.0, 0.0], [-0.5 if k >= 6 else 0.0, 0.0]])
    wrong = [k for k, loss in losses.items() if loss is not None and loss[PAIR] > 1e-9]
    # A forecast made from a packet of age A is due k steps after it was made: the first packet
    # measured in step 7 shows the new acceleration. Forecasts made later know part of it.
    assert min(wrong) == 7 + delay
    # It gains 0.025 m/s and 0.6 mm in the first step.
    assert losses[7 + delay][PAIR] == pytest.approx(0.0253, abs=5e-4)


@pytest.mark.parametrize("age", [0.02, 0.07, 0.1])
def test_runtime_packets_measured_between_steps_cause_no_false_loss(age):
    runtime = make_runtime(max_age_s=0.2)
    losses = []
    for k in range(10):
        seen = [6.0 - 1.0 * (0.05 * k - age), 0.0]  # 1 m/s towards the ego, as always
        packet = aged(age, seen, [-1.0, 0.0])
        losses.append(runtime.step(np.zeros(2), {"ego": FAR["ego"], "p1": packet}).loss)
    assert losses[-1] == {PAIR: pytest.approx(0.0, abs=1e-9)}
    assert runtime.lambda_ == {PAIR: 0.0}


def test_runtime_repeated_packet_is_scored_once():
    runtime = make_runtime(max_age_s=0.2)
    runtime.step(np.zeros(2), FAR)
    first = runtime.step(np.zeros(2), {"ego": FAR["ego"], "p1": aged(0.0)})
    again = runtime.step(np.zeros(2), {"ego": FAR["ego"], "p1": aged(0.05)})
    assert first.loss == {PAIR: 0.0}
    assert again.loss is None


def test_runtime_horizon_compares_with_the_forecast_made_that_many_steps_ago():
    near, far = make_runtime(eta=0.0), make_runtime(eta=0.0, horizon_steps=4)
    losses = [push(runtime, 6).loss for runtime in (near, far)]
    # Over t = 0.2 s the velocity is off by 0.1 m/s, four times the error of one step.
    assert losses[1][PAIR] > 3.5 * losses[0][PAIR]
    fresh = make_runtime(horizon_steps=4)
    assert push(fresh, 4).loss is None


def test_runtime_age_jump_starts_the_warm_up_again():
    runtime = make_runtime(n_warmup_steps=30, age_jump_s=0.1)

    def warm_up_after(*ages):
        for age in ages:
            runtime.step(np.zeros(2), {"ego": FAR["ego"], "p1": aged(age)})
        return runtime.state_dict()["adaptation"]["seat"]["state"]["warmup_steps_remaining"]

    assert warm_up_after(*[0.0] * 11) == 20
    assert warm_up_after(0.05, 0.1) == 20  # nothing new to score, and no jump yet
    assert warm_up_after(0.15) == 30
    assert warm_up_after(0.2, 0.25) == 30
    assert runtime.telemetry.run.counts["age_jumps"] == 1
    assert warm_up_after(0.0) == 29  # fresh again: scored, and the normal age is 0 again
    assert warm_up_after(0.12) == 30
    assert runtime.telemetry.run.counts["age_jumps"] == 2


# braking


def pressed(runtime, force, **options):
    """Contact at rest with a force; the ego's row asks for nothing beyond separation."""
    agents = {"ego": agent([0, 0]), "p1": agent([0.41, 0])}
    return runtime.step(np.array([0.0, 0.1]), agents, contact_forces={("p1", "ego"): force})


def test_runtime_force_above_the_limit_brakes_a_step_the_rows_allow():
    runtime = make_runtime()
    calm, hard = pressed(runtime, 5.0), pressed(runtime, 5.1)
    assert not calm.infeasible
    assert not calm.braked
    assert hard.braked
    assert hard.action.tolist() == [-2.0, 0.0]
    assert hard.intervention == pytest.approx(math.hypot(2.0, 0.1))
    assert hard.dangers[PAIR].reason == "force"
    assert hard.dangers[PAIR].force == 5.1
    # It is released a quarter below the limit only.
    assert pressed(runtime, 4.1).braked
    assert not pressed(runtime, 3.9).braked
    assert not pressed(runtime, 4.1).braked
    unlimited = make_runtime(bounds=Bounds(2.0, 2.0, 1.0, 0.0, 0.0))
    assert not pressed(unlimited, 1e6).braked


def test_runtime_published_filter_that_gives_up_never_passes_the_nominal():
    runtime = make_runtime(barrier="wae", compat="upstream")
    agents = {"ego": agent([0, 0], [3.0, 0.0]), "p1": agent([0.9, 0])}
    step = runtime.step(np.array([2.0, 0.7]), agents)
    assert step.infeasible
    assert step.uncertified
    # 0.5 m at 3 m/s is 0.17 s to contact: not imminent, so it stops along its velocity.
    assert not step.braked
    assert step.action.tolist() == [-2.0, 0.0]
    assert step.intervention == pytest.approx(math.hypot(4.0, 0.7))
    touching = {"ego": agent([0, 0], [3.0, 0.0]), "p1": agent([0.6, 0.0])}
    assert runtime.step(np.array([2.0, 0.7]), touching).braked


# bad input

BAD = {
    "missing partner": ({"ego": agent([0, 0])}, r"\['p1'\] missing"),
    "unknown agent": (FAR | {"x": agent([1, 1])}, r"\['x'\] without a control model"),
    "no snapshot": ({"ego": FAR["ego"], "p1": (3.0, 0.0)}, "AgentSnapshot of 'p1', got tuple"),
    "other dimension": (
        {"ego": FAR["ego"], "p1": agent([3, 0, 0])},
        "expected 2 dimensions of 'p1', got 3",
    ),
}


@pytest.mark.parametrize("scene", BAD)
def test_runtime_unusable_scene_is_an_error_without_a_trace(scene):
    agents, message = BAD[scene]
    runtime = make_runtime()
    push(runtime, 3)
    before = runtime.state_dict()
    with pytest.raises(InputError, match=message):
        runtime.step(np.zeros(2), agents)
    with pytest.raises(InputError, match="proposed_action: expected finite"):
        runtime.step(np.array([math.nan, 0.0]), FAR)
    with pytest.raises(TypeError, match="must be an array, got list"):
        runtime.step([0.0, 0.0], FAR)
    assert runtime.state_dict() == before


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (None, "obs: expected a mapping, got NoneType"),
        ({}, r'obs\["agent_states"\]: expected a mapping'),
        ({"agent_states": FAR, "meta": 3}, r'obs\["meta"\]: expected a mapping, got int'),
        ({"agent_states": FAR, "meta": {"partner_id": 7}}, "partner_id.*: expected text or None"),
        ({"agent_states": FAR, "comm": {"aoi": 1.0}}, r'"aoi"\]: expected a mapping'),
        ({"agent_states": FAR, "comm": {"aoi": {"p1": "old"}}}, "expected a number, got 'old'"),
        ({"agent_states": FAR, "comm": {"aoi": {"p1": -1}}}, "expected a finite age >= 0, got -1"),
    ],
)
def test_runtime_malformed_observation_is_an_error_or_brakes(obs, message):
    with pytest.raises(InputError, match=message):
        make_runtime().step_from_obs(np.zeros(2), obs)
    step = make_runtime(on_bad_input="brake").step_from_obs(np.ones(2), obs)
    assert step.bad_input is not None
    assert step.action.tolist() == [0.0, 0.0]  # nothing is known of the ego's motion
    assert step.uncertified
    assert step.intervention == pytest.approx(math.sqrt(2.0))


def test_runtime_blind_steps_bring_the_ego_to_rest_and_not_beyond():
    runtime = make_runtime(on_bad_input="brake")
    duel = Duel([[0.0, 0.0], [9.0, 0.0]], [[1.0, -0.5], [0.0, 0.0]], 0.05)
    runtime.step(np.array([0.4, 0.0]), duel.snapshots())
    duel.step([[0.4, 0.0], [0.0, 0.0]])
    speeds = []
    for _ in range(60):
        step = runtime.step(np.array([2.0, 0.0]), {})
        assert step.bad_input is not None
        assert step.uncertified
        duel.step([step.action.tolist(), [0.0, 0.0]])
        speeds.append(math.hypot(*duel.velocities[0]))
    assert all(b < 0.7 * a + 1e-9 for a, b in itertools.pairwise(speeds[10:]))
    assert speeds[-1] < 1e-6
    assert runtime.telemetry.episode.counts["bad_inputs"] == 60
    sound = runtime.step(np.array([0.1, 0.0]), duel.snapshots())
    assert sound.bad_input is None
    assert sound.action.tolist() == [0.1, 0.0]


def test_runtime_blind_steps_avoid_where_the_partner_may_be_by_now():
    """A partner last seen coming at 0.5 m/s from 0.6 m: stopping is not enough."""
    runtime = make_runtime(on_bad_input="brake", max_age_s=0.2)
    agents = {"ego": agent([0, 0]), "p1": agent([0.8, 0.0], [-0.6, 0.0])}
    runtime.step(np.zeros(2), agents)
    pushes = [runtime.step(np.zeros(2), {}).action[0] for _ in range(8)]
    assert min(pushes) < -0.5


def test_runtime_bad_action_brakes_on_the_present_scene():
    runtime = make_runtime(on_bad_input="brake")
    moving = {"ego": agent([0, 0], [0.1, 0.0]), "p1": agent([5, 0])}
    step = runtime.step(np.array([math.inf, 0.0]), moving)
    assert step.action == pytest.approx([-1.0, 0.0])  # -v / 0.1 s
    assert step.intervention == pytest.approx(1.0)
    assert "expected finite numbers" in step.bad_input


# construction, telemetry, state


def test_runtime_needs_models_and_controllers_that_fit():
    bounds = Bounds(2.0, 2.0, 1.0, 0.0, 0.0)
    shared = {"control_models": models(), "bounds": bounds, "control_timestep": 0.05}
    with pytest.raises(ConfigurationError, match="control model of the ego 'robot'"):
        SafetyRuntime(ego_uid="robot", **shared)
    with pytest.raises(ConfigurationError, match="expected an emergency controller of 'ego'"):
        SafetyRuntime(ego_uid="ego", emergency_controllers={}, **shared)


def test_runtime_finds_the_controller_of_a_model_with_a_jacobian():
    matrix, bias = np.array([[0.5, 0.1], [0.0, 0.8]]), np.array([0.2, -0.1])
    sheared = JacobianControlModel(
        "ego", 2, 2, lambda _: matrix, max_cartesian_accel_value=2.0, bias_fn=lambda _: bias
    )
    runtime = SafetyRuntime(
        ego_uid="ego",
        control_models={"ego": sheared, "p1": DoubleIntegratorControlModel("p1", 2, 0.1)},
        bounds=Bounds(4.0, 2.0, 1.0, 0.0, 0.0),
        control_timestep=0.05,
        options=SafetyOptions(on_bad_input="brake"),
    )
    step = runtime.step(np.zeros(2), {"ego": agent([0, 0], [3.0, 0.0]), "p1": agent([0.6, 0.0])})
    assert step.braked
    accel = matrix @ step.action + bias
    assert accel[0] < -1.5
    # Blind, it slows down along its velocity: acceleration -v / 0.1 s, bias included.
    runtime.begin_episode()
    runtime.step(np.zeros(2), {"ego": agent([0, 0], [0.1, 0.05]), "p1": agent([6, 0])})
    velocity = np.array([0.1, 0.05]) + 0.05 * bias
    step = runtime.step(np.zeros(2), {})
    assert matrix @ step.action + bias == pytest.approx(-velocity / 0.1, abs=1e-4)


def test_telemetry_counts_run_and_episode_and_every_reason():
    runtime = make_runtime()
    pressed(runtime, 9.0)
    crash = {"ego": agent([0, 0], [3.0, 0.0]), "p1": agent([0.6, 0.0])}
    danger = runtime.step(np.zeros(2), crash).dangers[PAIR]
    assert danger.time_to_collision == pytest.approx(0.2 / 3.0)
    assert danger.distance == pytest.approx(0.2)
    assert danger.closing_speed == pytest.approx(3.0)
    assert runtime.telemetry.episode.brakes == {"force": 1, "ttc": 1}
    runtime.begin_episode()
    runtime.step(np.zeros(2), FAR)
    assert runtime.telemetry.episode.brakes == {}
    assert runtime.telemetry.run.brakes == {"force": 1, "ttc": 1}
    assert runtime.telemetry.run.counts["steps"] == 3
    assert runtime.telemetry.run.counts["braked"] == 2
    assert runtime.telemetry.episode.counts["steps"] == 1
    restored = make_runtime()
    restored.load_state_dict(json.loads(json.dumps(runtime.state_dict())))
    assert restored.telemetry.run == runtime.telemetry.run
    runtime.begin_run(0)
    assert runtime.telemetry.run.counts["steps"] == 0


# Packets whose age is not known for sure.


DT = 0.05


def pair_models(partner_accel):
    return {
        "e": DoubleIntegratorControlModel("e", 2),
        "p": DoubleIntegratorControlModel("p", 2, partner_accel),
    }


def packet_ages(latency_ms=0.0, **options):
    bounds = Bounds(2.0, 2.0, 1.0, latency_ms, 0.0)
    return PacketAges(RuntimeSetup("e", pair_models(0.6), bounds, DT, SafetyOptions(**options)))


def ball(position, velocity, age=0.0):
    return AgentSnapshot(np.array(position), np.array(velocity), 0.2, age)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_conflict_widened_ball_holds_the_ball_of_every_possible_age(share):
    agents = {"e": ball([0.0, 0.0], [0.0, 0.0]), "p": ball([3.0, 1.0], [-1.2, 0.5], 0.05)}
    taken, conflict = packet_ages().applied(agents, {"p": 0.25})
    widened = taken["p"]
    assert conflict
    assert widened.age_s == 0.25
    centre = widened.position + 0.25 * widened.velocity
    # 3 - 1.2 * 0.15 and 1 + 0.5 * 0.15; the speed is 1.3.
    assert centre == pytest.approx([2.82, 1.075])
    assert widened.radius == pytest.approx(0.2 + 0.1 * (1.3 + 0.6 * 0.3))
    age = 0.05 + share * 0.2
    possible = np.array([3.0, 1.0]) + age * np.array([-1.2, 0.5])
    assert math.dist(possible, centre) + 0.2 <= widened.radius + 1e-12
