"""`cadenza suite`: every step of a tiny one, killed on the way, and what the shipped one says."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from cadenza.benchmark.suite import SuiteConfig, SuiteTask, load_suite
from cadenza.partners.registry import partner_card
from tests.campaigns import size
from tests.e2e.commands import LIMIT_S, held_at
from tests.e2e.in_process import here

TINY = {
    "title": "A tiny suite",
    "summary": "Two egos.",
    "seeds": 2,
    "episodes": 10,
    "references": ["self-play"],
    "egos": {
        "self-play": {"partners": "self"},
        "one-partner": {"partners": "one"},
        "population": {"partners": "zoo", "settings": ["ppo.epochs=2"]},
    },
    "tasks": {
        "push": {
            "training": "mpe_cooperative_push",
            "settings": [
                *("total_frames=64", "checkpoint_every=64", "env.num_envs=4"),
                *("env.episode_length=8", "ppo.rollout_length=8", "ppo.batch_size=16"),
                *("ppo.epochs=1", "ppo.hidden_sizes=[8]", "evaluation.episodes=1"),
            ],
            "zoo": {"method": "fcp", "population": 1},
            "judges": {"method": "behavior", "population": 1},
            "held_out": [
                {
                    "name": "slow",
                    "class_name": "scripted_heuristic",
                    "options": {"max_speed": "0.3"},
                }
            ],
            "best_responses": {"seeds": 1},
        },
    },
}
SMALL = {
    "steps": 64,
    "num_envs": 4,
    "snapshots": 2,
    "episodes": 2,
    "ppo": {"rollout_length": 8, "batch_size": 16, "epochs": 1, "hidden_sizes": [8]},
}
for budget in ("zoo", "judges", "best_responses"):
    TINY["tasks"]["push"][budget] |= SMALL
FORAGING = SuiteTask(training="foraging", zoo={"method": "fcp"})
WORDS = ("suite", "run", "tiny.yaml", "--out", "out", "-j", "1")


def suite_in(folder: Path) -> Path:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return folder


def results(folder: Path) -> dict[str, bytes]:
    """Return the bytes of what a suite is about, by path."""
    out = folder / "out"
    paths = [*out.glob("*.*"), *out.glob("push/*/manifest.json"), *out.glob("push/*/members/*.*")]
    paths += [*out.glob("push/egos/*/policies/*"), *out.glob("push/best-responses/policies/*")]
    paths += [*out.glob("push/evaluation/bundles/*/*")]
    return {str(p.relative_to(out)): p.read_bytes() for p in paths if p.name[0] != "."}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = suite_in(tmp_path_factory.mktemp("suite"))
    done = here(*WORDS, "--json", cwd=folder)
    assert done.code == 0, done.err
    return folder, done.json


def test_every_ego_and_seed_is_judged_beside_partners_it_never_met(played):
    folder, told = played
    report = told["tasks"]["push"]["report"]
    assert sorted(m["method"] for m in report["methods"]) == [
        "one-partner",
        "population",
        "self-play",
    ]
    assert report["clusters"] == "training seed"
    score = next(
        e
        for e in report["estimates"]
        if (e["row"], e["condition"], e["statistic"]) == ("All partners", "population", "return")
    )
    assert (score["n"], score["n_clusters"]) == (2 * 10 * 2, 2)  # seeds, episodes, partners
    plan = json.loads((folder / "out/push/evaluation/plan.json").read_text())
    assert [p["name"] for p in plan["partners"]] == ["slow", "behavior-s2-0"]
    command = next((folder / "out/push/evaluation/bundles").glob("*/REPRO.txt")).read_text()
    assert command == "cadenza suite run tiny.yaml\n"
    assert plan["partners"][0]["partner"]["extra"]["max_speed"] == "0.3"
    judge = json.loads((folder / "out/push/judges/manifest.json").read_text())["members"][0]
    assert judge["split"] == "held_out"
    best = json.loads((folder / "out/push/best-responses/request.json").read_text())
    assert [member["name"] for member in best["partners"]] == ["slow", "behavior-s2-0"]


def test_population_ego_trains_beside_the_members_of_the_zoo(played):
    folder, _ = played
    request = json.loads((folder / "out/push/egos/population/request.json").read_text())
    assert [p["weights_uri"] for p in request["partners"]] == [
        f"local://out/push/zoo/members/fcp-s1-0-{tier}.pt" for tier in ("init", "mid", "final")
    ]
    assert (request["ppo"]["epochs"], request["seeds"]) == (2, [0, 1])


def test_page_has_scores_differences_and_budgets(played):
    folder, told = played
    page = (folder / "out/report.html").read_text()
    assert "A tiny suite" in page
    rows = told["tasks"]["push"]["differences"]
    assert "learn from the rows of both robots" in page
    scores = {row["ego"]: row["score"] for row in rows if row["family"] == "all partners"}
    for ego, score in scores.items():
        assert f"{score['value']:.2f}".replace("-", "−") in page
        ahead = next(row["ahead_of"]["self-play"] for row in rows if row["ego"] == ego)
        assert (ahead is None) == (ego == "self-play")
    families = {row["family"] for row in rows}
    assert families == {"all partners", "scripted_heuristic", "behavior"}
    assert page.count('id="push-fig-methods"') == 1
    again = here("report", "out", "--out", "again.html", cwd=folder)
    assert again.code == 0, again.err
    assert (folder / "again.html").read_text() == page
    board = (folder / "out/leaderboard.md").read_text()
    assert "population" in board


def test_run_again_does_nothing_twice(played):
    folder, _ = played
    before = results(folder)
    times = {p: p.stat().st_mtime_ns for p in folder.rglob("*_step*")}
    assert here(*WORDS, cwd=folder).code == 0
    assert results(folder) == before
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*_step*")} == times


@pytest.mark.parametrize(
    "moment", size(["*.curve.json"], ["behavior-s2-0.json", "*.curve.json", "plan.json"])
)
def test_killed_suite_goes_on_by_the_same_command(played, moment, tmp_path):
    held = held_at(moment, *WORDS, cwd=suite_in(tmp_path))
    held.process.kill()
    held.outcome(LIMIT_S)
    done = here(*WORDS, cwd=tmp_path)
    assert done.code == 0, done.err
    assert results(tmp_path) == results(played[0])


def test_folder_of_another_suite_is_refused(played):
    folder, _ = played
    done = here(*WORDS, "--seeds", "3", cwd=folder)
    assert (done.code, "suite.seeds = 2, got 3" in done.err) == (2, True)


def test_shipped_suite_is_what_it_says():
    suite = load_suite(Path("aht-small"))
    whole = suite.reduced()
    assert list(whole.tasks) == ["crossing", "foraging", "cocarry"]  # others are played by name
    assert list(suite.reduced(tasks=["overcooked"]).tasks) == ["overcooked"]
    assert list(suite.reduced(egos=["e3t"]).egos) == ["self-play", "one-partner", "e3t"]
    assert "e3t" not in whole.egos
    alone = suite.reduced(egos=["self-play"]).plan("foraging", Path("x"))
    assert alone.populations == ["self-play"]  # nobody needs the zoo
    for name in suite.tasks:
        plan = suite.plan(name, Path(name))
        met = {partner.class_name for partner in plan.training.trained_with}
        for partner in suite.tasks[name].held_out:
            assert partner.class_name not in met
            assert plan.spec.task_id in partner_card(partner.class_name).tasks
        folders = [step.folder for step in plan.steps()]
        assert folders[0] == "zoo"
        assert folders[-1] == "evaluation"
        assert {"self-play", "egos/one-partner", "egos/population"} <= set(folders)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("references",), ["nobody"], "references: expected some of self-play"),
        (("tasks", "push", "zoo", "seed"), 3, "no two populations may begin alike"),
    ],
)
def test_unknown_reference_and_seed_of_a_population_are_refused(place, value, told):
    suite = deepcopy(TINY)
    where = suite
    for key in place[:-1]:
        where = where[key]
    where[place[-1]] = value
    with pytest.raises(ValidationError, match=told):
        SuiteConfig.model_validate(suite)


def test_scale_shrinks_every_budget_of_the_shipped_suite():
    suite = load_suite(Path("aht-small"))
    small = suite.reduced(tasks=["crossing"], seeds=2, scale=0.1)
    plans = [each.plan("crossing", Path("x")) for each in (suite.reduced(), small)]
    for whole, less in zip(*(plan.steps() for plan in plans), strict=True):
        assert less.frames <= 0.11 * whole.frames
    assert (small.seeds, small.episodes) == (2, 10)
    suited = suite.model_copy(update={"tasks": {"food": FORAGING}}).reduced(scale=0.01)
    assert suited.tasks["food"].zoo["steps"] == 10_000  # of what the task has, not of the default


def test_shipped_suites_are_listed_and_shown(tmp_path):
    (listed,) = here("suite", "list", "--json", cwd=tmp_path).json["suites"]
    assert listed["name"] == "aht-small"
    shown = here("suite", "show", "aht-small", "--task", "crossing", "--json", cwd=tmp_path).json
    frames = {step["folder"]: step["frames"] for step in shown["steps"]}
    assert frames["egos/population"] == 3 * 327680
    unknown = here("suite", "show", "aht-small", "--task", "cooking", cwd=tmp_path)
    assert (unknown.code, "expected one of crossing, foraging" in unknown.err) == (2, True)
