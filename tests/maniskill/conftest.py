"""Runs only where ManiSkill is: `make test-maniskill` makes an environment with it."""

from importlib.util import find_spec

import pytest
import torch

collect_ignore_glob = [] if find_spec("mani_skill") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Small tensors are faster in one thread, and other tests may run beside these."""
    torch.set_num_threads(1)


@pytest.fixture
def without_renderer(monkeypatch):
    """Take state observations as on a machine without any renderer."""
    monkeypatch.setenv("CHAMBER_RENDER_BACKEND", "none")
