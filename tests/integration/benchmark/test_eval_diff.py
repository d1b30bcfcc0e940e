"""`cadenza eval diff`: two sealed bundles."""

import json

import pytest
from typer.testing import CliRunner

from cadenza.benchmark.bundle import build_bundle_files, write_bundle_dir
from cadenza.cli.main import app
from tests.unit.benchmark.samples import make_cell_episodes, make_plan, make_request


def bundle(folder, success, policy="ego", **changes):
    """Write a bundle of 2 conditions x 2 partners x 4 seeds x 10 episodes; return its path."""
    plan = make_plan(**{"seeds": range(4), "episodes_per_seed": 10, "block_size": 10} | changes)
    cells = [cell for cell in plan.cells.values() if cell.policy == policy]
    played = [episode for cell in cells for episode in make_cell_episodes(plan, cell)]
    episodes = [
        episode.model_copy(update={"success": success(number, episode)})
        for number, episode in enumerate(played)
    ]
    request = make_request(plan, policy=policy, episodes=episodes)
    write_bundle_dir(folder, build_bundle_files(request))
    return str(folder)


def diff(*words):
    return CliRunner().invoke(app, ["eval", "diff", *words])


@pytest.fixture
def before(tmp_path):
    return bundle(tmp_path / "before", lambda _, episode: episode.episode_idx % 10 < 5)


def test_bundles_are_paired_by_start_and_their_seeds_are_the_clusters(tmp_path, before):
    after = bundle(tmp_path / "after", lambda n, e: e.episode_idx % 10 < 5 or n % 4 > 0)
    result = diff(before, after, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["verdict"]) == (0, "better")
    assert told["basis"] in diff(before, after).stdout
    assert told["basis"].startswith("condition filter_on (headline); 80 pairs by start, as ")
    assert told["basis"].endswith("clusters: 4 evaluation seeds")
    comparison = told["overall"][0]["comparison"]
    assert comparison["test"].startswith("paired t on evaluation seed differences")
    assert comparison["difference"]["n_clusters"] == 4
    assert comparison["difference"]["value"] == pytest.approx(3 / 8, abs=0.1)
    assert "training luck" in comparison["difference"]["warnings"][0]
    assert [finding["task"] for finding in told["by_task"]] == [
        f"filter_{state} / {partner}" for partner in ("seeker", "chaser") for state in ("on", "off")
    ]
    for finding in told["by_task"]:
        assert finding["comparison"]["test"] == "exact McNemar (unconditional)"
    assert diff(after, before).exit_code == 20
    assert diff(before, before + "/").exit_code == 2
    again = bundle(tmp_path / "again", lambda _, episode: episode.episode_idx % 10 < 5)
    assert diff(before, again).exit_code == 21


def test_report_of_the_same_bundles_says_the_same(tmp_path, before):
    # two of four seeds: clear in 40 starts, or in both conditions together, but not in the seeds
    after = bundle(
        tmp_path / "after",
        lambda n, e: e.episode_idx % 10 < 5 or e.seed == 0 or e.condition == "filter_off",
        policy="zero",
    )
    told = json.loads(diff(before, after, "--json").stdout)
    page = tmp_path / "page.json"
    CliRunner().invoke(app, ["report", before, after, "--out", str(page)], catch_exceptions=False)
    report = json.loads(page.read_text())
    assert told["verdict"] == "undecided"
    assert "cannot be told from the best. Share of episodes solved" in report["verdict"]
    seeds = told["basis"].partition("clusters: ")[2]
    assert f"over all partners and {seeds}: " in report["verdict"].replace("\xa0", " ")


def test_one_evaluation_seed_leaves_the_starts_as_clusters(tmp_path):
    sides = [
        bundle(tmp_path / name, lambda n, e, k=k: e.episode_idx % 10 < k, seeds=(3,))
        for name, k in (("a", 3), ("b", 8))
    ]
    told = json.loads(diff(*sides, "--json").stdout)
    assert told["basis"].endswith("clusters: 10 starts")
    assert told["overall"][0]["comparison"]["test"].startswith("paired t on start differences")


def test_different_rules_are_named(tmp_path, before):
    from cadenza.aht.config import EnvConfig

    longer = EnvConfig(task="crossing", episode_length=9)
    other = bundle(tmp_path / "after", lambda *_: True, env=longer, package_version="0.2.0")
    result = diff(before, other)
    assert result.exit_code == 22
    for difference in ("package: 0.1.0 in", "episode_length: 7 in"):
        assert difference in result.stdout
    assert diff(before, other, "--despite", "nobody needs more than 7 steps").exit_code == 0


def test_folder_of_an_evaluation_is_answered_with_its_bundles(tmp_path):
    bundle(tmp_path / "run/bundles/goal_pd", lambda *_: True)
    (tmp_path / "run/.cadenza-output").touch()
    run = str(tmp_path / "run")
    told = diff(run, run)
    assert (told.exit_code, f"name one of {run}/bundles/goal_pd" in told.stderr) == (2, True)
    told = CliRunner().invoke(app, ["eval", "verify", run])
    assert (told.exit_code, f"name one of {run}/bundles/goal_pd" in told.stderr) == (10, True)


def test_changed_byte_is_refused(tmp_path, before):
    path = tmp_path / "before" / "episodes_seed0.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"success":true', b'"success":false', 1))
    result = diff(before, before + "/")
    assert result.exit_code == 10
    assert "episodes_seed0.jsonl" in result.stderr
