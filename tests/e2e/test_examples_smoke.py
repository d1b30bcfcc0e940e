"""Every example runs from the command line and prints what it found; so does every score."""

import json
import math
import re

import pytest
import yaml
from PIL import Image

from cadenza.learn.agents.presets import presets
from tests.campaigns import size
from tests.e2e.commands import REPOSITORY, warm

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
SCORES = REPOSITORY / "perf" / "scores.py"
BESIDE_SB3 = yaml.safe_load(SCORES.with_suffix(".yaml").read_text("utf-8"))
MEAN = r"-?\d+\.\d (\[-?\d+\.\d, -?\d+\.\d\]|\(no interval.*\))"
RATE = r"\d+ of \d+ \[\d\.\d\d, \d\.\d\d\]"
#: A small budget of each example, what a printed line says, and how many lines do.
PRINTED = {
    "cartpole_dqn": ("--seeds 2 --steps 400 --episodes 2", rf"(seed \d|over seeds): {MEAN}", 3),
    "cocarry_bc": ("--seeds 2 --steps 50 --episodes 2", rf"seed \d, \w+: {RATE}", 6),
    "cocarry_dagger": ("--seeds 2 --steps 500 --episodes 2", rf"seed \d, \w+: {RATE}", 6),
    "cocarry_diversity": ("--steps 500 --episodes 1", r".* \d of 3 \[\d\.\d\d, \d\.\d\d\].*", 5),
    "cocarry_residual_ppo": ("--steps 40 --episodes 2", rf"all seeds, \w+, [a-z ]+: {RATE}", 20),
    "cocarry_sac": ("--steps 1200 --episodes 2", rf"all seeds, \w+: {RATE}", 10),
    "cooperative_push": ("", MEAN, 1),
    "crossing_behaviour_cloning": ("--updates 100 --episodes 25", r"seed 0: .* % of 20 succeed", 1),
    "first_steps": ("", MEAN, 1),
    "guard_differential_drive": ("", r"(alone|guarded): at the goal .* column [+-]\d\.\d{3} m", 2),
    "hidden_velocity_ppo": ("--seeds 2 --steps 1024", rf"memory \w+: {MEAN}", 2),
    "hit_the_middle_sac": ("--seeds 2 --updates 60", r"over seeds: -\d+\.\d\d \[.*\]", 1),
    "lunar_lander_genrl": ("--steps 1100 --episodes 2", MEAN, 1),
    "own_network_and_loss": ("", rf"agent: {MEAN}", 1),
    "point_goal_sac": ("--seeds 2 --steps 400 --episodes 10", rf"seed \d: {MEAN}.*success.*", 2),
    "stream_to_memory": ("--steps 1500 --episodes 2", MEAN, 1),
}
#: A curve is shown in the documentation, so it stays small.
MAX_CURVE_BYTES = 60_000


def run(script, *words, cwd):
    # The current folder is temporary: MuJoCo writes its warnings there.
    done = warm(script, *words, cwd=cwd, timeout=800)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("name", size(["cartpole_dqn"], list(PRINTED)))
def test_example_runs_and_prints_what_it_found(name, tmp_path):
    words, line, count = PRINTED[name]
    printed = run(EXAMPLES / f"{name}.py", *words.split(), cwd=tmp_path).out.splitlines()
    assert len([text for text in printed if re.fullmatch(line, text)]) == count, printed


@pytest.mark.parametrize("task", size(["cooperative_push_hatd3"], list(presets())))
def test_score_is_written_with_its_curve(task, tmp_path):
    out = tmp_path / "out"
    done = run(SCORES, task, "--smoke", "--json", "--seed", "3", "--out", out, cwd=tmp_path)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert json.loads(done.out) == results
    assert results["task"] == task
    assert list(results["seeds"]) == ["3"]
    seed = results["seeds"]["3"]
    assert len(seed["returns"]) == 2
    assert all(math.isfinite(value) for value in seed["returns"])
    assert seed["env_steps"] > 0
    assert seed["updates"] > 0
    steps = [point[0] for point in seed["curve"]]
    assert steps == sorted(steps)
    assert (out / "curve.png").stat().st_size < MAX_CURVE_BYTES
    with Image.open(out / "curve.png") as picture:
        assert picture.size == (800, 400)


@pytest.mark.parametrize("task", size(["cartpole_ppo"], list(BESIDE_SB3)))
def test_comparison_runs_both_sides_and_subtracts(task, tmp_path):
    done = run(SCORES, task, "--sb3", "--smoke", "--json", "--out", tmp_path, cwd=tmp_path)
    means = {name: entry["value"] for name, entry in json.loads(done.out)["mean_return"].items()}
    ours, theirs, difference = means.values()
    assert difference == pytest.approx(ours - theirs)
    assert math.isfinite(difference)


def test_readmes_list_every_example_and_every_task():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = re.findall(r"^\| `(\w+)\.py` \|", (EXAMPLES / "README.md").read_text("utf-8"), re.M)
    assert set(listed) == scripts == set(PRINTED)
    scores = (REPOSITORY / "src/cadenza/learn/agents/README.md").read_text("utf-8")
    tasks = {*presets(), *BESIDE_SB3}
    assert {task for task in tasks if not re.search(rf"\b{task}\b", scores)} == set()
