"""The scripts as modules, as commands of LeAgents start them."""

import subprocess
import sys

import pytest

from cadenza.loop.scripts.run import SCRIPTS
from cadenza.loop.scripts.starting import start


@pytest.mark.parametrize("word", ["collect"])
def test_script_that_is_started_as_a_module_does_something(word):
    command = [sys.executable, "-m", f"cadenza.loop.scripts.{SCRIPTS[word]}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 2
    assert f"{word}: error: the following arguments are required: --" in done.stderr


@pytest.mark.parametrize("name", ["lerobot", "lerobot.envs.configs"])
def test_missing_lerobot_is_told_with_the_command_that_finds_it(name, capsys):
    def main(words):
        raise ModuleNotFoundError(name=name)

    with pytest.raises(SystemExit) as ended:
        start("collect", main)
    assert ended.value.code == 2
    assert "/scripts/run.py collect ...` with the Python that has it" in capsys.readouterr().err
