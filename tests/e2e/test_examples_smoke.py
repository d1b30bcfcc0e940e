"""Every example runs from the command line and leaves its results; scores.py runs every task."""

import json
import math
import re

import pytest
import yaml
from PIL import Image

from tests.campaigns import nightly, size
from tests.e2e.commands import REPOSITORY, warm

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
TABLES = yaml.safe_load((EXAMPLES / "scores.yaml").read_text("utf-8"))
#: Scripts with a score of their own.
SCORED = [
    "cartpole_dqn",
    "cocarry_dagger",
    "cocarry_residual_ppo",
    "cocarry_sac",
    "crossing_behaviour_cloning",
    "hit_the_middle_sac",
    "lunar_lander_genrl",
    "stream_to_memory",
]
#: Scripts that print a line or two.
SHORT = ["cooperative_push", "first_steps", "own_network_and_loss"]
#: Run by `make test`: a task with a discrete action, and a team.
OFTEN = [("cartpole_dqn",), ("scores", "cooperative_push_hatd3")]
#: A curve is shown in the documentation, so it stays small.
MAX_CURVE_BYTES = 60_000


def run(name, *words, cwd):
    # The current folder is temporary: MuJoCo writes its warnings there.
    done = warm(EXAMPLES / f"{name}.py", *words, cwd=cwd, timeout=800)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize(
    "words",
    size(OFTEN, [*((name,) for name in SCORED), *(("scores", task) for task in TABLES["scores"])]),
    ids=" ".join,
)
def test_example_runs_and_says_what_it_found(words, tmp_path):
    out = tmp_path / "out"
    done = run(*words, "--smoke", "--json", "--seed", "3", "--out", out, cwd=tmp_path)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert json.loads(done.out) == results
    assert results["example"] == words[-1]
    assert list(results["seeds"]) == ["3"]
    seed = results["seeds"]["3"]
    assert 1 <= len(seed["returns"]) <= 2
    assert all(math.isfinite(value) for value in seed["returns"])
    assert seed["env_steps"] > 0
    assert seed["updates"] > 0
    steps = [point[0] for point in seed["curve"]]
    assert steps == sorted(steps)
    assert (out / "curve.png").stat().st_size < MAX_CURVE_BYTES
    with Image.open(out / "curve.png") as picture:
        assert picture.size == (800, 400)


@pytest.mark.parametrize("task", size(["cartpole_ppo"], list(TABLES["beside_sb3"])))
def test_comparison_runs_both_sides_and_subtracts(task, tmp_path):
    done = run("scores", task, "--sb3", "--smoke", "--json", "--out", tmp_path, cwd=tmp_path)
    means = {name: entry["value"] for name, entry in json.loads(done.out)["mean_return"].items()}
    ours, theirs, difference = means.values()
    assert difference == pytest.approx(ours - theirs)
    assert math.isfinite(difference)


@nightly
@pytest.mark.parametrize("name", SHORT)
def test_short_example_prints_an_interval(name, tmp_path):
    assert re.search(r"-?\d+\.\d \[-?\d+\.\d, -?\d+\.\d\]", run(name, cwd=tmp_path).out)


@nightly
def test_table_on_diversity_has_a_row_for_every_set_of_partners(tmp_path):
    printed = run("cocarry_diversity", "--smoke", cwd=tmp_path).out.splitlines()
    assert len(printed) == 6  # header, four sets, the expert
    assert all(re.search(r"\d of 3 \[\d\.\d\d, \d\.\d\d\]", row) for row in printed[1:])


def test_readme_lists_every_example_and_every_task():
    text = (EXAMPLES / "README.md").read_text("utf-8")
    named = re.findall(r"^\| `(\w+)\.py(?: (\w+)(?: --sb3)?)?[^`]*` \|", text, re.M)
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"harness"}
    assert {script for script, _ in named} == scripts
    assert {task for _, task in named if task} == {*TABLES["scores"], *TABLES["beside_sb3"]}
