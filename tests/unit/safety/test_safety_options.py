import math
from dataclasses import FrozenInstanceError

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.options import SafetyOptions


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
        ({"saturation_threshold": 1.1}, "saturation_threshold"),
        ({"lambda_safe": 0.1}, "lambda_safe: expected <= 0"),
        ({"lambda_safe": math.nan}, "lambda_safe"),
        ({"n_warmup_steps": -1}, "n_warmup_steps: expected >= 0"),
        ({"predictor_kind": "oracle"}, "predictor_kind: expected one of .* got 'oracle'"),
        ({"tau_brake": 0.0}, "tau_brake: expected > 0 s"),
        ({"tau_brake": math.inf}, "tau_brake"),
        ({"clamp_floor_ratio": 0.9}, "strictly less than saturation_threshold = 0.9"),
        ({"clamp_floor_ratio": 0.0}, "clamp_floor_ratio"),
        ({"margin_m": -1e-3}, "margin_m: expected >= 0 m"),
        ({"miss_rate": 0.0}, r"miss_rate: expected in \(0, 1\)"),
        ({"miss_rate": 1.0}, "miss_rate"),
        ({"eta": -0.01}, "eta: expected >= 0"),
    ],
)
def test_options_out_of_range_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        SafetyOptions(**change)
