"""Several training seeds are one result: whatever trains them, and whatever is killed meanwhile."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.aht.config import load_config
from cadenza.benchmark.ray_executor import RayCluster
from cadenza.benchmark.training_seeds import SeedRunner, parse_seeds
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import shipped_config
from cadenza.evaluation.statistics.estimate import rate_estimate
from tests.campaigns import nightly
from tests.e2e.commands import LIMIT_S, REPOSITORY, Started, wait_for
from tests.integration.loop.ray_cluster import quiet_ray, running_cluster

SETTINGS = (
    "total_frames=512",
    "checkpoint_every=128",
    "env.num_envs=4",
    "env.episode_length=40",
    "happo.rollout_length=16",
    "evaluation.every_frames=0",
    "evaluation.episodes=1",
    "safety.enabled=false",  # which seeds share with nobody
)
CONFIG = load_config(config_path=shipped_config("train/crossing"), overrides=list(SETTINGS))
SEEDS = (3, 4, 8)


def run(out, *, workers=1, progress=None, cluster=None, **changes):
    runner = SeedRunner(
        out=out,
        workers=workers,
        cluster=cluster,
        repo_root=Path("/nonexistent"),
        progress=progress,
    )
    return runner.run(CONFIG, SEEDS, episodes_per_seed=1, **changes)


def files(out):
    """Return the bytes of policies, bundles, report and result by path."""
    paths = [p for place in ("policies", "evaluation/bundles") for p in (out / place).rglob("*.*")]
    paths += [out / "report.html", out / "result.json", *out.glob("training/*/artifacts/*_step*")]
    return {p.relative_to(out): p.read_bytes() for p in paths if p.is_file()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("seeds") / "out"
    told = []
    trained, judged = run(out, progress=lambda *report: told.append(report))
    return out, trained, judged, told


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("5", (0, 1, 2, 3, 4)), ("2-4", (2, 3, 4)), ("3,7,9", (3, 7, 9)), ("7-7", (7,))],
)
def test_seeds_are_a_number_a_range_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "got"),
    [(text, repr(text)) for text in ("0", "", "4-2", "a", "-1", "1,,2")] + [("1,3,1", "1 twice")],
)
def test_seeds_that_name_none_or_one_twice_are_refused(text, got):
    with pytest.raises(ConfigurationError, match=rf"\(0-4, the smaller first\) .* got {got}\."):
        parse_seeds(text)


def test_result_has_one_interval_whose_clusters_are_the_training_seeds(reference):
    out, _, judged, _ = reference
    result = json.loads((out / "result.json").read_text())
    assert result["clusters"] == "training seed"
    (overall,) = (
        estimate
        for estimate in result["estimates"]
        if (estimate["row"], estimate["statistic"]) == ("All partners", "success")
    )
    outcomes = {
        seed: [e.success for e in judged.evaluation.episodes[f"ego_aht_happo_seed{seed}"]]
        for seed in SEEDS
    }
    expected = rate_estimate(outcomes)
    assert overall["estimator"] == "rate/cluster/beta-binomial/v1"
    assert (overall["low"], overall["high"]) == (expected.low, expected.high)
    assert (overall["n"], overall["n_clusters"]) == (3 * 5 * 10, 3)
    page = (out / "report.html").read_text()
    assert "trained 3 times, with the training seeds 3, 4, 8" in page
    assert "trained once" not in page


def test_every_seed_has_a_bundle_that_names_it_and_verifies(reference):
    _, _, judged, _ = reference
    starts = set()
    for seed in SEEDS:
        folder = judged.evaluation.bundles[f"ego_aht_happo_seed{seed}"]
        assert all_ok(verify_bundle_dir(folder, allow_dirty=True))
        facts = json.loads((folder / "bundle.json").read_text())["metadata"]
        assert (facts["method"], facts["training_seed"]) == ("ego_aht_happo", seed)
        episodes = judged.evaluation.episodes[folder.name]
        starts.add(tuple(e.initial_state_seed for e in episodes))
    assert len(starts) == 1


def test_bundle_that_claims_another_training_seed_is_found(reference, tmp_path):
    _, _, judged, _ = reference
    folder = judged.evaluation.bundles["ego_aht_happo_seed3"]
    for path in folder.iterdir():
        data = path.read_bytes().replace(b'"training_seed": 3', b'"training_seed": 5')
        (tmp_path / path.name).write_bytes(data)
    failed = [row.name for row in verify_bundle_dir(tmp_path, allow_dirty=True) if not row.ok]
    assert "plan:training" in failed


def test_progress_counts_the_frames_of_all_seeds(reference):
    _, trained, _, told = reference
    training = [(done, total) for stage, done, total, _ in told if stage == "training"]
    assert training == sorted(training)
    assert training[-1] == (3 * 512, 3 * 512)
    assert {(run.outcome.status, run.outcome.frames) for run in trained} == {("completed", 512)}


def test_two_workers_give_the_bytes_of_one(reference, tmp_path):
    out, *_ = reference
    run(tmp_path / "two", workers=2)
    assert files(tmp_path / "two") == files(out)


@nightly
def test_actors_of_a_cluster_give_the_bytes_of_one_process(reference, tmp_path):
    told = []
    with quiet_ray(), running_cluster():
        run(tmp_path / "ray", cluster=RayCluster(), workers=2, progress=lambda *r: told.append(r))
    assert files(tmp_path / "ray") == files(reference[0])
    assert [done for stage, done, *_ in told if stage == "training"] == [512, 1024, 1536]


def test_run_again_trains_and_plays_nothing(reference):
    out, *_ = reference
    before = {path: path.stat().st_mtime_ns for path in out.glob("training/*/artifacts/*_step*")}
    trained, judged = run(out, resume=True)
    assert {seed.outcome.status for seed in trained} == {"already_finished"}
    assert judged.evaluation.reused == len(judged.evaluation.plan.cells)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    with pytest.raises(ConfigurationError, match="--resume"):
        run(out)


def cadenza(*words):
    return CliRunner().invoke(
        app, ["train", "crossing", *SETTINGS, "--workers", "1", "--quiet", *map(str, words)]
    )


def test_resumed_folder_takes_more_seeds_but_neither_fewer_nor_another_training(tmp_path, caplog):
    out = tmp_path / "out"
    first = cadenza("--seeds", "2", "--out", out, "--episodes", "1", "--json")
    told = json.loads(first.stdout)
    assert list(told) == ["result", "report", "bundles", "runs"]
    assert [run["training_evaluation"]["n_episodes"] for run in told["runs"]] == [1, 1]
    before = files(out)
    for words, why in (
        (["happo.lr=0.5", "--seeds", "2"], r"happo\.lr = .*, got 0\.5; use another folder"),
        (["--seeds", "1"], r"seeds = \[0, 1\], got \[0\]; use another folder, or empty it"),
    ):
        refused = cadenza(*words, "--out", out, "--resume")
        assert refused.exit_code == 2
        assert re.search(why, refused.stderr)
    assert files(out) == before
    assert cadenza("--seeds", "3", "--out", out, "--episodes", "1", "--resume").exit_code == 0
    assert (out / "policies" / "ego_aht_happo_seed2.policy.safetensors").exists()
    assert f"moved to {out / 'evaluation.1'}" in caplog.text


def test_lines_name_seed_frames_and_policies_and_blame_the_command_line(tmp_path):
    told = cadenza("total_frames=130", "--seeds", "1", "--out", tmp_path, "--episodes", "0").stdout
    assert re.search(r"seed 0, run \w+: completed, 128 frames of 130 \(whole steps of all", told)
    assert f"policies: {tmp_path / 'policies'}" in told.replace("\n", "")
    wrong = cadenza("total_framez=1", "--seeds", "1", "--out", tmp_path)
    assert wrong.stderr.startswith("error: command line: total_framez: expected a known key")


def test_setting_that_would_be_one_for_all_seeds_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigurationError, match="seed=4 and --seeds contradict"):
        run(tmp_path / "out", overrides=["seed=4"])
    assert not (tmp_path / "out").exists()


CHILD = """
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    from tests.integration.benchmark.test_training_seeds import run

    run(Path(sys.argv[1]), workers=2, resume=True)
"""


def test_killed_while_training_goes_on_to_the_same_bytes(reference, tmp_path):
    """SIGKILL of the driver alone: its workers end by themselves, and nobody holds the runs."""
    out, killed = reference[0], tmp_path / "out"
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    child = Started(script, killed, REPOSITORY, cwd=tmp_path)
    wait_for(lambda: list(killed.glob("training/*/artifacts/*state_step*.pt")), child.process)
    child.process.kill()
    child.outcome(LIMIT_S)
    run(killed, workers=2, resume=True)
    assert files(killed) == files(out)


def test_seed_that_fails_is_named_and_the_others_go_on(reference, tmp_path):
    del reference
    (tmp_path / "training" / "seed4").parent.mkdir(parents=True)
    (tmp_path / "training" / "seed4").write_text("in the way")
    (tmp_path / ".cadenza-output").touch()
    with pytest.raises(OSError, match="training seed 4"):
        run(tmp_path, resume=True)
    finished = {path.parts[-3] for path in tmp_path.glob("training/*/artifacts/*.curve.json")}
    assert finished == {"seed3", "seed8"}
