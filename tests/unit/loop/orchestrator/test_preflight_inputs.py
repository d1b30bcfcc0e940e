"""What a configuration names is looked at before a run begins, and so are the seeds of its data."""

import json

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.strict_json import write_sealed_json
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import load_constitution
from cadenza.loop.orchestrator.preflight import missing_inputs, require_inputs
from cadenza.loop.schedule import seed_range

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
    first = seed_range(0, purpose, cycle, count=1).start
    root = dataset([5, first + last + 1])
    require_inputs(config(seed_root=root, improve=IMPROVING), RULES)
    page = root / "meta/cadenza.json"
    entries = [{"seed": seed, "partner": "p"} for seed in (5, first + last)]
    page.unlink()
    write_sealed_json(page, {"episodes": entries}, kind="cadenza-dataset")
    with pytest.raises(ConfigurationError, match=f"than the run uses to {use}, seeds {first} to"):
        require_inputs(config(seed_root=root, improve=IMPROVING), RULES)
    require_inputs(config(seed_root=root, improve=IMPROVING, seed=1), RULES)


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
