"""Starting LeRobot's training again and again, with a program that only notes its words."""

import json
import subprocess
import sys

import pytest

from cadenza.loop.backends.lerobot_probe import RUN_SCRIPT
from cadenza.loop.scripts.train_policy import finished_step

#: Stands in for LeRobot's training: notes its words, and refuses an output folder that exists.
FAKE = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
given = dict(word.split("=", 1) for word in words)
out = given.get("--output_dir")
if out is not None:
    pathlib.Path(out).mkdir(parents=True)
pathlib.Path({notes!r}).write_text(json.dumps(words))
"""


@pytest.fixture
def environment(tmp_path):
    """Return an environment whose training is the program above."""
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    program = folder / "bin" / "lerobot-train"
    program.write_text(FAKE.format(python=sys.executable, notes=str(tmp_path / "notes.json")))
    program.chmod(0o755)
    return folder


def start(environment, *words):
    command = [str(environment / "bin" / "python"), "-P", str(RUN_SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)


def noted(tmp_path):
    path = tmp_path / "notes.json"
    return json.loads(path.read_text()) if path.exists() else None


def checkpoint(output, step):
    state = output / "checkpoints" / "last" / "training_state"
    state.mkdir(parents=True)
    (state / "training_step.json").write_text(json.dumps({"step": step}))


def test_first_start_passes_the_words_on(environment, tmp_path):
    words = ["--policy.type=act", f"--output_dir={tmp_path / 'out'}", "--steps=20"]
    done = start(environment, "train", *words)
    assert done.returncode == 0, done.stderr
    assert noted(tmp_path) == words


def test_folder_without_a_checkpoint_is_removed(environment, tmp_path):
    half = tmp_path / "out" / "checkpoints" / "000010"
    half.mkdir(parents=True)
    done = start(environment, "train", f"--output_dir={tmp_path / 'out'}", "--steps=20")
    assert done.returncode == 0, done.stderr
    assert not half.exists()


def test_finished_checkpoint_is_gone_on_from(environment, tmp_path):
    output = tmp_path / "out"
    checkpoint(output, 10)
    done = start(environment, "train", f"--output_dir={output}", "--steps=20")
    assert done.returncode == 0, done.stderr
    config = output / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    assert noted(tmp_path) == [f"--config_path={config}", "--resume=true", "--steps=20"]
    assert "training continues at step 10" in done.stderr


@pytest.mark.parametrize("content", ["{", "[]", '{"step": "x"}', "{}"])
def test_damaged_step_is_no_checkpoint(tmp_path, content):
    checkpoint(tmp_path, 1)
    assert finished_step(tmp_path) == 1
    file = tmp_path / "checkpoints" / "last" / "training_state" / "training_step.json"
    file.write_text(content)
    assert finished_step(tmp_path) is None


def test_unknown_script_is_refused_with_the_known_ones(environment):
    for words in ([], ["fly"]):
        done = start(environment, *words)
        assert done.returncode == 2
        assert "expected one of collect, describe, merge, select, train" in done.stderr
