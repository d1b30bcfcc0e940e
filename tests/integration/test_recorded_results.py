"""The same seeds reproduce the recorded results, so no release changes a figure unnoticed.

``CADENZA_RECORD=1`` rewrites the records; `git diff` then shows what users will see change. Records
detect a change; whether a figure is right is for other tests.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

import cadenza
from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.tasks import get_task
from cadenza.evaluation.report.render import render_report
from cadenza.partners.registry import cards, outside_modules
from tests.e2e.in_process import here
from tests.unit.evaluation.report.sample_view import sample_view
from tests.unit.learn.test_api import SOLO, TEAMS, pushes

RECORDS = Path(__file__).parents[1] / "data" / "recorded"
#: What each task needs, and policies without weights that play it.
EGOS = {
    "crossing": ("numpy", ["random", "goal_pd"]),
    "foraging": ("lbforaging", ["random"]),
    "mpe_cooperative_push": ("numpy", ["zero", "random"]),
    "cocarry_mj": ("mjbatch", ["cocarry_reference", "cocarry_blind_mean"]),
    "handover_mj": ("mjbatch", ["handover_reference", "handover_nominal_grasp"]),
}


def leaves(value, name=""):
    """Return every leaf of a nested value, by its path."""
    if not isinstance(value, dict | list | tuple):
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {at: leaf for key, part in parts for at, leaf in leaves(part, f"{name}/{key}").items()}


def assert_on_record(name, found):
    path = RECORDS / f"{name}.json"
    if os.environ.get("CADENZA_RECORD") == "1":
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        pytest.skip(f"wrote {path.name}; run again without CADENZA_RECORD")
    # Sums may be taken in another order on another processor.
    assert leaves(found) == {
        at: pytest.approx(leaf, rel=1e-3, abs=1e-6) if isinstance(leaf, float) else leaf
        for at, leaf in leaves(json.loads(path.read_text())).items()
    }


@pytest.mark.parametrize(
    ("name", "env", "config"), [*SOLO, *((name, None, config) for name, config in TEAMS)]
)
def test_what_algorithms_learn(name, env, config):
    agent = getattr(cadenza, name)(env or pushes(2), seed=3, **config)
    agent.learn(150 if name == "GRPO" else 70, progress=False)
    weights = {at: leaf for at, leaf in leaves(agent.state_dict()).items() if type(leaf) is Tensor}
    sizes = {at: float(t.abs().sum()) for at, t in weights.items() if t.is_floating_point()}
    assert_on_record(f"{name}_{env or 'team'}", {"updates": agent.updates, "sizes": sizes})


@pytest.mark.parametrize("task", EGOS)
def test_how_egos_fare_beside_every_partner(tmp_path, task):
    needed, egos = EGOS[task]
    pytest.importorskip(needed)
    plays = [n for n, card in cards().items() if task in card.tasks and not outside_modules([n])]
    unguarded = {} if get_task(task).supports_safety else {"conditions": ({"name": "plain"},)}
    sizes = {"seeds": (5,), "episodes_per_seed": 1}
    config = EvaluationConfig(task=task, policies=egos, partners=plays, **sizes, **unguarded)
    played = run_evaluation(config, out=tmp_path / "out", workers=1).episodes
    kept = {"mode": "json", "exclude_none": True, "exclude": {"episode_idx"}}
    found = {
        f"{ego}, {e.partner}, {e.condition}": e.model_dump(**kept)
        for ego in egos
        for e in played[ego]
    }
    assert_on_record(task, found)


@pytest.mark.parametrize("name", ["native_crossing", "native_failures"])
def test_what_a_loop_would_run(tmp_path, name):
    done = here(*f"loop run -c {name} --dry-run --run-id dry".split(), cwd=tmp_path)
    assert done.code == 0, done.err
    assert_on_record(f"loop_{name}", done.out.replace(str(tmp_path), "").splitlines())


def test_what_a_report_shows():
    view = sample_view(seeds=2, episodes=3)
    (curve,) = view.learning
    brief = replace(
        curve,
        steps=curve.steps[:120],
        returns=curve.returns[:120],
        evaluations=curve.evaluations[:1],
    )
    page = render_report(replace(view, learning=(brief,), rollouts=view.rollouts[:2]))
    body = page.partition("<body")[2].partition("<script")[0]
    assert_on_record("report", re.sub('base64,[^"]+', "", body).replace("><", ">\n<").splitlines())
