"""What a configuration names is looked at before a run begins, and so are the seeds of its data."""

import json

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import sha256_bytes
from cadenza.core.sealed_json import write_sealed_json
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import load_constitution
from cadenza.loop.orchestrator.assembly import build_loop
from cadenza.loop.orchestrator.foreseen_inputs import (
    missing_inputs,
    require_fitting_weights,
    require_inputs,
)
from cadenza.loop.orchestrator.seeds import SeedLedger

RULES = load_constitution(None)
IMPROVING = {"enabled": True, "adapt_steps": 10}


def config(**changes):
    fixed = {"run_name": "r", "seed_dataset": "local/d", "budgets": {"max_cycles": 3}}
    return LoopConfig.from_document(fixed | changes, source="test")


@pytest.fixture
def dataset(tmp_path):
    """Return what makes a folder that passes for a dataset of episodes from given seeds."""

    def make(seeds, partner="crossing_chaser"):
        root = tmp_path / "dataset"
        (root / "meta").mkdir(parents=True)
        (root / "meta/info.json").write_text(json.dumps({"total_episodes": len(seeds) or 1}))
        entries = [{"seed": seed, "partner": partner} for seed in seeds]
        if seeds:
            write_sealed_json(
                root / "meta/cadenza.json", {"episodes": entries}, kind="cadenza-dataset"
            )
        return root

    return make


@pytest.mark.parametrize(
    ("purpose", "cycle", "last", "use"),
    [
        ("compare", 0, 479, "judge policies in cycle 0"),
        ("compare", 2, 479, "judge policies in cycle 2"),
        ("select", 1, 49, "choose between candidates in cycle 1"),
        ("harvest", 2, 99, "harvest in cycle 2"),
    ],
)
def test_data_from_initial_states_that_the_run_uses_is_refused(purpose, cycle, last, use, dataset):
    first = SeedLedger(0).range(purpose, cycle, count=1).start
    root = dataset([5, first + last + 1])
    require_inputs(config(seed_root=root, improve=IMPROVING), RULES)
    page = root / "meta/cadenza.json"
    entries = [{"seed": seed, "partner": "p"} for seed in (5, first + last)]
    page.unlink()
    write_sealed_json(page, {"episodes": entries}, kind="cadenza-dataset")
    with pytest.raises(ConfigurationError, match=f"than the run uses to {use}, seeds {first} to"):
        require_inputs(config(seed_root=root, improve=IMPROVING), RULES)
    require_inputs(config(seed_root=root, improve=IMPROVING, seed=1), RULES)


def test_such_a_run_is_refused_before_it_is_begun(dataset, tmp_path):
    root = dataset([SeedLedger(0).range("compare", 1, count=1).start])
    settings = config(seed_root=root, workdir=tmp_path / "runs")
    with pytest.raises(ConfigurationError, match="set another seed in the configuration"):
        build_loop(settings, "leak")
    assert not (tmp_path / "runs").exists()


def test_every_missing_file_is_named(tmp_path):
    (tmp_path / "weights").touch()
    ladder = [
        {"name": "bc", "init": str(tmp_path / "weights")},
        {"name": "bc_large", "init": str(tmp_path / "nope")},
    ]
    settings = config(seed_root=tmp_path / "none", policy_ladder=ladder)
    with pytest.raises(ConfigurationError) as caught:
        require_inputs(settings, RULES)
    told = str(caught.value)
    assert f"seed_root: expected a folder, got none at {tmp_path / 'none'}" in told
    assert f"policy_ladder[1].init: expected weights, got nothing at {tmp_path / 'nope'}" in told
    assert "policy_ladder[0]" not in told


@pytest.fixture
def weights(tmp_path):
    """Return what makes a file that passes for weights of a rung and task."""

    def make(rung="bc", task="crossing"):
        path = tmp_path / "policy.pt"
        path.write_bytes(b"weights")
        facts = {"features": {"action": [2]}, "rung": rung, "task": task}
        page = {"sha256": sha256_bytes(b"weights"), "extra": facts}
        path.with_name("policy.pt.json").write_text(json.dumps(page))
        return [{"name": "bc", "init": str(path)}]

    return make


def test_weights_must_be_of_their_rung_and_task_before_the_run(weights, tmp_path):
    require_inputs(config(policy_ladder=weights()), RULES)
    for rung, task in (("bc_large", "crossing"), ("bc", "mpe_cooperative_push")):
        settings = config(policy_ladder=weights(rung, task))
        message = rf"policy_ladder\[0\]\.init: .* rung 'bc' .* some of '{rung}' for '{task}' in /"
        for ask in (require_fitting_weights, lambda given: require_inputs(given, RULES)):
            with pytest.raises(ConfigurationError, match=message):
                ask(settings)


@pytest.mark.parametrize(
    ("filtered", "played", "described", "problem"),
    [
        (None, "libero_goal", False, None),
        ("mine", "libero_goal", True, None),
        (None, "libero_goal,mine", True, None),
        ("libero_01", "libero_goal", False, r"data\.task_filter: .* libero_90, without data\.inst"),
        ("libero_10", "libero_goal", True, r"data\.task_filter: .* suites mine, which /.*, got 'l"),
        (None, "libero_goal", True, r"eval\.task_suite: .* suites mine, which /.*'libero_goal'"),
    ],
)
def test_a_suite_that_nobody_describes_is_refused_before_episodes_are_chosen_by_it(
    filtered, played, described, problem, tmp_path
):
    path = tmp_path / "suites.json"
    path.write_text(json.dumps({"mine": ["push it"]}))
    settings = config(
        backend="lerobot",
        seed_dataset="lerobot/x",
        policy_ladder=[{"name": "act"}],
        eval={"env_type": "libero", "task_suite": played},
        data={"task_filter": filtered, "instructions": str(path) if described else None},
    )
    if problem is None:
        assert missing_inputs(settings) == []
        return
    with pytest.raises(ConfigurationError, match=problem):
        require_inputs(settings, RULES)
