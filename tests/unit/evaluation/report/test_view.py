from dataclasses import replace

import pytest

from cadenza.core.errors import InputError
from cadenza.evaluation.report.view import Rollout, condition_css
from tests.unit.evaluation.report.sample_view import sample_view


def rollout(**change) -> Rollout:
    values = {
        "condition_id": "filter_on",
        "partner_id": "chaser",
        "seed": 0,
        "initial_state_seed": 0,
        "control_timestep_s": 0.05,
        "frames": ({"ego": (0.0, 0.0), "partner": (1.0, 0.0)},) * 2,
        "goals": {"ego": (2.0, 0.0)},
        "radii": {"ego": 0.2, "partner": 0.2},
        "contact_index": None,
        "success": False,
        "pick": "typical",
        "alike": "1 of 1 starts",
    }
    return Rollout(**{**values, **change})


def test_view_with_unknown_names_is_refused():
    view = sample_view(seeds=1, episodes=1, rollouts=False)
    stranger = view.episodes[0].model_copy(update={"partner": "stranger"})
    with pytest.raises(InputError, match=r"episodes: expected conditions .*'stranger'"):
        replace(view, episodes=(stranger,))
    with pytest.raises(InputError, match=r"rollouts: expected conditions .*'nobody'"):
        replace(view, rollouts=(rollout(partner_id="nobody"),))


def test_view_with_repeated_or_missing_names_is_refused():
    view = sample_view(seeds=1, episodes=1, rollouts=False)
    with pytest.raises(InputError, match="conditions: expected at least one and no repeats"):
        replace(view, conditions=(), episodes=())
    with pytest.raises(InputError, match="partners: expected at least one and no repeats"):
        replace(view, partners=view.partners[:1] * 2)
    more = tuple(replace(view.conditions[0], condition_id=f"c{index}") for index in range(7))
    with pytest.raises(InputError, match="expected at most 8, got 9; write several reports"):
        replace(view, conditions=(*view.conditions, *more))


def test_view_finds_what_is_compared_in_either_order():
    view = sample_view(seeds=1, episodes=1, rollouts=False)
    turned = replace(view, conditions=view.conditions[::-1])
    for each in (view, turned):
        assert (each.treatment.condition_id, each.baseline.condition_id) == (
            "filter_on",
            "filter_off",
        )
    assert condition_css(view) == ("on", "off")
    assert condition_css(turned) == ("off", "on")


def test_view_of_one_condition_compares_nothing():
    view = sample_view(seeds=1, episodes=1, rollouts=False)
    one = replace(
        view,
        conditions=view.conditions[1:],
        episodes=tuple(e for e in view.episodes if e.condition == "filter_off"),
    )
    assert (one.treatment, one.baseline) == (None, None)
    assert condition_css(one) == ("on",)
