"""Runs only where LeRobot's own environment is there: `make test-lerobot` makes it."""

import os

import pytest

#: Its Python interpreter; set by `make test-lerobot`.
VARIABLE = "CADENZA_LEROBOT_PYTHON"

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lerobot: needs LeRobot in an environment of its own")
