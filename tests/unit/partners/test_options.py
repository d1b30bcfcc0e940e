"""Reading numeric options of partners."""

import math
from dataclasses import replace

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.partners.options import NumberOption, refuse_unknown_options
from cadenza.partners.registry import load_partner, partner_card
from cadenza.partners.spec import PartnerSpec

GAIN = NumberOption(key="gain", default=2.0, low=0.0, high=4.0, summary="pull, 1/s")


@pytest.mark.parametrize(
    ("given", "value"),
    [({"other": "1"}, 2), ({"gain": "4"}, 4), ({"gain": " 0.5 "}, 0.5), ({"gain": "1e-3"}, 0.001)],
)
def test_option_text_is_read_as_a_number_and_an_absent_one_has_its_default(given, value):
    assert GAIN.read("Partner", given) == value
    assert replace(GAIN, low_excluded=False).read("Partner", {"gain": "0"}) == 0.0


@pytest.mark.parametrize("text", ["0", "4.1", "nan", "two"])
def test_option_outside_its_range_names_class_key_and_range(text):
    told = r"Partner: option 'gain' \(pull, 1/s\): expected a number in \(0, 4\], got"
    with pytest.raises(ConfigurationError, match=told):
        GAIN.read("Partner", {"gain": text})


def test_unknown_option_lists_the_known_ones():
    with pytest.raises(
        ConfigurationError,
        match=r"Partner: unknown option 'gian' \(did you mean 'gain'\?\); known options: "
        r"checkpoint_tier, gain, note, role, task, uid\. "
        r"Remove it; on a command line: '~partner\.extra\.gian'",
    ):
        refuse_unknown_options("Partner", {"gian": "1", "uid": "x"}, ["gain"])


def test_metadata_keys_are_always_accepted():
    keys = {"uid": "x", "task": "t", "role": "r", "note": "n"}
    refuse_unknown_options("Partner", {**keys, "gain": "1"}, ["gain"])
    with pytest.raises(ConfigurationError, match="'gain'"):
        refuse_unknown_options("Partner", {**keys, "gain": "1"}, [])


WEIGHTS = "local://artifacts/policy"
#: Options of partners, their ranges and their defaults, as people are told them.
TOLD = {
    "arm_sway": "amplitude [0, 1] 0.1; period [4, 10000] 80; action_dim [1, 64] 8",
    "cocarry_leader": "paths [1, 4] 4",
    "cocarry_mixed": "leaders [0, 1] 0.6; sharing [0, 1] 0.2; paths [1, 4] 4",
    "constant_action": "value [-1e+06, 1e+06]",
    "crossing_goal_seeker": "max_acceleration (0, 0.5] 0.5; max_speed (0, 10] 1; "
    "speed_spread [0, 1] 0; position_gain (0, 10] 0.6; velocity_gain (0, 20] 2.5",
    "crossing_wanderer": "max_acceleration (0, 0.5] 0.5; arena_half_width (0, 100] 2.5; "
    "max_speed (0, 10] 0.8; knot_interval [0.05, 10] 0.5",
    **dict.fromkeys(
        ("crossing_stationary", "crossing_late_braker", "crossing_chaser"),
        "max_acceleration (0, 0.5] 0.5",
    ),
    "lerobot_policy": "control_hz (0, 10000] 10; policy_hz (0, 10000] 10; ensemble [0, 1000]; "
    "max_latency_ms (0, inf]; timeout_s (0, 3600] 60",
    "scripted_heuristic": "gain (0, 1000] 1; max_speed (0, 1000] 1",
    "varied_body": "hold_steps [1, 100]; loss [0, 1]; delay_steps [0, 100]; reach (0, 1]",
}


@pytest.mark.parametrize("name", TOLD)
def test_every_option_has_the_range_and_the_default_people_are_told(name):
    needs = {"uid": "r"} | ({"partner": "random_actions"} if name == "varied_body" else {})
    owner = type(load_partner(PartnerSpec(name, 0, extra=needs, weights_uri=WEIGHTS))).__name__
    for told in TOLD[name].split("; "):
        key, low, high, *default = told.split()
        for number in default:
            assert partner_card(name).options[key].endswith(f"(default {number})")
        least, most = float(low[1:-1]), float(high[:-1])
        below = low[1:-1] if low[0] == "(" else str(least - 1e-3)
        for text in ("nan", "two", below, *([str(most * 1.1)] if most < math.inf else [])):
            with pytest.raises(ConfigurationError) as refused:
                load_partner(PartnerSpec(name, 0, extra=needs | {key: text}, weights_uri=WEIGHTS))
            assert str(refused.value).startswith(f"{owner}: option '{key}' (")
            assert str(refused.value).endswith(f"expected a number in {low} {high}, got {text!r}.")
        if low[0] == "[":
            load_partner(PartnerSpec(name, 0, extra=needs | {key: low[1:-1]}, weights_uri=WEIGHTS))
