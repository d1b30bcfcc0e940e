"""Runs only where LeRobot's own environment is there: `make test-lerobot` makes it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lerobot.pusht_loop import EPISODES

#: Its Python interpreter; set by `make test-lerobot`.
VARIABLE = "CADENZA_LEROBOT_PYTHON"
#: What LeRobot's environment has here beside what was installed there.
NEAR_GOAL = Path(__file__).with_name("near_goal")
#: Longest time that making data may take, s; a cold disk makes ten seconds a minute.
LIMIT_S = 800.0

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lerobot: needs LeRobot in an environment of its own")


@pytest.fixture(scope="module")
def offline() -> Iterator[None]:
    """Keep LeRobot off the network, and let it know the task of `near_goal`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("PYTHONPATH", str(NEAR_GOAL))
        yield


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the datasets of `scripted_pusht`."""
    folder = tmp_path_factory.mktemp("scripted")
    program = Path(__file__).with_name("scripted_pusht.py")
    done = subprocess.run(
        [os.environ[VARIABLE], str(program), str(folder), str(EPISODES)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(NEAR_GOAL)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder
