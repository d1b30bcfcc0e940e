"""Admission of co-carry: rows are the episodes of an evaluation, verdicts follow from them."""

from pathlib import Path

import pytest
from PIL import Image

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark import admission
from cadenza.benchmark.admission import AdmissionPlan, AdmissionRow, admit, as_markdown, play_row
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.films import film
from cadenza.benchmark.policies import load_policy
from cadenza.benchmark.tasks import COCARRY_MJ
from cadenza.core.errors import ConfigurationError, InputError
from tests.campaigns import nightly, size

pytest.importorskip("mjbatch")
FEW = size(3, 25)


def row(name, ego, partner, **options):
    return AdmissionRow(name=name, ego=ego, partner=partner, episodes=FEW, options=options)


def scalar_episode(ego, partner, seed):
    with open_world(
        env=EnvConfig(task="cocarry_mj", episode_length=300),
        partner=PartnerConfig(class_name=partner),
        safety=SafetyConfig(enabled=False),
        root_seed=0,
        make_policy=lambda seat: load_policy(ego, seat=seat, artifacts_root=Path()),
    ) as world:
        return run_episode(
            world,
            EpisodeTag(
                seed=seed,
                episode_idx=0,
                initial_state_seed=seed,
                policy=ego,
                condition="plain",
                partner=partner,
            ),
        )


def test_an_episode_of_a_row_is_the_one_that_an_evaluation_plays():
    played = play_row(COCARRY_MJ, row("mixed", "cocarry_reference", "cocarry_mixed"))
    assert [outcome.seed for outcome in played] == list(range(FEW))
    for outcome in played[:2]:
        alone = scalar_episode("cocarry_reference", "cocarry_mixed", outcome.seed)
        assert alone.success == outcome.success
        assert alone.n_steps * 0.05 == pytest.approx(outcome.info["time"])
        assert alone.goal_distance_m == outcome.info["goal_distance"]
        assert alone.metadata["stratum"] == outcome.stratum


@pytest.fixture
def small_plan(monkeypatch):
    rows = (
        row("matched", "cocarry_reference", "cocarry_leader"),
        row("alone", "cocarry_reference", "cocarry_leader", condition="single_arm", training=1),
        row("blind", "cocarry_blind_nominal", "cocarry_leader"),
    )
    plan = AdmissionPlan(
        rows=rows,
        matched=("matched",),
        alone=("alone",),
        schedules={"matched": ("blind",)},
        admitted=("matched",),
        binding="blind",
        limits=admission.COCARRY.limits,
    )
    monkeypatch.setitem(admission.PLANS, "cocarry_mj", plan)


def test_co_carry_needs_a_partner_and_an_ego_that_feels_it(small_plan):
    record = admit("cocarry_mj")
    matched, alone, blind = record["rows"]
    assert matched["successes"] == matched["reached"] == FEW
    assert matched["strata"] == {"leader": [FEW, FEW]}
    assert alone["successes"] == alone["reached"] == 0
    assert blind["reached"] == FEW  # it gets there, and breaks the limits on its way
    assert blind["successes"] <= FEW // 2
    assert blind["max_force"]["broken"] + blind["max_tilt_deg"]["broken"] >= FEW - 1
    checks = record["checks"]
    assert checks["A1"] == {"passed": True, "lowest": 1.0}
    assert checks["A2"] == {"passed": True, "highest": 0.0}
    gap = checks["A3"]["gaps"]["matched"]
    assert gap["difference"] == 1.0 - blind["successes"] / FEW
    assert checks["A4"]["profile"] == {"cocarry_leader": [*matched["interval"], True]}
    low, _ = matched["interval"]  # three of three says little
    assert checks["A4"]["outcome"] == ("PASS" if low >= admission.A4_FLOOR else "INDETERMINATE")
    assert record["verdict"] == ("ADMITTED" if low >= admission.A4_FLOOR else "INDETERMINATE")
    table = as_markdown(record)
    assert "| leader | " in table
    assert f"| matched | reference | leader | {FEW} of {FEW} |" in table
    assert "- **A2**: passed yes, highest 0.00" in table


def test_what_is_unknown_or_cannot_play_side_by_side_is_refused(monkeypatch):
    monkeypatch.setattr(admission, "load_policy", lambda *_, **__: object())
    with pytest.raises(
        ConfigurationError,
        match=r"expected one of .*doorway, doorway_diffdrive, handover_mj, got 'crossing'",
    ):
        admit("crossing")
    with pytest.raises(ConfigurationError, match="a scripted ego that acts on a batch, got 'zero'"):
        play_row(COCARRY_MJ, row("zero", "zero", "cocarry_leader"))


def test_plan_refers_to_its_own_rows():
    plan = admission.COCARRY
    names = [entry.name for entry in plan.rows]
    assert len(set(names)) == len(names)
    told = {*plan.matched, *plan.alone, *plan.admitted, plan.binding, *plan.schedules}
    assert told.union(*plan.schedules.values()) <= set(names)
    assert {entry.partner for entry in plan.rows} == set(COCARRY_MJ.partners)


def test_film_writes_a_strip_of_moments_and_a_moving_picture(tmp_path):
    request = {  # ends within some ticks, because the free end of the bar falls
        "task": "cocarry_mj",
        "ego": "cocarry_hold",
        "partner": "cocarry_leader",
        "options": {"condition": "single_arm", "training": 1},
    }
    strip, moving = tmp_path / "strip.png", tmp_path / "film.gif"
    try:
        steps = film(strip, **request)["steps"]
    except ConfigurationError:
        pytest.skip("nothing here draws without a display")
    assert film(moving, **request)["steps"] == steps < 20
    with Image.open(strip) as image, Image.open(moving) as frames:
        assert image.size == (4 * 640, 480)
        assert frames.n_frames == steps // 2 + 1
    with pytest.raises(InputError, match=r"ending in \.png, \.gif, \.mp4, \.json, got film\.avi"):
        film(tmp_path / "film.avi", **request)


@nightly
def test_whole_plan_admits_the_task():
    record = admission.admit("cocarry_mj", episodes=30)
    assert record["verdict"] == "ADMITTED"
    assert all(check["passed"] for check in record["checks"].values())
