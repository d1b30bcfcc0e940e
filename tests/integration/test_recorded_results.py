"""Equal seeds give the results on record: no release changes a figure without its authors' notice.

With ``CADENZA_RECORD=1`` in the environment the records are written anew; how they differ from the
old ones is what users of the next release will see change.
"""

import json
import os
import re
from pathlib import Path

import pytest

import cadenza
from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.tasks import get_task
from cadenza.evaluation.report.render import render_report
from cadenza.partners.registry import cards
from tests.e2e.in_process import here
from tests.unit.evaluation.report.sample_view import sample_view
from tests.unit.learn.test_api import SOLO, TEAMS, pushes, tensors

RECORDS = Path(__file__).parents[1] / "data" / "recorded"
#: Policies without weights that play each task.
EGOS = {
    "crossing": ("zero", "random", "goal_pd"),
    "foraging": ("random",),
    "mpe_cooperative_push": ("zero", "random"),
    "cocarry_mj": ("cocarry_reference", "cocarry_level", "cocarry_blind_mean"),
    "handover_mj": ("handover_reference", "handover_nominal_grasp"),
}


def leaves(value, name=""):
    """Return what stands at each place of a nested value."""
    if not isinstance(value, dict | list):
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {at: leaf for key, part in parts for at, leaf in leaves(part, f"{name}/{key}").items()}


def assert_on_record(name, found, rel=1e-4):
    path = RECORDS / f"{name}.json"
    if os.environ.get("CADENZA_RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    expected = leaves(json.loads(path.read_text()))
    # Sums may be taken in another order on another processor.
    assert leaves(found) == {
        at: pytest.approx(leaf, rel=rel, abs=1e-6) if isinstance(leaf, float) else leaf
        for at, leaf in expected.items()
    }


@pytest.mark.parametrize(
    ("name", "env", "config"), [*SOLO, *((name, None, config) for name, config in TEAMS)]
)
def test_what_algorithms_learn(name, env, config):
    agent = getattr(cadenza, name)(env or pushes(2), seed=3, **config)
    agent.learn(150 if name == "GRPO" else 70, progress=False)
    weights = [t for t in tensors(agent.state_dict()) if t.is_floating_point()]
    found = {"updates": agent.updates, "sizes": [float(t.abs().sum()) for t in weights]}
    assert_on_record(f"{name}_{env or 'team'}", found, 1e-3)


@pytest.mark.parametrize("task", EGOS)
def test_how_egos_fare_beside_every_partner(tmp_path, task):
    unguarded = {} if get_task(task).supports_safety else {"conditions": ({"name": "plain"},)}
    config = EvaluationConfig(
        task=task,
        policies=EGOS[task],
        partners=sorted(name for name, card in cards().items() if task in card.tasks),
        seeds=(5,),
        episodes_per_seed=2,
        episode_length=100,
        **unguarded,
    )
    played = run_evaluation(config, out=tmp_path / "out", workers=1).episodes
    kept = {
        ego: [e.model_dump(mode="json", exclude_none=True) for e in played[ego]] for ego in played
    }
    assert_on_record(task, kept)


@pytest.mark.parametrize("name", ["native_crossing", "native_failures"])
def test_what_a_loop_would_run(tmp_path, name):
    words = ("loop", "run", "--config", name, "--dry-run", "--run-id", "dry")
    said = here(*words, cwd=tmp_path).out.replace(str(tmp_path), "")
    assert_on_record(f"loop_{name}", said.splitlines())


def test_what_a_report_shows():
    page = render_report(sample_view()).partition("<body")[2].partition("<script")[0]
    assert_on_record("report", re.sub('base64,[^"]+', "", page).replace("><", ">\n<").splitlines())
