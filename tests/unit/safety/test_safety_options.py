import math
from dataclasses import FrozenInstanceError

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.runtime.options import SafetyOptions


def test_options_defaults_are_the_promised_ones():
    options = SafetyOptions()
    assert options.cbf_gamma == 5.0
    assert options.saturation_threshold == 0.9
    assert options.lambda_safe == 0.0
    assert options.n_warmup_steps == 50
    assert options.predictor_kind == "constant_velocity"
    assert options.tau_brake == 0.1
    assert options.clamp_floor_ratio == 0.7
    with pytest.raises(FrozenInstanceError):
        options.tau_brake = 1.0


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
        ({"integral_gain": -1.0}, "integral_gain: expected >= 0 m/s"),
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
        ({"integral_gain": 0.1, "conformal_rule": "dtaci"}, "integral_gain: expected its default"),
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
