"""The scripts as modules, as commands of LeAgents start them."""

import subprocess
import sys

import pytest

from cadenza.loop.scripts.run import SCRIPTS
from cadenza.loop.scripts.starting import start


@pytest.mark.parametrize("word", [word for word in SCRIPTS if word != "train"])
def test_script_that_is_started_as_a_module_does_something(word):
    command = [sys.executable, "-m", f"cadenza.loop.scripts.{SCRIPTS[word]}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 2
    assert f"{word}: error: the following arguments are required: --" in done.stderr


def test_exit_code_of_the_script_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "--a=1"])
    with pytest.raises(SystemExit) as ended:
        start("collect", lambda words: 3 if words == ["--a=1"] else 0)
    assert ended.value.code == 3


@pytest.mark.parametrize("name", ["lerobot", "lerobot.envs.configs"])
def test_missing_lerobot_is_told_with_the_command_that_finds_it(name, capsys):
    def main(words):
        raise ModuleNotFoundError(name=name)

    with pytest.raises(SystemExit) as ended:
        start("collect", main)
    assert ended.value.code == 2
    assert "/scripts/run.py collect ...` with the Python that has it" in capsys.readouterr().err


def test_other_missing_modules_are_not_taken_for_lerobot():
    def main(words):
        raise ModuleNotFoundError("no pyarrow", name="pyarrow")

    with pytest.raises(ModuleNotFoundError, match="no pyarrow"):
        start("select", main)
