import json

import pytest
from pydantic import ValidationError

from cadenza.core.errors import InputError
from cadenza.evaluation.results import (
    BundleSummary,
    ConditionPair,
    EpisodeResult,
    IntervalRecord,
    ResultBundle,
    SeedSchedule,
    SpikeRun,
    episode_line,
    load_run_archive,
)

EPISODE = {"seed": 1, "episode_idx": 0, "initial_state_seed": 7, "success": True}
SPIKE = {
    "spike_id": "stage1_as",
    "prereg_sha": "0" * 40,
    "git_tag": "prereg-1",
    "axis": "AS",
    "sub_stage": "1b",
    "condition_pair": {"homogeneous_id": "a", "heterogeneous_id": "b"},
    "seeds": [0, 1],
    "episode_results": [{**EPISODE, "metadata": {"condition": "a", "mean_reward": "1.5"}}],
}
SUMMARY = {
    "n_episodes": 1,
    "success_mean": 1.0,
    "success_iqm": 1.0,
    "success_ci_low": 0.025,
    "success_ci_high": 1.0,
    "n_resamples": 2000,
    "bootstrap_root_seed": 0,
}
BUNDLE = {
    "schema_version": 3,
    "task_id": "crossing",
    "task_version": 1,
    "policy_id": "random",
    "partner_set_id": "adhoc:scripted",
    "partner_hashes": {"scripted": "0123456789abcdef"},
    "git_sha": "unknown",
    "dirty": True,
    "package_version": "0.1.0",
    "seed_schedule": {"root_seed": 0, "seeds": [1], "episodes_per_seed": 1},
    "repro_command": "cadenza eval run",
    "platform": {"os": "Linux", "python": "3.11", "numpy": "2.4", "device": "cpu"},
    "manifest": {"episodes_seed1.jsonl": "a" * 64},
    "summary": SUMMARY,
}


def write(tmp_path, value) -> "object":
    path = tmp_path / "archive.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", "1", "valid integer"),
        ("seed", True, "valid integer"),
        ("episode_idx", -1, "greater than or equal to 0"),
        ("success", 1, "valid boolean"),
        ("constraint_violation_peak", float("nan"), "finite"),
        ("force_peak", float("inf"), "finite"),
        ("fallback_fired", -1, "greater than or equal to 0"),
        ("min_distance_m", -0.1, "greater than or equal to 0"),
        ("episode_return", "2.0", "valid number"),
        ("condition", "", "at least 1 character"),
        ("colour", "red", "Extra inputs"),
    ],
)
def test_episode_with_malformed_field_is_refused(field, value, message):
    with pytest.raises(ValidationError, match=message):
        EpisodeResult(**{**EPISODE, field: value})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"reward": float("nan")}, r"metadata\.reward\.float\n +Input should be a finite number"),
        ({"nested": [{"x": float("inf")}]}, r"nested\.list\.0\.dict\.x\.float\n.* finite number"),
        ({"path": object()}, r"metadata\.path\n +input was not a valid JSON value"),
        ({"pair": (1, 2)}, r"metadata\.pair\n +input was not a valid JSON value"),  # read as a list
        ({"inner": {1: 2}}, r"inner\.dict\.1\.\[key\]\n +Input should be a valid string"),
    ],
)
def test_episode_with_metadata_json_cannot_express_is_refused(metadata, message):
    with pytest.raises(ValidationError, match=message):
        EpisodeResult(**EPISODE, metadata=metadata)


def test_episode_of_older_archive_lifts_condition_partner_and_steps_from_metadata():
    episode = EpisodeResult(**EPISODE, metadata={"condition": "a", "member": "m", "n_steps": 40})
    assert (episode.condition, episode.partner, episode.n_steps) == ("a", "m", 40)


def test_episode_of_older_archive_with_steps_as_text_leaves_them_in_metadata():
    episode = EpisodeResult(**EPISODE, metadata={"n_steps": "40"})
    assert episode.n_steps is None
    assert episode.metadata == {"n_steps": "40"}


def test_episode_whose_metadata_contradicts_the_typed_field_is_refused():
    with pytest.raises(ValidationError, match="expected condition and metadata"):
        EpisodeResult(**EPISODE, condition="a", metadata={"condition": "b"})


@pytest.mark.parametrize(
    "name", ["violating_steps", "interventions", "infeasible_steps", "uncertified_steps"]
)
def test_episode_with_more_marked_steps_than_steps_is_refused(name):
    with pytest.raises(ValidationError, match=f"{name}: expected at most n_steps = 5, got 6"):
        EpisodeResult(**EPISODE, n_steps=5, **{name: 6})
    assert getattr(EpisodeResult(**EPISODE, n_steps=6, **{name: 6}), name) == 6


def test_episode_line_omits_what_was_not_recorded_and_keeps_metadata_nulls():
    line = episode_line(EpisodeResult(**EPISODE, metadata={"note": None}))
    assert line == (
        b'{"constraint_violation_peak":0.0,"episode_idx":0,"fallback_fired":0,'
        b'"initial_state_seed":7,"metadata":{"note":null},"seed":1,"success":true}\n'
    )
    assert EpisodeResult.model_validate_json(line).metadata == {"note": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": None}, "expected either value, low and high or an undefined_reason"),
        ({"undefined_reason": "no episodes"}, "expected either value, low and high"),
        ({"low": 0.8, "high": 0.2}, "expected low <= high"),
        ({"confidence": 1.0}, "less than 1"),
    ],
)
def test_interval_record_that_contradicts_itself_is_refused(change, message):
    good = {
        "value": 0.5, "low": 0.4, "high": 0.6, "estimator": "x", "n": 3, "n_clusters": 1,
    }  # fmt: skip
    assert IntervalRecord(**good).confidence == 0.95
    with pytest.raises(ValidationError, match=message):
        IntervalRecord(**{**good, **change})


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (ConditionPair, {"homogeneous_id": "a", "heterogeneous_id": "a"}, "got 'a' twice"),
        (SpikeRun, {k: v for k, v in SPIKE.items() if k != "sub_stage"}, "sub_stage"),
        (SpikeRun, {**SPIKE, "seeds": []}, "expected at least one seed and no repeats"),
        (SpikeRun, {**SPIKE, "seeds": [0, 0]}, "expected at least one seed and no repeats"),
        (SpikeRun, {**SPIKE, "seeds": [0]}, r"declared seeds \[0\], got seeds \[1\]"),
        (
            SeedSchedule,
            {"root_seed": 0, "seeds": [1, 1], "episodes_per_seed": 2},
            r"SeedSchedule\.seeds: expected",
        ),
        (BundleSummary, {**SUMMARY, "success_mean": float("nan")}, "finite"),
    ],
)
def test_parts_of_an_archive_that_contradict_themselves_are_refused(kind, fields, told):
    with pytest.raises(ValidationError, match=told):
        kind.model_validate(fields)


def test_bundle_summary_without_statistics_needs_a_reason():
    empty = dict.fromkeys(("success_mean", "success_iqm", "success_ci_low", "success_ci_high"))
    with pytest.raises(ValidationError, match="expected either four statistics or an undefined"):
        BundleSummary(**{**SUMMARY, **empty})
    summary = BundleSummary(**{**SUMMARY, **empty, "undefined_reason": "no episodes"})
    assert BundleSummary.model_validate_json(summary.model_dump_json()) == summary


@pytest.mark.parametrize(
    ("resamples", "allowed"), [(0, True), (1, False), (999, False), (1000, True), (10**7, False)]
)
def test_bundle_summary_refuses_too_few_resamples(resamples, allowed):
    values = {**SUMMARY, "n_resamples": resamples}
    if allowed:
        assert BundleSummary(**values).n_resamples == resamples
    else:
        with pytest.raises(ValidationError, match="or 1000 to 1000000, got"):
            BundleSummary(**values)


def test_bundle_summary_of_older_archive_gets_the_legacy_estimator():
    assert BundleSummary(**SUMMARY).estimator == "iqm/cluster/percentile-loop/v0"


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a\\b", "a\nb", "a\0b"])
def test_bundle_with_manifest_name_outside_its_folder_is_refused(name):
    with pytest.raises(ValidationError, match="expected plain file names"):
        ResultBundle.model_validate({**BUNDLE, "manifest": {name: "a" * 64}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"manifest": {"x": "A" * 64}}, "should match pattern"),
        ({"partner_hashes": {"p": "0123"}}, "should match pattern"),
        ({"prereg_git_tag": "t"}, "expected prereg_git_tag and prereg_blob_sha together"),
        ({"metadata": {"x": float("inf")}}, r"metadata\.x\.float"),
        ({"kind": "spike_run"}, "result_bundle"),
    ],
)
def test_bundle_with_malformed_field_is_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        ResultBundle.model_validate({**BUNDLE, **change})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_load_archive_of_older_spike_run_at_any_version_gives_a_spike_run(tmp_path, version):
    run = load_run_archive(write(tmp_path, {**SPIKE, "schema_version": version}))
    assert isinstance(run, SpikeRun)
    assert (run.schema_version, run.episode_results[0].condition) == (version, "a")


def test_load_archive_of_older_bundle_gives_a_bundle(tmp_path):
    assert isinstance(load_run_archive(write(tmp_path, BUNDLE)), ResultBundle)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "spike_run"}', "expected an integer schema_version at the top level, got None"),
        ('{"schema_version": "3"}', "expected an integer schema_version .* got '3'"),
        ('{"schema_version": true}', "expected an integer schema_version .* got True"),
        ('{"schema_version": 4}', "expected schema_version <= 3, got 4"),
        ('{"schema_version": 3, "kind": "novel"}', "expected kind .* got 'novel'"),
        ("[3]", "expected a JSON object, got list"),
        ('{"schema_version": NaN}', "expected strict JSON, got an error: the number NaN"),
        ("{", "expected strict JSON"),
        ("[" * 200_000, "expected strict JSON"),
    ],
)
def test_load_archive_of_something_else_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        load_run_archive(write(tmp_path, text))


@pytest.mark.parametrize("change", [{"schema_version": 2}, {"kind": "spike_run"}])
def test_load_archive_goes_by_kind_and_version_not_by_shape(tmp_path, change):
    with pytest.raises(ValidationError, match="spike_id"):
        load_run_archive(write(tmp_path, {**BUNDLE, **change}))


def test_load_archive_that_is_too_large_is_refused_without_being_read_whole(tmp_path, monkeypatch):
    for module in ("core.strict_json", "evaluation.results"):
        monkeypatch.setattr(f"cadenza.{module}.MAX_JSON_BYTES", 10)
    with pytest.raises(InputError, match="expected at most 10 bytes of JSON, got 11"):
        load_run_archive(write(tmp_path, BUNDLE))  # 11: one byte more than may be read


SAFETY = {
    "control_timestep_s": 0.05,
    "overlapping_steps": 1,
    "accel_checks": 9,
    "accel_breaches": 2,
    "lambda_mean": -0.5,
    "lambda_var": 0.25,
    "slack_peak": 0.0,
    "brake_reasons": {"ttc": 3},
}


def episode_with_safety(**changes):
    return EpisodeResult(
        seed=0,
        episode_idx=0,
        initial_state_seed=0,
        success=True,
        n_steps=10,
        safety={**SAFETY, **changes},
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accel_breaches": 10}, "accel_breaches: expected at most accel_checks = 9, got 10"),
        ({"accel_checks": 11}, "expected at most n_steps = 10 steps, got 1 and 11"),
        ({"overlapping_steps": 11}, "expected at most n_steps = 10 steps, got 11 and 9"),
        ({"control_timestep_s": 0.0}, "greater than 0"),
        ({"lambda_var": -1.0}, "greater than or equal to 0"),
        ({"unknown": 1}, "Extra inputs are not permitted"),
    ],
)
def test_safety_record_out_of_range_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        episode_with_safety(**changes)
