"""`cadenza sweep`: what it proposes, what it keeps, and what it must not touch."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from cadenza.aht.config import load_config
from cadenza.benchmark.ray_executor import RayCluster
from cadenza.benchmark.sweep import (
    Range,
    SweepConfig,
    SweepRunner,
    Trial,
    TrialRunner,
    parse_range,
    section_ranges,
)
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError, NonFiniteError
from cadenza.core.shipped_configs import shipped_config
from cadenza.partners.zoo_manifest import ZooManifest, ZooMember, write_manifest
from tests.campaigns import nightly
from tests.e2e.commands import LIMIT_S, held_at
from tests.e2e.in_process import here
from tests.integration.loop.ray_cluster import quiet_ray, running_cluster

SETTINGS = (
    *("algo=ppo", "total_frames=64", "checkpoint_every=64", "env.num_envs=4"),
    *("env.episode_length=8", "ppo.rollout_length=8", "ppo.batch_size=16", "ppo.epochs=1"),
    *("ppo.hidden_sizes=[8]", "evaluation.episodes=1"),
)
RANGES = ("ppo.learning_rate=log:1e-4..1e-1", "ppo.epochs=1..3", "ppo.activation=tanh,relu")
WORDS = ("sweep", "mpe_cooperative_push", *SETTINGS, *RANGES, "--batch", "2", "--json")


def swept(out, *words, cwd):
    done = here(*WORDS, "--out", out, *words, cwd=cwd)
    assert done.code == 0, done.err
    return done.json


def files(out):
    """Return the bytes of all that a finished sweep holds, by path."""
    return {p.relative_to(out): p.read_bytes() for p in out.rglob("[!.]*") if p.is_file()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return folder / "out", swept("out", "--trials", "5", "-j", "1", cwd=folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..8", Range(low=1, high=8)),
        ("1e-5..1e-2", Range(low=1e-5, high=1e-2)),
        ("log:1e-5..1", Range(low=1e-5, high=1, log=True)),
        ("64,128", Range(choices=(64, 128))),
        ("[64,64],[8]", Range(choices=([64, 64], [8]))),
        ("[64,64]", None),  # one list, the setting of all trials
        ("'0.1,0.2'", None),  # a quoted text
        ("true", None),
    ],
)
def test_value_of_a_word_is_a_range_a_choice_or_one_setting(text, expected):
    assert parse_range("key", text) == expected


@pytest.mark.parametrize("text", ["8..1", "a..b", "log:0..1", "true..false"])
def test_range_without_two_ordered_ends_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"^key: expected (log:)?LOW\.\.HIGH"):
        parse_range("key", text)


def test_section_of_a_file_names_ranges_by_dotted_or_nested_keys():
    section = {"ppo": {"epochs": "1..3", "activation": ["tanh", "relu"]}, "ppo.gamma": "0.9..1"}
    assert section_ranges(section) == {
        "ppo.epochs": Range(low=1, high=3),
        "ppo.activation": Range(choices=("tanh", "relu")),
        "ppo.gamma": Range(low=0.9, high=1),
    }
    with pytest.raises(ConfigurationError, match=r"^sweep\.ppo\.epochs: .* got 3"):
        section_ranges({"ppo": {"epochs": 3}})


def test_best_settings_are_those_of_the_best_trial(reference):
    out, told = reference
    trials = told["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3, 4]
    for trial in trials:
        assert 1e-4 <= trial["parameters"]["ppo.learning_rate"] <= 1e-1
        assert trial["parameters"]["ppo.epochs"] in (1, 2, 3)
        assert trial["parameters"]["ppo.activation"] in ("tanh", "relu")
    best = max((t for t in trials if t["state"] == "complete"), key=lambda t: t["value"])
    assert told["best"] == best
    config = load_config(config_path=out / "best.yaml")
    expected = load_config(
        config_path=shipped_config("train/mpe_cooperative_push"),
        overrides=[*SETTINGS, *(f"{key}={v!r}" for key, v in best["parameters"].items())],
    )
    assert config == expected


def test_report_shows_every_trial_and_is_what_the_report_command_writes(reference):
    out, told = reference
    page = (out / "report.html").read_text()
    for trial in told["trials"]:
        assert f"{trial['value']:.2f}".replace("-", "−") in page
    assert "ppo.activation" in page
    done = here("report", out, "--out", "again.html", cwd=out.parent)
    assert done.code == 0, done.err
    assert (out.parent / "again.html").read_text() == page
    here("report", out, "--out", "again.json", cwd=out.parent)
    assert json.loads((out.parent / "again.json").read_text())["best"] == told["best"]


def test_two_workers_make_the_bytes_of_one(reference, tmp_path):
    swept("out", "--trials", "5", "-j", "2", cwd=tmp_path)
    assert files(tmp_path / "out") == files(reference[0])


def test_killed_and_lengthened_sweep_ends_with_the_same_bytes(reference, tmp_path):
    words = (*WORDS, "--out", "out", "-j", "1")
    held = held_at("00001.json", *words, "--trials", "3", cwd=tmp_path)
    held.process.kill()
    held.outcome(LIMIT_S)
    (tmp_path / "out/trials/00000.json").unlink()  # as if the second had ended first
    swept("out", "--trials", "3", "--resume", cwd=tmp_path)
    swept("out", "--trials", "5", "--resume", cwd=tmp_path)
    assert files(tmp_path / "out") == files(reference[0])


@nightly
def test_actors_of_a_cluster_make_the_bytes_of_one_process(reference, tmp_path):
    config = sweep_of(batch=2)
    with quiet_ray(), running_cluster():
        ray = SweepRunner(out=tmp_path / "ray", cluster=RayCluster(), workers=2)
        found = ray.run(config, 3)
    assert found.trials == SweepRunner(out=tmp_path / "local", workers=1).run(config, 3).trials


def sweep_of(*words, **changes):
    path = shipped_config("train/mpe_cooperative_push")
    training = load_config(config_path=path, overrides=[*SETTINGS, *words])
    space = {"ppo.epochs": Range(low=1, high=3)}
    return SweepConfig(**{"training": training, "space": space, "seeds": (0,), **changes})


def test_other_ranges_in_the_folder_of_a_sweep_are_refused(reference):
    out, _ = reference
    words = (*WORDS, "ppo.gamma=0.9..0.99", "--out", out, "--resume")
    done = here(*words, cwd=out.parent)
    assert (done.code, "config.space.ppo.gamma" in done.err) == (2, True)


@pytest.mark.parametrize(("earlier", "state"), [(1e9, "pruned"), (-1e9, "complete")])
def test_trial_below_the_median_of_earlier_batches_is_pruned(earlier, state, tmp_path):
    config = sweep_of("evaluation.every_frames=32")
    before = [
        Trial(
            number=number,
            parameters={"ppo.epochs": 1},
            state="complete",
            value=earlier,
            values=(earlier,),
            evaluations=((32, earlier), (64, earlier)),
        )
        for number in range(5)  # the first five are never pruned
    ]
    runner = TrialRunner(
        config.model_dump(mode="json"),
        tmp_path,
        {5: {"ppo.epochs": 2}},
        [trial.model_dump(mode="json") for trial in before],
        get_task("mpe_cooperative_push"),
        (),
    )
    told = json.loads(runner("5"))
    frames = [frame for frame, _ in told["evaluations"]]
    assert (told["state"], frames) == (state, [32] if state == "pruned" else [32, 64])


def test_value_of_several_training_seeds_is_their_mean(tmp_path):
    run = partial(SweepRunner(out=tmp_path / "out", workers=1).run, trials=1)
    (trial,) = run(sweep_of(seeds=(0, 1))).trials
    assert len(trial.values) == 2
    assert trial.value == pytest.approx(sum(trial.values) / 2)
    assert trial.evaluations[-1][1] == trial.values[0]


def test_settings_that_do_not_fit_together_fail_their_trial_alone(tmp_path):
    space = {
        "safety.clamp_floor_ratio": Range(choices=(0.5, 0.95)),  # must be below
        "safety.saturation_threshold": Range(choices=(0.9, 0.96)),
    }
    found = SweepRunner(out=tmp_path / "out", workers=1).run(
        sweep_of(space=space, sampler="random", batch=8), 8
    )
    failed = {tuple(t.parameters.values()) for t in found.trials if t.state == "failed"}
    assert failed == {(0.95, 0.9)}
    assert {t.state for t in found.trials} == {"failed", "complete"}
    (reason,) = {t.reason for t in found.trials if t.state == "failed"}
    assert "strictly less than saturation_threshold" in reason


def test_errors_that_are_not_of_the_settings_alone_fail_no_trial(tmp_path, monkeypatch):
    config, task = sweep_of().model_dump(mode="json"), get_task("mpe_cooperative_push")
    runner = TrialRunner(config, tmp_path, {0: {"ppo.epochs": 2}}, [], task, ())
    for error, is_failed in ((NonFiniteError, True), (ConfigurationError, False)):
        training = Mock(side_effect=error("told"))
        monkeypatch.setattr("cadenza.benchmark.sweep.run_training", training)
        with nullcontext() if is_failed else pytest.raises(ConfigurationError):
            found = json.loads(runner("0"))
            assert (found["state"], found["reason"]) == ("failed", "told")


def test_trials_beside_a_zoo_meet_its_public_members(tmp_path):
    made = here(
        *("zoo", "train", "scripted", "--task", "mpe_cooperative_push", "--out", "zoo"),
        *("population=2", "episode_length=8"),
        cwd=tmp_path,
    )
    assert made.code == 0, made.err
    swept("out", "--zoo", "zoo", "--trials", "1", "-j", "1", cwd=tmp_path)
    config = load_config(config_path=tmp_path / "out/best.yaml")
    members = json.loads((tmp_path / "zoo/manifest.json").read_text())["members"]
    met = [{k: v for k, v in p.extra.items() if k != "uid"} for p in config.partners]
    assert met == [member["options"] for member in members]


def test_declared_validation_partners_are_who_trials_are_judged_beside(tmp_path):
    slow = "{class_name: scripted_heuristic, extra: {uid: partner, max_speed: '0.1'}}"
    values = []
    for words in ((), (f"evaluation.validation=[{slow}]",)):
        runner = SweepRunner(out=tmp_path / str(len(values)), workers=1)
        (trial,) = runner.run(sweep_of(*words), 1).trials
        values.append(trial.value)
    assert values[0] != values[1]


@pytest.mark.parametrize("where", ["training", "validation"])
def test_held_out_member_of_a_zoo_is_refused(where, tmp_path):
    member = ZooMember(name="b-0", family="behavior", class_name="zoo_member", split="held_out")
    zoo = ZooManifest(
        task="mpe_cooperative_push",
        task_version=1,
        task_sha256="0",
        episode_length=8,
        options={},
        code_sha256="0",
        package_version="0",
        requests=[],
        members=(member,),
    )
    write_manifest(tmp_path / "zoo", zoo)
    partner = {
        "class_name": "zoo_member",
        "weights_uri": "local://zoo/members/b-0.pt",
        "extra": {"root": str(tmp_path), "uid": "partner"},
    }
    training = sweep_of().training.model_dump()
    if where == "validation":
        training["evaluation"]["validation"] = (partner,)
    else:
        training["partner"] = partner
    config = sweep_of(training=training)
    with pytest.raises(ConfigurationError, match=r"partner b-0 of .*: expected a public member"):
        SweepRunner(out=tmp_path / "out").run(config, 1)
    assert not (tmp_path / "out").exists()


def test_unknown_setting_and_value_out_of_range_are_refused_before_anything_runs(tmp_path):
    for word, got in (("ppo.epoch=1..3", "ppo.epoch"), ("ppo.gamma=0.5..1.5", "1.5")):
        done = here("sweep", "mpe_cooperative_push", *SETTINGS, word, cwd=tmp_path)
        assert (done.code, got in done.err) == (2, True), done.err
    assert not list(Path(tmp_path).iterdir())


def test_sweep_without_a_range_says_how_to_name_one(tmp_path):
    done = here("sweep", "mpe_cooperative_push", *SETTINGS, cwd=tmp_path)
    assert (done.code, "ppo.learning_rate=log:1e-4..1e-2" in done.err) == (2, True)
