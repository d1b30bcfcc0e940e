"""The verifier's configuration: what is refused, what the shipped file says, what each key does."""

import dataclasses
import json
from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.safety.verifier.config import (
    VerifierConfig,
    configured,
    load_verifier_config,
    plan_scenarios,
)
from tests.unit.safety.verifications import ONE, verified

SHIPPED = Path(__file__).parents[3] / "configs" / "safety" / "verify.yaml"


def test_shipped_file_holds_every_key_with_its_default():
    text = SHIPPED.read_text(encoding="utf-8")
    assert load_verifier_config(SHIPPED, {}) == VerifierConfig()
    missing = [f.name for f in dataclasses.fields(VerifierConfig) if f"\n{f.name}:" not in text]
    assert missing == []


def test_defaults_cover_what_the_claim_is_about():
    scenarios = plan_scenarios(VerifierConfig())
    single = [s for s in scenarios if s.partners == 1 and s.kind == "adversarial"]
    assert sum(s.steps for s in single) >= 1_000_000
    assert len(single) == 2 * 2 * 4 * 3  # dimensions, plants, control steps, ages
    assert {s.dt for s in scenarios if s.kind == "stationary"} == {0.05, 0.02, 0.005}
    assert {s.partners for s in scenarios} == {1, 2, 3, 4, 5}
    assert len({s.name for s in scenarios}) == len(scenarios)
    assert all(s.max_age_s == (0.0 if s.delay == "none" else 0.1) for s in single)


def test_steps_are_shared_evenly_and_rounded_up_to_whole_episodes():
    config = VerifierConfig(steps=1000, dims=(2,), plants=("zoh",), dts=(0.05,), partners=(1,))
    single = [s for s in plan_scenarios(config) if s.kind == "adversarial"]
    # 1000 steps over three ages: 334 + 333 + 333; 5 s at 0.05 s are 100 steps per episode.
    assert [(s.episodes, s.horizon) for s in single] == [(4, 100)] * 3


@pytest.mark.parametrize(("dt", "horizon"), [(0.1, 80), (0.05, 100), (0.02, 250), (0.005, 300)])
def test_episodes_are_neither_too_short_nor_too_long(dt, horizon):
    config = VerifierConfig(dts=(dt,), partners=(1,), stationary=False)
    assert {s.horizon for s in plan_scenarios(config)} == {horizon}


def test_standing_scenarios_take_no_more_steps_than_asked_for():
    def standing(**changes):
        plan = plan_scenarios(VerifierConfig(partners=(1,), **changes))
        return [s for s in plan if s.kind == "stationary"]

    assert {s.episodes for s in standing()} == {16}
    # 6 s at 0.0005 s are 12 000 steps, in 4 scenarios: 50 000 steps are one start each ...
    fine = standing(dts=(0.0005,), steps=50_000)
    assert [(s.episodes, s.horizon) for s in fine] == [(1, 12_000)] * 4
    # ... 240 000 are five, and 5000 none.
    assert {s.episodes for s in standing(dts=(0.0005,), steps=240_000)} == {5}
    assert standing(dts=(0.0005,), steps=5000) == []
    # At the default control steps one start is always there.
    assert [s.episodes for s in standing(dts=(0.005,), steps=10)] == [1] * 4


def test_file_and_overrides_are_merged_and_the_override_wins(tmp_path):
    path = tmp_path / "verify.yaml"
    path.write_text("steps: 10\nseed: 4\ndts: [0.02]\n", encoding="utf-8")
    config = load_verifier_config(path, {"seed": 5, "partners": 1, "margin_m": 1})
    assert (config.steps, config.seed, config.dts) == (10, 5, (0.02,))
    assert config.partners == (1,)  # a single value stands for a list of one
    assert config.margin_m == 1.0
    assert isinstance(config.margin_m, float)


def test_file_that_is_no_mapping_is_refused(tmp_path):
    path = tmp_path / "verify.yaml"
    path.write_text("[1, 2]\n", encoding="utf-8")
    with pytest.raises(ConfigurationTypeError, match="expected a mapping of settings, got list"):
        load_verifier_config(path, {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 3}, r"unknown key step \(did you mean .steps.\?\); expected some of seed, steps"),
        ({"steps": True}, "steps: expected a whole number, got True"),
        ({"steps": 0}, r"steps: expected a number in \[1, 1e\+10\], got 0"),
        ({"margin_m": "wide"}, "margin_m: expected a number, got 'wide'"),
        ({"margin_m": float("nan")}, "margin_m: expected a number in"),
        ({"stationary": 1}, "stationary: expected true or false, got 1"),
        ({"barrier": 3}, "barrier: expected a name, got 3"),
        ({"compat": 3}, "compat: expected a name or null, got 3"),
        ({"compat": "old", "barrier": "wae"}, "compat: expected one of None, upstream"),
        ({"compat": "upstream"}, "set barrier=wae"),
        ({"plants": ["euler"]}, "plants: expected one of zoh, semi_implicit, got 'euler'"),
        ({"dims": [2, 2]}, "dims: expected at least one value and none twice"),
        ({"dims": [4]}, "dims: expected one of 2, 3, got 4"),
        ({"dts": [0.05, 0.05000000001]}, "dts: expected numbers that differ in six digits"),
        ({"delays": ["late"]}, "delays: expected one of none, fixed, varying"),
        ({"ego_nominals": ["ghost"]}, "ego_nominals: expected one of drive_at, drive_at_shaken"),
        ({"partner_accel": 2.0}, "expected a partner weaker than the ego"),
        ({"seed": -1}, "seed: expected a number in"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(values, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        configured(VerifierConfig, values)
    assert "\n" not in str(caught.value)


#: Verifications of a moment, in which every key has something to change.
SMALL = dataclasses.replace(
    ONE,
    steps=100,
    delays=("none",),
    pieces=1,
    compared_share=0.05,
    several_steps=160,
)
CLASSIC = dataclasses.replace(SMALL, barrier="wae")
LATE = dataclasses.replace(SMALL, delays=("varying",))
SEVERAL = dataclasses.replace(SMALL, partners=(3,))
PASSIVE = dataclasses.replace(SEVERAL, multi_partner="passive", compared_share=0.0)

CHANGES = [
    (SMALL, {"seed": 1}),
    (SMALL, {"steps": 200}),
    (SEVERAL, {"several_steps": 300}),
    (SMALL, {"dims": (3,)}),
    (SMALL, {"plants": ("semi_implicit",)}),
    (SMALL, {"dts": (0.1,)}),
    (SMALL, {"delays": ("fixed",)}),
    (SEVERAL, {"several_delays": ("fixed",)}),
    (SMALL, {"partners": (2,)}),
    (SMALL, {"stationary": True}),
    (SMALL, {"ego_nominals": ("to_goal",)}),
    (SMALL, {"pieces": 2}),
    (SMALL, {"ego_accel": 3.0}),
    (SMALL, {"partner_accel": 0.7}),
    (SMALL, {"ego_radius": 0.3}),
    (SMALL, {"partner_radius": 0.3}),
    (LATE, {"max_age_s": 0.05}),
    (SMALL, {"position_error": 0.005}),
    (SMALL, {"velocity_error": 0.02}),
    (SMALL, {"barrier": "wae"}),
    (CLASSIC, {"compat": "upstream"}),
    (CLASSIC, {"cbf_gamma": 1.0}),
    (SMALL, {"margin_m": 0.01}),
    (SMALL, {"filter_plant": "semi_implicit"}),
    (dataclasses.replace(SEVERAL, compared_share=0.0), {"multi_partner": "passive"}),
    (PASSIVE, {"contact_speed": 0.25}),
    (SMALL, {"compared_share": 0.0}),
]


def found(config):
    return json.dumps([result.to_jsonable() for result in verified(config).results])


@pytest.mark.parametrize(
    ("base", "change"), CHANGES, ids=[next(iter(change)) for _, change in CHANGES]
)
def test_every_key_changes_what_is_found(base, change):
    assert found(dataclasses.replace(base, **change)) != found(base)


def test_every_key_is_among_the_changes_above():
    assert {next(iter(change)) for _, change in CHANGES} == {
        field.name for field in dataclasses.fields(VerifierConfig)
    }
