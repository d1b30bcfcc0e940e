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
from cadenza.safety.reporting import parse_three_tables, verify_markdown
from tests.campaigns import nightly
from tests.e2e.commands import LIMIT_S, Started, wait_for
from tools import records

#: Two rollouts; enough for a checkpoint and a learning curve, not for a skill.
OVERRIDES = (
    "total_frames=1024",
    "checkpoint_every=256",
    "happo.rollout_length=16",
    "++evaluation.every_frames=1024",
    "++evaluation.episodes=2",
    "env.episode_length=60",
)

NO_REPOSITORY = Path("/nonexistent")


def small(out, **changes):
    settings = {
        "out": out,
        "workers": 1,
        "overrides": OVERRIDES,
        "episodes_per_seed": 1,
        "repo_root": NO_REPOSITORY,  # the provenance must not depend on this source tree
    }
    return run_quickstart(**(settings | changes))


def bundle_bytes(out):
    folder = out / "evaluation" / "bundles" / "ego"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def policy_bytes(result):
    return result.checkpoint.read_bytes()


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
    assert record["episodes"] == 100
    guarded, bare = (record["runs"][condition] for condition in records.TELLING)
    assert (guarded["p"], guarded["start"]) == (bare["p"], bare["start"])
    picture = records.drawing(record)
    assert picture.count("<circle") == 4
    assert picture == records.drawing(record)


def test_quickstart_meets_every_crossing_partner_under_both_conditions(reference):
    _, result, stages = reference
    assert {("training", 1024), ("evaluation", 100), ("report", 1)} < set(stages)
    assert [name for name, _, _ in result.partners] == [
        "crossing_goal_seeker",
        "crossing_stationary",
        "crossing_wanderer",
        "crossing_late_braker",
        "crossing_chaser",
    ]
    assert [seen for _, seen, _ in result.partners] == [True, True, False, False, False]
    assert [way for _, _, way in result.partners] == [True, True, True, True, False]
    assert result.n_episodes == 5 * 2 * 10
    assert {c.success.n for c in result.cells} == {10}
    for condition in ("filter_on", "filter_off"):
        cells = [c.contact for c in result.cells if c.condition == condition]
        assert result.contacts(condition) == round(10 * sum(cell.value for cell in cells))
    table = result.table()[1]
    assert [row[1:3] for row in table[::4]] == [("yes", "yes"), ("no", "no")]
    for rate in (rate for row in table for rate in (row[3], row[6])):
        assert re.fullmatch(r"\d+\.0% \[\d+, \d+\]", rate)


def test_quickstart_seals_a_bundle_that_verifies_and_writes_the_report(reference):
    out, result, _ = reference
    assert result.verified
    assert all_ok(verify_bundle_dir(result.bundle))  # as `cadenza eval verify` says
    page = result.report.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "The ego was trained once, with one training seed." in page
    assert "No clean commit stands behind these results" in page
    bundle, plan = (json.loads(bundle_bytes(out)[f"{name}.json"]) for name in ("bundle", "plan"))
    assert dict(re.findall(r"<dt>([^<]*)</dt><dd><code>([^<]*)</code></dd>", page)) == {
        "Commit": "unknown",
        "Training run": result.checkpoint.name.partition("_")[0],
        "Policy weights, SHA-256": bundle["policy_sha256"],
        "Evaluation plan, SHA-256": bundle["manifest"]["plan.json"],
        "Source code, SHA-256": plan["code_sha256"],
    }
    assert "Training seed 0, partners goal seeker, stationary, filter on. Training returns" in page
    assert "env.episode_length=60 --seed 0 --episodes 1<" in page


def test_quickstart_writes_the_safety_tables_of_the_bundle_beside_the_report(reference):
    out, result, _ = reference
    for name in ("three_tables.json", "three_tables.md"):
        assert (out / name).read_bytes() == (result.bundle / name).read_bytes()
    verify_markdown(out / "three_tables.md", out / "three_tables.json")
    tables = parse_three_tables(out / "three_tables.json")
    assert [row.assumption for row in tables.table_1] == ["A1", "A2", "A3"]
    assert all(row.violations == 0 for row in tables.table_1)
    assert tables.table_1[0].n_steps > 100
    assert tables.table_2[0].n_episodes == result.n_episodes // 2
    assert "Safety, table 1: assumptions" in result.report.read_text()


def test_quickstart_evaluates_the_partner_as_it_was_trained_with(reference):
    out, _, _ = reference
    partners = json.loads(bundle_bytes(out)["partners.json"])
    card = json.loads(next((out / "training" / "artifacts").glob("*.run.json")).read_text())
    for partner in card["config"]["partners"]:
        judged = partners[partner["class_name"]]
        assert (judged["extra"], judged["seen"]) == ({"uid": "partner", **partner["extra"]}, True)


def test_quickstart_averages_come_from_the_filtered_cells(reference):
    _, result, _ = reference
    rates = {name: result.cell("filter_on", name).success.value for name, _, _ in result.partners}
    seen = ["crossing_goal_seeker", "crossing_stationary"]
    assert result.success_with_seen() == pytest.approx(np.mean([rates[n] for n in seen]))
    unseen = ("crossing_wanderer", "crossing_late_braker")
    assert result.success_with_unseen() == pytest.approx(np.mean([rates[n] for n in unseen]))


def test_quickstart_says_the_same_in_result_and_report(reference):
    _, result, _ = reference
    page = " ".join(result.report.read_text().split())
    assert f'<p class="verdict">{result.verdict}</p>' in page
    unseen = [
        result.cell("filter_on", name).success for name, seen, _ in result.partners if not seen
    ]
    assert result.success_with_all_unseen() == pytest.approx(np.mean([r.value for r in unseen]))
    effect = result.filter_effect
    pooled = json.loads((result.bundle / "bundle.json").read_text())["summary"]["comparisons"]
    (sealed,) = (c for c in pooled if (c["metric"], c["partner"]) == ("success", None))
    assert effect.difference.value == sealed["difference"]["value"]
    points = f"{100 * effect.difference.value:+.1f}".replace("+0.0", "0.0").replace("-", "−")
    assert f'<p class="big">{points}</p><p class="what">points: the filter' in page
    assert 0 <= effect.n_higher + effect.n_lower + effect.n_equal == 50


def test_quickstart_shows_a_typical_and_a_telling_start_of_every_partner(reference):
    out, result, _ = reference
    page = result.report.read_text()
    runs = json.loads(page.split('id="rollouts">')[1].split("</script>")[0])["runs"]
    lines = [
        json.loads(line)
        for path in (out / "evaluation" / "cells").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    episodes = [line for line in lines if "episode_idx" in line]

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
    small(copied, seed=1)
    assert "moved to" in caplog.text
    assert bundle_bytes(tmp_path / "quickstart.1") == bundle_bytes(out)
    assert bundle_bytes(copied) != bundle_bytes(out)
    assert first.report.is_file()


CHILD = """
import sys
from pathlib import Path
from cadenza.benchmark.quickstart import run_quickstart

if __name__ == "__main__":
    run_quickstart(
        out=Path(sys.argv[1]),
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
    for pattern in ("training/artifacts/*state_step*.pt", "evaluation/cells/*.jsonl"):
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
    with pytest.raises(ConfigurationError, match="choose it with --out"):
        training_config(tmp_path / "out", 0, [override])
    assert list(tmp_path.iterdir()) == []
