import json
import shlex

import pytest

from tests.e2e.commands import cadenza
from tests.e2e.in_process import here

CONFIG = """\
task: crossing
policies: [goal_pd, zero]
partners: [crossing_goal_seeker, crossing_chaser]
conditions:
  - name: filter_on
    safety: {enabled: true}
  - name: filter_off
seeds: [0, 1]
episodes_per_seed: 2
block_size: 20
"""
#: In the command's own process: workers are tested elsewhere, and each imports everything.
ALONE = ("--workers", "1")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A folder with a finished small evaluation, and what the command printed."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "small.yaml").write_text(CONFIG, encoding="utf-8")
    done = cadenza("eval", "run", "small.yaml", "--out", "run", *ALONE, "--json", cwd=folder)
    assert done.code == 0, done.err
    return folder, done.json


def test_eval_run_shows_rates_with_intervals(evaluated):
    folder, summary = evaluated
    assert len({(r["policy"], r["condition"], r["partner"]) for r in summary["results"]}) == 8
    assert sum(r["contacts"] for r in summary["results"] if r["condition"] == "filter_on") == 0
    (row,) = [
        r
        for r in summary["results"]
        if (r["policy"], r["condition"], r["partner"]) == ("zero", "filter_on", "crossing_chaser")
    ]
    assert (row["successes"], row["success_rate"]) == (0, 0.0)
    # no success in two episodes of each of two seeds: quadrature of the posterior gives 0.5461
    assert (row["success_ci_low"], row["success_ci_high"]) == (
        0.0,
        pytest.approx(0.54601, abs=1e-5),
    )
    shown = cadenza("eval", "run", "small.yaml", "--out", "run", "--resume", cwd=folder)
    assert "0.0% [0.0, 54.6]" in shown.out


def test_eval_run_measures_against_best_responses(evaluated):
    folder, summary = evaluated
    (folder / "best.yaml").write_text(
        "task: crossing@v1\npartners:\n"
        "  crossing_chaser: {value: 9.0, random: -21.0, trained: SAC}\n"
    )
    words = ("eval", "run", "small.yaml", "--out", "run", "--resume", "--best-responses")
    done = cadenza(*words, "best.yaml", "--json", cwd=folder)
    close = {(r["policy"], r["partner"]): r["value"] for r in done.json["proximity"]}
    means = {
        r["policy"]: r["mean_return"]
        for r in summary["results"]
        if (r["condition"], r["partner"]) == ("filter_on", "crossing_chaser")
    }
    covered = {r["partner"]: r["coverage"] for r in done.json["proximity"]}
    assert covered["mean over partners"] == "over 1 of 2 partners"
    assert covered["crossing_chaser"] == ""
    missing = cadenza(*words, "absent.yaml", cwd=folder)
    assert "absent.yaml: expected a file of best responses, got none there." in missing.err
    expected = (means["goal_pd"] + 21.0) / 30.0
    assert close["goal_pd", "crossing_chaser"] == pytest.approx(expected)
    assert cadenza(*words, "small.yaml", cwd=folder).code == 2  # not such a file


def test_eval_run_again_needs_resume_and_then_reuses_every_cell(evaluated):
    folder, summary = evaluated
    refused = cadenza("eval", "run", "small.yaml", "--out", "run", cwd=folder)
    assert refused.code == 2
    assert "resume" in refused.err
    resumed = cadenza("eval", "run", "small.yaml", "--out", "run", "--resume", "--json", cwd=folder)
    assert resumed.json["reused"] == summary["cells"]
    assert resumed.json["results"] == summary["results"]


def test_eval_bundle_names_a_command_that_repeats_it(evaluated, tmp_path):
    folder, summary = evaluated
    line = (folder / summary["bundles"]["zero"] / "REPRO.txt").read_text(encoding="utf-8")
    assert line == "cadenza eval run small.yaml --out runs/small\n"
    (tmp_path / "small.yaml").write_text(CONFIG, encoding="utf-8")
    again = cadenza(*shlex.split(line)[1:], *ALONE, "--json", cwd=tmp_path, fresh=True)
    assert again.json["results"] == summary["results"]


def test_eval_verify_passes_and_names_its_checks(evaluated):
    folder, summary = evaluated
    bundle = summary["bundles"]["goal_pd"]
    done = cadenza("eval", "verify", bundle, "--allow-dirty", cwd=folder)
    assert done.code == 0, done.out
    assert done.out.rstrip().splitlines()[-1].startswith("verify: PASS")


@pytest.mark.parametrize(
    ("change", "fragment", "code"),
    [
        (("goal_pd", '{name: ego, source: "local://absent.pt"}'), "absent.pt", 10),
        (("crossing_chaser", "soloist"), "soloist", 2),
        (("block_size", "block_sise"), "did you mean 'block_size'?", 2),
        (("task:", "# task:"), "task: expected a value, got none; add the key", 2),
        (
            ("filter_on\n    safety: {enabled", "on\n    safety: {enable"),
            "conditions[0].safety.enable: expected a known key, got 'enable'; did you mean",
            2,
        ),
    ],
)
def test_eval_run_with_a_wrong_value_names_it_and_writes_nothing(change, fragment, code, tmp_path):
    (tmp_path / "wrong.yaml").write_text(CONFIG.replace(*change), encoding="utf-8")
    done = here("eval", "run", "wrong.yaml", "--out", "run", cwd=tmp_path)
    assert done.code == code, done.err
    assert fragment in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob("run/cells/*"))


def test_eval_run_with_links_shows_what_they_cost(tmp_path):
    links = "  - {name: perfect, link: ideal}\n  - {name: late, link: {latency_mean_ms: 300}}\n"
    (tmp_path / "links.yaml").write_text(
        "task: mpe_cooperative_push\npolicies: [random]\nseeds: [0, 1]\nepisodes_per_seed: 1\n"
        f"conditions:\n{links}",
        encoding="utf-8",
    )
    done = cadenza("eval", "run", "links.yaml", "--out", "run", *ALONE, cwd=tmp_path)
    assert done.code == 0, done.err
    _, costs = done.out.split("what a link costs, against perfect")
    # 300 ms are three steps of 0.1 s: ages 0, 0.1, 0.2, then 0.3 over 51 observations
    late = next(line for line in costs.splitlines() if " late " in line)
    assert late.split()[2:6] == ["0.288,", "0.30", "s", "0.0%"]
    # a policy that looks at nothing pays nothing
    assert late.split()[6:8] == ["+0.0", "+0.0"]


def test_recorded_evaluation_shows_walls_beside_partners(tmp_path):
    words = ("eval", "run", "doorway", "--out", "run", *ALONE, "seeds=[0]", "episodes_per_seed=2")
    done = here(*words, "--record", cwd=tmp_path)
    assert done.code == 0, done.err
    recorded = json.loads((tmp_path / "run" / "recordings.json").read_text())["rollouts"]
    assert {one["pick"] for one in recorded} == {"typical", "telling"}
    assert [next(iter(entry)) for entry in recorded[0]["obstacles"]].count("box") == 2
    assert here("report", "run", "--out", "r.html", cwd=tmp_path).code == 0
    page = (tmp_path / "r.html").read_text()
    assert "How close the ego came to walls" in page
    assert page.count('class="wall"') > 10
    assert here("report", "run", "--out", "r.md", cwd=tmp_path).code == 0
    assert "Wall contacts | Least wall gap, m" in (tmp_path / "r.md").read_text()


def test_recording_several_policies_is_refused_before_anything_runs(tmp_path):
    words = ("eval", "run", "crossing", "--out", "run", "policies=[zero, goal_pd]", "--record")
    refused = here(*words, cwd=tmp_path)
    assert "--record: expected one policy, whose episodes are recorded, got 2" in refused.err
    assert not (tmp_path / "run").exists()
