"""The quickstart end to end, small: one short training, a few episodes per partner."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cadenza.benchmark.quickstart import run_quickstart, training_config
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from cadenza.core.errors import ConfigurationError
from cadenza.evaluation.report.view import RECORDINGS_NAME, Recordings
from cadenza.safety.reporting import parse_three_tables, verify_markdown
from tests.campaigns import nightly
from tests.e2e.commands import LIMIT_S, Started, wait_for
from tools import records

#: Two rollouts; enough for a checkpoint and a learning curve, not for a skill.
OVERRIDES = (
    "total_frames=512",
    "checkpoint_every=256",
    "env.num_envs=16",
    "happo.rollout_length=16",
    "++evaluation.every_frames=512",
    "++evaluation.episodes=2",
    "env.episode_length=60",
)

NO_REPOSITORY = Path("/nonexistent")
SEEDS = (0, 4)


def small(out, **changes):
    settings = {
        "out": out,
        "seeds": SEEDS,
        "workers": 1,
        "overrides": OVERRIDES,
        "episodes_per_seed": 1,
        "repo_root": NO_REPOSITORY,  # the provenance must not depend on this source tree
    }
    return run_quickstart(**(settings | changes))


def bundle_bytes(out):
    folder = out / "evaluation" / "bundles"
    return {path.relative_to(out): path.read_bytes() for path in sorted(folder.glob("*/*"))}


def played(bundle):
    """Return the episodes of a bundle."""
    lines = (path.read_text().splitlines() for path in bundle.glob("episodes_seed*.jsonl"))
    return [json.loads(line) for group in lines for line in group]


def policy_bytes(result):
    return [path.read_bytes() for path in result.checkpoints]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("quickstart") / "out"
    stages = []
    result = small(out, progress=lambda stage, done, total, detail: stages.append((stage, done)))
    return out, result, stages


def test_record_holds_what_was_printed_and_one_start_played_twice(reference):
    _, result, _ = reference
    record = records.of_quickstart(result)
    columns, rows = result.table()
    assert (record["columns"], record["rows"]) == (list(columns), [list(row) for row in rows])
    assert record["episodes"] == 200
    guarded, bare = (record["runs"][condition] for condition in records.TELLING)
    assert (guarded["p"], guarded["start"]) == (bare["p"], bare["start"])
    picture = records.drawing(record)
    assert picture.count("<circle") == 4
    assert picture == records.drawing(record)


def test_quickstart_meets_every_crossing_partner_under_both_conditions(reference):
    _, result, stages = reference
    assert {("training", 1024), ("evaluation", 200)} < set(stages)
    assert [name for name, _, _ in result.partners] == [
        "crossing_goal_seeker",
        "crossing_stationary",
        "crossing_wanderer",
        "crossing_late_braker",
        "crossing_chaser",
    ]
    assert [seen for _, seen, _ in result.partners] == [True, True, False, False, False]
    assert [way for _, _, way in result.partners] == [True, True, True, True, False]
    assert len(result.view.episodes) == 2 * 5 * 2 * 10
    assert {(c.success.n, c.success.n_clusters) for c in result.cells} == {(20, 2)}
    table = result.table()[1]
    assert [row[1:3] for row in table[::4]] == [("yes", "yes"), ("no", "no")]
    for rate in (rate for row in table for rate in (row[3], row[6])):
        assert re.fullmatch(r"\d+\.\d% \[\d+, \d+\]", rate)


def test_quickstart_seals_a_bundle_per_seed_and_reports_them_as_one_result(reference):
    out, result, _ = reference
    assert result.verified
    assert [*result.bundles] == ["ego_aht_happo_seed0", "ego_aht_happo_seed4"]
    page = result.report.read_text()
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd><code>([^<]*)</code></dd>", page))
    for seed, (policy, folder), checkpoint in zip(
        SEEDS, result.bundles.items(), result.checkpoints, strict=True
    ):
        assert all_ok(verify_bundle_dir(folder))  # as `cadenza eval verify` says
        bundle = json.loads((folder / "bundle.json").read_text())
        assert bundle["metadata"]["training_seed"] == seed
        assert facts[policy] == (
            f"commit unknown, plan {bundle['manifest']['plan.json'][:12]}, weights "
            f"{bundle['policy_sha256'][:12]}, training seed {seed}"
        )
        assert facts[f"Training run, seed {seed}"] == checkpoint.name.partition("_")[0]
    assert page.startswith("<!DOCTYPE html>")
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "ego_aht_happo was trained 2 times, with the training seeds 0, 4." in page
    assert "trained once" not in page
    assert "No clean commit stands behind these results" in page
    assert "Training seed 4, partners goal seeker, stationary, filter on. Training returns" in page
    assert "env.episode_length=60 --seeds 0,4 --episodes 1<" in page
    result_file = json.loads((out / "result.json").read_text())
    assert result_file["clusters"] == "training seed"


def test_quickstart_writes_safety_tables_over_all_seeds_beside_the_report(reference):
    out, result, _ = reference
    verify_markdown(out / "three_tables.md", out / "three_tables.json")
    tables = parse_three_tables(out / "three_tables.json")
    assert [row.assumption for row in tables.table_1] == ["A1", "A2", "A3"]
    assert all(row.violations == 0 for row in tables.table_1)
    assert tables.table_1[0].n_steps > 100
    assert tables.table_2[0].n_episodes == 100
    assert "Safety, table 1: assumptions" in result.report.read_text()


def test_quickstart_writes_the_recorded_episodes_of_the_first_training(reference):
    out, result, _ = reference
    found = Recordings.model_validate_json((out / RECORDINGS_NAME).read_bytes())
    assert found.policy_id == "ego_aht_happo_seed0"
    assert found.shown_in(result.view) == result.view


def test_quickstart_evaluates_the_partner_as_it_was_trained_with(reference):
    out, _, _ = reference
    partners = json.loads(next(out.glob("evaluation/bundles/*/partners.json")).read_text())
    card = json.loads(next(out.glob("training/seed0/artifacts/*.run.json")).read_text())
    for partner in card["config"]["partners"]:
        judged = partners[partner["class_name"]]
        assert (judged["extra"], judged["seen"]) == ({"uid": "partner", **partner["extra"]}, True)


def test_quickstart_says_the_same_in_result_and_report(reference):
    _, result, _ = reference
    page = " ".join(result.report.read_text().split())
    assert f'<p class="verdict">{result.verdict}</p>' in page
    episodes = [e for bundle in result.bundles.values() for e in played(bundle)]
    on, off = (
        np.mean([e["success"] for e in episodes if e["condition"] == condition])
        for condition in ("filter_on", "filter_off")
    )
    points = f"{100 * (on - off):+.1f}".replace("+0.0", "0.0").replace("-", "−")
    assert f'<p class="big">{points}</p><p class="what">points: the filter' in page


def test_quickstart_shows_a_typical_and_a_telling_start_of_every_partner(reference):
    _, result, _ = reference
    page = result.report.read_text()
    runs = json.loads(page.split('id="rollouts">')[1].split("</script>")[0])["runs"]
    episodes = played(result.bundles["ego_aht_happo_seed0"])  # recorded is the first seed

    def endings(episode):
        return "contact" if episode["contact"] else "goal" if episode["success"] else "time-out"

    for name, _, _ in result.partners:
        starts = {}
        for episode in sorted(episodes, key=lambda e: e["condition"] != "filter_on"):
            if episode["partner"] == name:
                starts.setdefault(episode["initial_state_seed"], []).append(episode)
        assert len(starts) == 10
        ends = {start: tuple(map(endings, pair)) for start, pair in starts.items()}
        shown = {r["pick"]: r["start"] for r in runs if r["p"] == name}
        alike = [start for start in ends if ends[start] == ends[shown["typical"]]]
        assert all(list(ends.values()).count(kind) <= len(alike) for kind in ends.values())
        lengths = sorted(starts[start][0]["n_steps"] for start in alike)
        assert starts[shown["typical"]][0]["n_steps"] == lengths[(len(lengths) - 1) // 2]
        (words,) = {r["alike"] for r in runs if (r["p"], r["pick"]) == (name, "typical")}
        assert words == f"{len(alike)} of 10 starts"
        interest = {
            s: 3 if {"contact", "goal"} == set(e) else 2 if "contact" in e else len(set(e)) > 1
            for s, e in ends.items()
        }
        assert interest[shown["telling"]] == max(interest.values())


def test_quickstart_run_again_repeats_nothing_and_gives_the_same(reference):
    out, first, _ = reference
    before, weights = bundle_bytes(out), policy_bytes(first)
    modified = {path: path.stat().st_mtime_ns for path in (out / "evaluation" / "cells").iterdir()}
    second = small(out)
    assert bundle_bytes(out) == before
    assert policy_bytes(second) == weights
    assert modified == {path: path.stat().st_mtime_ns for path in modified}


def test_quickstart_with_other_settings_puts_the_earlier_run_aside(reference, tmp_path, caplog):
    out, first, _ = reference
    copied = tmp_path / "quickstart"
    shutil.copytree(out, copied)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(copied, seeds=(1, 4), progress=stop)
    assert "moved to" in caplog.text
    assert bundle_bytes(tmp_path / "quickstart.1") == bundle_bytes(out)
    assert bundle_bytes(copied) == {}
    assert first.report.is_file()


CHILD = """
import sys
from pathlib import Path
from cadenza.benchmark.quickstart import run_quickstart

if __name__ == "__main__":
    run_quickstart(
        out=Path(sys.argv[1]),
        seeds=(0, 4),
        workers=2,
        overrides=sys.argv[2:],
        episodes_per_seed=1,
        repo_root=Path("/nonexistent"),
    )
"""


@nightly
def test_quickstart_killed_at_any_stage_goes_on_to_the_same_results(reference, tmp_path):
    """Killed once while training, once while evaluating; then finished, with two workers."""
    reference_out, reference_result, _ = reference
    script, out = tmp_path / "child.py", tmp_path / "out"
    script.write_text(CHILD)
    for pattern in ("training/*/artifacts/*state_step*.pt", "evaluation/cells/*.jsonl"):
        child = Started(script, out, *OVERRIDES, cwd=tmp_path)
        wait_for(lambda pattern=pattern: list(out.glob(pattern)), child.process)
        child.process.kill()
        child.outcome(LIMIT_S)
    result = small(out, workers=2)
    assert policy_bytes(result) == policy_bytes(reference_result)
    assert bundle_bytes(out) == bundle_bytes(reference_out)
    assert result.report.read_bytes() == reference_result.report.read_bytes()


@pytest.mark.parametrize("override", ["artifacts_root=elsewhere", "+log_dir=elsewhere"])
def test_quickstart_refuses_another_output_folder_before_it_writes(override, tmp_path):
    with pytest.raises(ConfigurationError, match="the folder with --out"):
        training_config(tmp_path / "out", [override])
    assert list(tmp_path.iterdir()) == []
