"""From a matrix to a verdict: encounters, best responses, one report, films of cells."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import cadenza
from cadenza.benchmark.output_folder import open_output_folder
from cadenza.benchmark.policies import EgoSeat, load_policy
from cadenza.benchmark.reporting import load_run
from cadenza.benchmark.zoo.encounters import CarriedMemory, read_encounters
from cadenza.benchmark.zoo.judging import judge
from cadenza.benchmark.zoo.matrix import read_matrix
from cadenza.cli.main import app
from cadenza.core.errors import NotReadyError
from cadenza.evaluation.best_responses import BestResponses, store_best_responses
from cadenza.evaluation.statistics.estimate import rate_estimate
from tests.zoo_samples import made


def run(line):
    ended = CliRunner().invoke(app, line.split())
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.fixture(scope="module")
def gru(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gru")
    agent = cadenza.PPO("cadenza/Crossing-v1", memory="gru", memory_size=4, hidden_sizes=(8,))
    agent.save(folder / "best")
    return folder


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Return a folder with policies where `cadenza train --seeds 2` puts them."""
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "policies").mkdir()
    for seed in (0, 1):
        settings = {"memory": "gru", "memory_size": 4, "hidden_sizes": (8,)}
        agent = cadenza.PPO("cadenza/Crossing-v1", seed=seed, **settings)
        agent.export_policy(folder / "policies" / f"ppo_seed{seed}")
    return folder


@pytest.fixture(scope="module")
def judged(gru, seeds, tmp_path_factory):
    """Return the folder of a matrix with a seen and an unseen zoo, and what the command printed."""
    root = tmp_path_factory.mktemp("judged")
    made(root / "public", population=1, task="crossing")
    made(root / "other", "scripted", population=2, task="crossing")
    best = {
        "value": 0.5,
        "random": 0.1,
        "trained": "PPO, 10 steps",
        "steps": [0, 10],
        "curve": [0.1, 0.5],
    }
    partners = {"scripted-s0-0": best, "scripted-s0-1": {**best, "value": 1.0, "random": 0.0}}
    content = {"task": "crossing@v1", "metric": "success", "partners": partners}
    folder = root / "other" / "best-responses"
    folder.mkdir()
    store_best_responses(folder / "best-responses.json", BestResponses.model_validate(content))
    out = root / "matrix"
    line = f"zoo matrix {root / 'public'} {root / 'other'} --seen {root / 'public'} --ego {gru}"
    line += f" --ego {seeds} --ego goal_pd"
    told = run(f"{line} --encounters 2 --episodes 5 --out {out} -j 1 -q")
    return out, told


def test_matrix_tells_families_and_the_egos_it_judges(judged):
    out, told = judged
    matrix = json.loads((out / "matrix.json").read_text())
    assert matrix["judged"][1:] == ["ppo", "goal_pd"]
    assert matrix["policies"]["ppo"] == ["ppo_seed0", "ppo_seed1"]
    assert matrix["egos"][0] == "fcp-s0-0-final"
    # nobody's file says with whom it trained, so --seen is believed
    assert (matrix["guessed"], matrix["seen"]["goal_pd"]) == (matrix["judged"][:2], [])
    assert matrix["seen"]["ppo"] == [f"fcp-s0-0-{tier}" for tier in ("init", "mid", "final")]
    assert (matrix["condition"], matrix["guarded"]) == ("plain", [])
    families = {"fcp", "crossing_goal_seeker", "crossing_wanderer"}
    assert families == {*matrix["families"]} == {*matrix["by_family"]}
    for name, cells in matrix["by_family"].items():
        columns = [j for j, family in enumerate(matrix["families"]) if family == name]
        means = [np.mean([row[j]["value"] for j in columns]) for row in matrix["cells"]]
        assert [cell["value"] for cell in cells] == pytest.approx(means)
    assert "Best-response proximity of the success" in told


def test_report_of_the_folder_has_every_part(judged, tmp_path):
    out, _ = judged
    page = (out / "report.html").read_text()
    anchors = set(re.findall(r'<section id="([\w-]+)"', page))
    assert anchors >= {"methods", "gap", "cross-play", "adaptation", "bounds", "cells"}
    # goal_pd may beat a weak bound; a partner without one counts in none
    assert "over 1 of 5 partners" in page or "over 2 of 5 partners" in page
    assert f"cadenza zoo film {out} goal_pd scripted-s0-0 --out film.gif" in page
    run(f"report {out} --out {tmp_path / 'again.html'}")
    assert (tmp_path / "again.html").read_text() == page


def test_training_seeds_are_one_ego_and_the_clusters_of_its_intervals(judged):
    out, _ = judged
    matrix = json.loads((out / "matrix.json").read_text())
    cells = matrix["cells"][matrix["egos"].index("ppo")]
    played = [load_run(out / "bundles" / f"ppo_seed{seed}").episodes for seed in (0, 1)]
    for partner, cell in zip(matrix["partners"], cells, strict=True):
        own = {
            seed: [float(e.success) for e in episodes if e.partner == partner]
            for seed, episodes in enumerate(played)
        }
        found = rate_estimate(own)
        assert (cell["episodes"], cell["low"], cell["high"]) == (10, found.low, found.high)
    whole = read_matrix(out)
    clusters = [whole.estimate(ego, whole.cells[0][0]).n_clusters for ego in ("ppo", "goal_pd")]
    assert clusters == [2, 5]
    text = (out / "bundles" / "ppo_seed1" / "bundle.json").read_text()
    told = json.loads(text)["metadata"]
    assert (told["method"], told["training_seed"]) == ("ppo", 1)
    page = (out / "report.html").read_text()
    assert "ppo was trained 2 times, with the training seeds 0, 1." in page
    assert "trained once" not in page
    assert f"cadenza zoo film {out} ppo_seed0 scripted-s0-0 --out film.gif" in page
    met = read_encounters(out)
    assert {one.seeds for one in met.of("ppo")} == {(0,) * 20, (1,) * 20}
    assert met.by_encounter("ppo", "kept")[1].n_clusters == 2
    assert met.by_encounter("goal_pd", "reset")[1].n_clusters == 5


def test_encounters_are_paired_and_the_first_ones_equal(judged):
    out, _ = judged
    met = read_encounters(out)
    assert (met.metric, met.times[-1], len(met.egos)) == ("success", 10, 3)
    for one in met.series:
        assert np.shape(one.reset) == (20, 2)
        if one.kept is not None:
            assert [row[0] for row in one.kept] == [row[0] for row in one.reset]
    assert {one.ego for one in met.series if one.kept is None} == {"goal_pd"}


def test_folder_is_locked_to_the_end_and_drops_best_responses_that_nobody_gave(tmp_path):
    out, given, refused = tmp_path / "matrix", tmp_path / "best.json", set()
    made(tmp_path / "zoo", "scripted", population=1, task="crossing")
    best = {"value": 0.5, "random": 0.1, "trained": "by hand"}
    content = {"task": "crossing@v1", "metric": "success", "partners": {"scripted-s0-0": best}}
    store_best_responses(given, BestResponses.model_validate(content))

    def meet(stage, *_):
        try:
            open_output_folder(out, mode="resume").__enter__()
        except NotReadyError:
            refused.add(stage)

    means = {"egos": ["goal_pd"], "episodes": 5, "workers": 1, "progress": meet}
    judge([tmp_path / "zoo"], out=out, best_responses=given, encounters=2, **means)
    assert refused == {"cross-play", "encounters"}
    assert "by hand" in (out / "report.html").read_text()
    judge([tmp_path / "zoo"], out=out, resume=True, **means)
    assert not (out / "best-responses.json").exists()
    assert "by hand" not in (out / "report.html").read_text()


def test_cell_is_filmed(judged, tmp_path):
    out, _ = judged
    told = run(f"zoo film {out} goal_pd scripted-s0-1 --out {tmp_path / 'film.png'}")
    assert "10 steps" in told
    assert (tmp_path / "film.png").read_bytes()[:4] == b"\x89PNG"
    run(f"zoo film {out} goal_pd scripted-s0-1 --out {tmp_path / 'film.json'}")
    steps = json.loads((tmp_path / "film.json").read_text())
    rows = (out / "bundles" / "goal_pd" / "episodes_seed0.jsonl").read_text().splitlines()
    (played,) = (e for e in map(json.loads, rows) if e["partner"] == "scripted-s0-1")
    assert len(steps) == played["n_steps"] + 1
    assert sum(step["reward"] for step in steps) == pytest.approx(played["episode_return"])


def test_memory_is_carried_to_the_next_encounter_of_the_same_row(gru):
    bound = np.ones(2, dtype=np.float32)
    seat = EgoSeat(uid="ego", observation_dim=10, low=-2 * bound, high=2 * bound)
    alone = load_policy("local://best", seat=seat, artifacts_root=gru)
    policy = CarriedMemory(load_policy("local://best", seat=seat, artifacts_root=gru), 2)
    seen = np.random.default_rng(0).normal(size=(5, 2, 10)).astype(np.float32)
    policy.reset(seed=0)
    for row in (0, 1):
        policy.reset_row(row, seed=0)
    policy.act_rows(seen[0])
    policy.keep(0)  # the episode of row 0 is over, and others still play
    policy.reset_row(0, seed=0)
    policy.act_rows(seen[1])
    policy.keep(1)
    policy.reset(seed=1)  # the second encounter
    for row in (0, 1):
        policy.reset_row(row, seed=1)
    acted = policy.act_rows(seen[2])
    alone.reset(seed=0)
    alone.act_rows(seen[0])
    after_one = alone.act_rows(seen[2])
    alone.reset(seed=0)
    for step in (0, 1):
        alone.act_rows(seen[step])
    after_two = alone.act_rows(seen[2])
    assert acted[0].tobytes() == after_one[0].tobytes()
    assert acted[1].tobytes() == after_two[1].tobytes()
