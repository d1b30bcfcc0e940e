"""From registered runs to a table: axes that survive, what is missing, what never gets in."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from cadenza.core.errors import InputError, PreregistrationError
from cadenza.evaluation.leaderboard import (
    DEFAULT_AXIS_WEIGHTS,
    ConditionResult,
    HRSVector,
    HRSVectorEntry,
    LeaderboardEntry,
    SeedOutcome,
    compute_hrs_scalar,
    compute_hrs_vector,
    condition_result,
    hrs_estimate,
    leaderboard_entry,
    leaderboard_table,
    render_leaderboard,
)
from cadenza.evaluation.prereg import LockedRegistration
from cadenza.evaluation.results import EpisodeResult, SpikeRun, load_run_archive
from cadenza.evaluation.statistics.beta_binomial import beta_binomial_interval


def result(axis, success=0.5, gap=30.0):
    return ConditionResult(
        axis=axis,
        n_episodes=10,
        homogeneous_success=0.9,
        heterogeneous_success=success,
        gap_pp=gap,
        ci_low_pp=gap - 1.0,
        ci_high_pp=gap + 1.0,
        violation_rate=0.1,
        fallback_rate=0.2,
    )


def spec(axis="CM", **changes):
    fields = {
        "axis": axis,
        "condition_pair": {"homogeneous_id": "homo", "heterogeneous_id": "hetero"},
        "seeds": [0, 1, 2],
        "episodes_per_seed": 10,
        "estimator": "mean_success_rate",
        "git_tag": f"prereg-{axis}",
    }
    content = json.dumps(fields | changes).encode()
    return LockedRegistration(content=content, git_tag=f"prereg-{axis}")


def run(axis="CM", solved=4, **changes):
    """Return a run whose control always succeeds and whose treatment solves ``solved`` of 10."""
    episodes = [
        EpisodeResult(
            seed=seed,
            episode_idx=k,
            initial_state_seed=100 * seed + k,
            success=condition == "homo" or k < solved,
            condition=condition,
            n_steps=50,
            violating_steps=5 if condition == "hetero" else 0,
            fallback_fired=int(k == 0),
        )
        for seed in range(3)
        for condition in ("homo", "hetero")
        for k in range(10)
    ]
    fields = {
        "spike_id": f"spike_{axis}",
        "prereg_sha": spec(axis).blob_sha,
        "git_tag": f"prereg-{axis}",
        "axis": axis,
        "sub_stage": "2",
        "condition_pair": {"homogeneous_id": "homo", "heterogeneous_id": "hetero"},
        "seeds": [0, 1, 2],
        "episode_results": episodes,
    }
    return SpikeRun.model_validate(fields | changes)


def test_vector_has_measured_axes_in_the_order_of_the_headline():
    measured = {axis: result(axis) for axis in ("AS", "OM", "CM")}
    vector = compute_hrs_vector(measured)
    assert [entry.axis for entry in vector.entries] == ["CM", "OM", "AS"]
    assert [entry.weight for entry in vector.entries] == [1.0, 0.6, 0.5]
    with pytest.raises(InputError, match="got \\['XX'\\]"):
        compute_hrs_vector({"XX": result("XX")})


def test_scalar_is_the_weighted_mean_and_zero_without_axes():
    vector = compute_hrs_vector({"CM": result("CM", 0.8), "AS": result("AS", 0.2)})
    assert compute_hrs_scalar(vector) == pytest.approx((1.0 * 0.8 + 0.5 * 0.2) / 1.5)
    assert compute_hrs_scalar(vector, weights={"CM": 0.0, "AS": 2.0}) == pytest.approx(0.2)
    assert compute_hrs_scalar(vector, weights={"CM": 0.0, "AS": 0.0}) == 0.0
    assert compute_hrs_scalar(HRSVector(entries=[])) == 0.0
    with pytest.raises(KeyError):
        compute_hrs_scalar(vector, weights={"CM": 1.0})


def test_figures_of_an_axis_are_rates_and_the_paired_gap():
    found = condition_result(run())
    assert (found.homogeneous_success, found.heterogeneous_success) == (1.0, 0.4)
    assert found.gap_pp == pytest.approx(60.0)  # an interquartile mean of pairs would say 100
    assert found.violation_rate == pytest.approx(30 * 5 / (60 * 50))
    assert found.fallback_rate == pytest.approx(0.1)
    lost = run(episode_results=run().episode_results[1:])
    with pytest.raises(InputError, match="1 without one"):
        condition_result(lost)


def test_row_of_a_method_has_the_axes_that_survive():
    runs = [run("CM"), run("PF", solved=9)]  # PF costs 10 points only
    registered = {"CM": spec("CM"), "PF": spec("PF")}
    entry = leaderboard_entry("ours", runs, registrations=registered)
    assert [score.axis for score in entry.hrs_vector.entries] == ["CM"]
    assert entry.hrs_scalar == pytest.approx(0.4)
    assert entry == leaderboard_entry("ours", runs[::-1], registrations=registered).model_copy(
        update={"spike_runs": entry.spike_runs}
    )
    with pytest.raises(InputError, match="at least 20 points by its lower bound"):
        leaderboard_entry("ours", runs[1:], registrations=registered)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sub_stage": "1a"}, "stage 1a, which only tries the rig"),
        ({"kind": "dry_run"}, "a dry run"),
        ({"git_tag": "dry-run"}, "a dry run"),
        ({"prereg_sha": "dry-run-no-prereg"}, "a dry run"),
    ],
)
def test_rehearsals_never_reach_a_table(changes, told, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(run(**changes).model_dump_json())
    loaded = load_run_archive(path)  # as any archive, whatever its version
    with pytest.raises(InputError, match=told):
        leaderboard_entry("ours", [loaded], registrations={"CM": spec()})


@pytest.mark.parametrize(
    ("registrations", "told"),
    [
        ({}, "expected a registration of axis CM"),
        ({"CM": spec(seeds=[0, 1])}, "not as registered: prereg_sha: "),
        ({"CM": spec(run_purpose="debug")}, "run_purpose: debug"),
    ],
)
def test_unregistered_runs_never_reach_a_table(registrations, told):
    with pytest.raises(PreregistrationError, match=told):
        leaderboard_entry("ours", [run()], registrations=registrations)


def test_two_runs_of_one_axis_are_refused():
    with pytest.raises(InputError, match="one run per axis, got CM twice"):
        leaderboard_entry("ours", [run(), run()], registrations={"CM": spec()})


def entry(method, score, axes=tuple(DEFAULT_AXIS_WEIGHTS)):
    vector = compute_hrs_vector({axis: result(axis, score) for axis in axes})
    return LeaderboardEntry(
        method_id=method,
        spike_runs=[f"spike_{axis}" for axis in axes],
        hrs_vector=vector,
        hrs_scalar=compute_hrs_scalar(vector),
        violation_rate=0.015,
        fallback_rate=0.5,
    )


def seeded(method, rates, axes=("CM",), episodes=20):
    """Return a row whose axes have these rates by seed."""
    row = entry(method, sum(rates) / len(rates), axes)
    outcomes = [
        SeedOutcome(axis=axis, seed=seed, successes=round(rate * episodes), episodes=episodes)
        for axis in axes
        for seed, rate in enumerate(rates)
    ]
    return row.model_copy(update={"outcomes": outcomes})


def test_scalar_of_one_axis_has_the_interval_of_its_rate():
    runs, registered = [run("CM")], {"CM": spec("CM")}
    row = leaderboard_entry("ours", runs, registrations=registered)
    found = hrs_estimate(row)
    bounds = beta_binomial_interval(np.full(3, 4.0), np.full(3, 10.0), confidence=0.95)
    assert (found.low, found.high) == pytest.approx(bounds)
    penalised = hrs_estimate(row, penalised=True)
    kept = 1.0 - 30 * 5 / (60 * 50)  # violating steps of all steps
    assert (penalised.value, penalised.low) == pytest.approx((0.4 * kept, bounds[0] * kept))
    older = row.model_copy(update={"outcomes": []})
    assert (hrs_estimate(older).value, hrs_estimate(older).low) == (0.4, None)


def test_axes_that_share_the_luck_of_their_seeds_do_not_narrow_the_scalar():
    rates = [0.2, 0.5, 0.8]
    found = hrs_estimate(seeded("ours", rates, ("CM", "AS")))
    half = 4.302653 * 0.3 / 3**0.5  # t(0.975, 2) s / sqrt(S): independent axes would give less
    assert (found.low, found.high) == pytest.approx((max(0.0, 0.5 - half), min(1.0, 0.5 + half)))


def test_ranks_are_the_ranges_that_simultaneous_intervals_allow():
    rows = [
        seeded("low", [0.05] * 5),
        seeded("high", [0.9] * 5),
        seeded("also high", [0.85] * 5),
    ]
    table = leaderboard_table(rows, axes=("CM",))
    assert [row[:2] for row in table.rows] == [
        ("1 to 2", "high"), ("1 to 2", "also high"), ("3", "low"),
    ]  # fmt: skip
    wide, alone = (hrs_estimate(rows[1], confidence=c) for c in (1 - 0.05 / 3, 0.95))
    assert table.rows[0][2] == f"0.900 [{wide.low:.3f}, {wide.high:.3f}]"
    assert wide.low < alone.low


def test_table_shows_the_vector_and_names_missing_axes():
    text = render_leaderboard([entry("b|`x`", 0.25, ("CM", "AS")), entry("a", 0.75)])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0].startswith("| Rank | Method | HRS scalar | Penalised | HRS vector |")
    assert rows[2] == (
        "| 1 to 2 | a | 0.750 | 0.739 | CM=0.750 (w=1.00), PF=0.750 (w=0.90), CR=0.750 (w=0.80), "
        "SA=0.750 (w=0.70), OM=0.750 (w=0.60), AS=0.750 (w=0.50) | 1.5% | 50.0% |"
    )
    assert rows[3].startswith(r"| 1 to 2 | \[PARTIAL: without PF, CR, SA, OM\] b\|\`x\` | 0.250 |")
    complete = render_leaderboard([entry("b", 0.25, ("CM", "AS"))], axes=("AS", "CM"), fmt="latex")
    assert "PARTIAL" not in complete
    assert r"1.5\% & 50.0\% \\" in complete
    bare = entry("c", 0.5).model_copy(update={"hrs_vector": HRSVector(entries=[])})
    with pytest.raises(InputError, match="no axis survived"):
        render_leaderboard([bare])


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (HRSVectorEntry, {"axis": "CM", "score": 1.1, "gap_pp": 0.0, "weight": 1.0}),
        (HRSVectorEntry, {"axis": "CM", "score": 0.5, "gap_pp": float("nan"), "weight": 1.0}),
        (HRSVectorEntry, {"axis": "", "score": 0.5, "gap_pp": 0.0, "weight": 1.0}),
        (HRSVector, {"entries": [HRSVectorEntry(axis="CM", score=0, gap_pp=0, weight=1)] * 2}),
        (ConditionResult, result("CM").model_dump() | {"ci_low_pp": 99.0}),
        (ConditionResult, result("CM").model_dump() | {"homogeneous_success": 1.5}),
        (LeaderboardEntry, entry("a", 0.5).model_dump() | {"hrs_scalar": float("inf")}),
    ],
)
def test_archives_with_impossible_numbers_are_refused(model, fields):
    with pytest.raises(ValidationError):
        model.model_validate(fields)
