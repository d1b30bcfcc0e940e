import math
from dataclasses import fields, replace
from typing import get_type_hints

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.contracts import Bounds
from cadenza.safety.filter_options import EgoOnlyKeywords, EgoOnlyOptions
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot
from tests.unit.safety.scenes import Duel, agent, models


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cbf_gamma": 0.0}, "cbf_gamma: expected > 0, got 0.0"),
        ({"cbf_gamma": math.nan}, "cbf_gamma"),
        ({"saturation_threshold": 0.0}, r"saturation_threshold: expected in \(0, 1\]"),
        ({"lambda_safe": 0.1}, "lambda_safe: expected <= 0"),
        ({"n_warmup_steps": -1}, "n_warmup_steps: expected >= 0"),
        ({"predictor_kind": "oracle"}, "predictor_kind: expected one of .* got 'oracle'"),
        ({"tau_brake": 0.0}, "tau_brake: expected > 0 s"),
        ({"clamp_floor_ratio": 0.9}, "strictly less than saturation_threshold = 0.9"),
        ({"margin_m": -1e-3}, "margin_m: expected >= 0 m"),
        ({"miss_rate": 0.0}, r"miss_rate: expected in \(0, 1\)"),
        ({"miss_rate": 1.0}, "miss_rate"),
        ({"eta": -0.01}, "eta: expected >= 0"),
        ({"conformal_rule": "magic"}, r"conformal_rule: expected one of \('two_sided'"),
        ({"eta_decay": -0.1}, r"eta_decay: expected in \[0, 1\)"),
        ({"eta_decay": 1.0}, r"eta_decay: expected in \[0, 1\)"),
        ({"dtaci_steps": ()}, "dtaci_steps: expected at least one step"),
        ({"target_loss": math.inf}, "target_loss: expected a finite speed"),
        ({"lambda_max": -0.1}, "lambda_max: expected >= 0"),
        ({"horizon_steps": 0}, "horizon_steps: expected 1 to 1000"),
        ({"lambda_start": "zero"}, "lambda_start: expected one of"),
        ({"partner_memory": -1}, "partner_memory: expected >= 0"),
        ({"prediction_error": -1.0}, "prediction_error"),
        ({"on_bad_input": "ignore"}, "on_bad_input: expected one of"),
        ({"max_age_s": -0.1}, "max_age_s"),
        ({"comm_tick_s": 0.0}, "comm_tick_s: expected > 0 s or None"),
        ({"age_jump_s": 0.0}, "age_jump_s: expected > 0 s"),
        ({"barrier": "hocbf"}, "barrier"),
        ({"compat": "upstream"}, 'compat="upstream" needs barrier="wae"'),
        ({"cbf_power": 3}, 'cbf_power belongs to barrier="wae"'),
        ({"budget_split": "half"}, "budget_split|split"),
        ({"rate_limit": "on"}, "rate_limit"),
        ({"solver": "simplex"}, "solver: expected one of"),
        ({"brake_latency_s": -0.1}, "brake_latency_s: expected >= 0 s"),
        # What the other options leave without effect.
        ({"eta": 0.02, "conformal_rule": "dtaci"}, "eta: expected its default with"),
        ({"miss_rate": 0.2, "conformal_rule": "huriot_sibai"}, "miss_rate: expected its default"),
        ({"eta_decay": 0.6, "conformal_rule": "huriot_sibai"}, "eta_decay: expected its default"),
        ({"dtaci_steps": (0.1,)}, "dtaci_steps: expected its default"),
        ({"target_loss": 0.1}, "target_loss: expected its default"),
        ({"lambda_max": 0.1}, "lambda_max: expected its default"),
        ({"lambda_start": "error_bound", "lambda_safe": -0.1}, "lambda_safe: expected 0 with"),
    ],
)
def test_options_out_of_range_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        SafetyOptions(**change)


# Every option changes what the runtime does; a field that changes nothing is dead.


PAIR = ("ego", "p1")


def make_runtime(options, *, partners=("p1",), bounds=None, partner_accel=0.5, dt=0.05):
    return SafetyRuntime(
        ego_uid="ego",
        control_models=models(partner_accel, 2, partners),
        bounds=Bounds(2.0, 2.0, 0.3, 40.0, 5.0) if bounds is None else bounds,
        control_timestep=dt,
        options=SafetyOptions(**options),
    )


def chase(**options):
    """A partner that accelerates at random while the ego drives at it; everything decided."""
    rng = np.random.default_rng(4)
    duel = Duel([[0.0, 0.0], [1.1, 0.05]], [[0.4, 0.0], [0.0, 0.0]], 0.05)
    runtime = make_runtime(options)
    log = []
    for k in range(60):
        push = rng.uniform(-0.35, 0.35, size=2)
        step = runtime.step(np.array([2.0 * (-1) ** (k // 7), 0.3]), duel.snapshots())
        log.append((step.action.tobytes(), step.lambda_[PAIR], step.uncertified))
        duel.step([step.action.tolist(), push.tolist()])
    return log


def swap_and_return(**options):
    runtime = make_runtime({"lambda_safe": -0.2, "n_warmup_steps": 0} | options)
    agents = {"ego": agent([0, 0]), "p1": agent([3, 0])}
    for partner in ("a", "a", "a", "b", "a"):
        step = runtime.step(np.zeros(2), agents, partner_id=partner)
    return step.lambda_


def lost_partner(**options):
    runtime = make_runtime(options)
    runtime.step(np.zeros(2), {"ego": agent([0, 0], [1, 0]), "p1": agent([3, 0])})
    try:
        return runtime.step(np.zeros(2), {"ego": agent([0, 0], [1, 0])}).action.tolist()
    except ValueError:
        return "error"


def near_and_old(age_in_ticks=0, **options):
    """One step towards a partner close by, whose packet is some ticks old."""
    runtime = make_runtime(options)
    agents = {"ego": agent([0, 0], [0.5, 0]), "p1": agent([0.55, 0])}
    obs = {"agent_states": agents, "comm": {"aoi": {"p1": age_in_ticks}}}
    return runtime.step_from_obs(np.array([2.0, 0.0]), obs).action.tolist()


def rising_age(**options):
    runtime = make_runtime(options)
    for age in (0.0, 0.15, 0.3):
        packet = AgentSnapshot(np.array([3.0, 0.0]), np.zeros(2), 0.2, age)
        runtime.step(np.zeros(2), {"ego": agent([0, 0]), "p1": packet})
    return runtime.telemetry.run.counts["age_jumps"]


def squeezed(**options):
    """Between two partners that approach: 0.12 s to contact, then 0.10 s, then 0.12 s again."""
    runtime = make_runtime(options, partners=("p1", "p2"))
    log = []
    for gap in (0.412, 0.410, 0.412):
        agents = {
            "ego": agent([0.0, 0.0]),
            "p1": agent([gap, 0.0], [-0.1, 0.0]),
            "p2": agent([-0.412, 0.0], [0.1, 0.0]),
        }
        log.append(runtime.step(np.array([0.0, 1.0]), agents).braked)
    return log


def squeezed_with_room(**options):
    """As `squeezed`, 0.2 s from contact: only the stopping distance runs short."""
    slow = Bounds(0.6, 0.6, 1.0, 0.0, 0.0)
    runtime = make_runtime(options, partners=("p1", "p2"), bounds=slow)
    agents = {
        "ego": agent([0.0, 0.0]),
        "p1": agent([0.48, 0.0], [-0.4, 0.0]),
        "p2": agent([-0.48, 0.0], [0.4, 0.0]),
    }
    return runtime.step(np.array([0.0, 0.5]), agents).braked


def surrounded(**options):
    """Two partners close in on an ego that moves slowly."""
    runtime = make_runtime(options, partners=("p1", "p2"))
    left, right = agent([-0.45, 0], [1, 0]), agent([0.45, 0], [-1, 0])
    step = runtime.step(np.zeros(2), {"ego": agent([0, 0], [0.2, 0]), "p1": left, "p2": right})
    return step.action.tolist(), step.uncertified


def saturated(**options):
    runtime = make_runtime(options)
    state = runtime.state_dict()
    state["adaptation"]["seat"]["state"]["lambda"][0]["value"] = -1.7  # saved under a wider clamp
    runtime.load_state_dict(state)
    runtime.step(np.zeros(2), {"ego": agent([0, 0]), "p1": agent([3, 0])})
    return runtime.telemetry.run.counts["saturated"]


def squeezed_or_refused(**options):
    try:
        return squeezed(**options)
    except InputError:
        return "a method for one row"


WAE = {"barrier": "wae"}
#: Option: scene, its value, and what both runs have beside it.
EFFECTS = {
    "cbf_gamma": (chase, 2.0, {}),
    "saturation_threshold": (saturated, 0.8, {}),
    "lambda_safe": (chase, -0.1, {}),
    "n_warmup_steps": (chase, 3, {}),
    "predictor_kind": (chase, "constant_acceleration", {}),
    "tau_brake": (squeezed, 0.2, {}),
    "clamp_floor_ratio": (chase, 0.01, {}),
    "margin_m": (chase, 0.02, {}),
    "miss_rate": (chase, 0.3, {}),
    "eta": (chase, 0.02, {}),
    "conformal_rule": (chase, "dtaci", {}),
    "eta_decay": (chase, 0.6, {}),
    "dtaci_steps": (chase, (0.1,), {"conformal_rule": "dtaci"}),
    "target_loss": (chase, 0.001, {"conformal_rule": "huriot_sibai"}),
    "lambda_max": (chase, 0.5, {"conformal_rule": "huriot_sibai"}),
    "horizon_steps": (chase, 4, {}),
    "lambda_start": (chase, "error_bound", {}),
    "partner_memory": (swap_and_return, 0, {}),
    "prediction_error": (chase, 10.0, {"predictor_kind": "constant_acceleration"}),
    "on_bad_input": (lost_partner, "brake", {}),
    "max_age_s": (chase, 0.2, {}),
    "position_error": (chase, 0.005, {}),
    "velocity_error": (chase, 0.02, {}),
    "latency_floor": (near_and_old, True, {}),
    "comm_tick_s": (lambda **o: near_and_old(3, **o), 0.005, {}),
    "age_jump_s": (rising_age, 0.2, {}),
    "barrier": (chase, "wae", {}),
    "compat": (chase, "upstream", WAE),
    "cbf_power": (chase, 3, WAE),
    "budget_split": (chase, "proportional", {}),
    "rate_limit": (chase, "soft", {}),
    "guarantee": (squeezed, "passive", {}),
    "contact_speed": (surrounded, 0.25, {"guarantee": "passive"}),
    "solver": (squeezed_or_refused, "closed_form", {}),
    "brake_stopping": (squeezed_with_room, True, {}),
    "brake_latency_s": (squeezed, 0.05, {}),
    "brake_hysteresis": (squeezed, False, {"tau_brake": 0.11}),
    "obstacles": (chase, (HalfSpace((0.0, -1.0), -0.3),), {}),
}


def test_older_name_of_the_guarantee_means_the_same():
    assert SafetyOptions(multi_partner="passive") == SafetyOptions(guarantee="passive")
    assert SafetyOptions(multi_partner="rows") == SafetyOptions()
    passive = SafetyOptions(multi_partner="passive", contact_speed=0.1)
    assert replace(passive, contact_speed=0.2).guarantee == "passive"
    for both in ({"multi_partner": "rows", "guarantee": "passive"}, {"multi_partner": "all"}):
        with pytest.raises(ConfigurationError, match="multi_partner"):
            SafetyOptions(**both)


def test_every_option_has_an_effect_to_show():
    assert EFFECTS.keys() == {field.name for field in fields(SafetyOptions)}


@pytest.mark.parametrize("name", EFFECTS)
def test_option_changes_what_the_runtime_does(name):
    scene, value, beside = EFFECTS[name]
    assert getattr(SafetyOptions(**beside), name) != value
    default = scene(**beside)
    assert default == scene(**beside)  # so a difference comes from the option
    assert scene(**beside, **{name: value}) != default


def test_rate_limit_hard_also_holds_the_braking_action():
    bounds = Bounds(2.0, 2.0, 0.3, 0.0, 0.0)
    agents = {"ego": agent([0.0, 0.0], [3.0, 0.0]), "p1": agent([0.6, 0.0])}
    first = {}
    for limit in ("off", "soft", "hard"):
        runtime = make_runtime({"rate_limit": limit}, bounds=bounds)
        runtime.step(np.zeros(2), {"ego": agent([0, 0]), "p1": agent([3, 0])})
        first[limit] = runtime.step(np.array([2.0, 0.0]), agents)
        assert first[limit].braked
    assert first["off"].action.tolist() == first["soft"].action.tolist() == [-2.0, 0.0]
    assert first["hard"].action == pytest.approx([-0.3, 0.0])


def test_keywords_for_editors_are_the_options() -> None:
    hints = get_type_hints(EgoOnlyOptions)
    hints["multi_partner"] = hints["multi_partner"].type  # of an older name, which is no field
    assert get_type_hints(EgoOnlyKeywords) == hints
