"""Every example runs from the command line with ``--smoke`` and leaves its results."""

import json
import math
import re

import pytest
from PIL import Image

from tests.campaigns import size
from tests.e2e.commands import REPOSITORY, warm

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
#: Run by `make test`: a discrete task, a continuous one, and one from live producers.
OFTEN = ["cartpole_dqn", "hl_gauss_pendulum", "crossing_behaviour_cloning"]
#: Scripts that compare with another library and so have results of another kind.
COMPARISONS = {"compare_with_sb3"}
#: A curve is shown in the documentation, so it stays small.
MAX_CURVE_BYTES = 60_000


def scripts():
    """Return the names of all example scripts; other modules have no main block."""
    names = [
        path.stem
        for path in EXAMPLES.glob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    return sorted(name for name in names if name != "harness")


def smoke(name, out, *words):
    script = EXAMPLES / f"{name}.py"
    # The current folder is temporary: MuJoCo writes its warnings there.
    done = warm(script, "--smoke", "--out", out, *words, cwd=out.parent, timeout=800)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("name", size(OFTEN, [n for n in scripts() if n not in COMPARISONS]))
def test_example_runs_and_says_what_it_found(name, tmp_path):
    out = tmp_path / "out"
    done = smoke(name, out, "--json", "--seed", "3")
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert json.loads(done.out) == results
    assert results["example"] == name
    assert results["smoke"] is True
    assert list(results["seeds"]) == ["3"]
    run = results["seeds"]["3"]
    assert 1 <= len(run["returns"]) <= 2
    assert all(math.isfinite(value) for value in run["returns"])
    assert run["mean_return"] == pytest.approx(sum(run["returns"]) / len(run["returns"]))
    assert run["env_steps"] > 0
    assert run["updates"] > 0
    steps = [point[0] for point in run["curve"]]
    assert steps == sorted(steps)
    assert results["mean_return"]["value"] == pytest.approx(run["mean_return"])
    assert (out / "seed_3").is_dir()
    assert (out / "curve.png").stat().st_size < MAX_CURVE_BYTES
    with Image.open(out / "curve.png") as picture:
        assert picture.size == (800, 400)
    if name == "stream_to_memory":
        # Five episodes of 200 steps before training, and one after updates 200 and 400 of 500
        # unless the producers are late with it.
        assert run["updates"] == 500
        assert run["env_steps"] in (1_000, 1_200, 1_400)


@pytest.mark.parametrize("task", size(["cartpole_ppo"], ["cartpole_ppo", "pendulum_sac"]))
def test_comparison_runs_both_sides_and_subtracts(task, tmp_path):
    done = smoke("compare_with_sb3", tmp_path / "out", "--json", "--task", task, "--seed", "2")
    results = json.loads(done.out)
    assert results["task"] == task
    means = {name: by_seed["2"] for name, by_seed in results["per_seed"].items()}
    assert means["difference"] == pytest.approx(means["ours"] - means["theirs"])
    assert all(math.isfinite(value) for value in means.values())
    assert results["mean"]["difference"]["value"] == pytest.approx(means["difference"])


def test_readme_lists_every_example_and_nothing_else():
    rows = re.findall(r"^\| `(\w+)\.py` \|", (EXAMPLES / "README.md").read_text("utf-8"), re.M)
    assert sorted(rows) == scripts()
