"""What the fork server imports."""

from multiprocessing import forkserver

import pytest

from cadenza.core import fork_server
from cadenza.core.fork_server import preload


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the program have chosen modules, and put back what was chosen."""
    modules = ["__main__", "json"]
    monkeypatch.setattr(vars(forkserver)["_forkserver"], "_preload_modules", modules)
    return modules


def preloaded() -> list[str]:
    return vars(forkserver)["_forkserver"]._preload_modules


def test_preloaded_modules_come_after_those_of_the_program_and_once(chosen: list[str]) -> None:
    preload("cadenza.stream.producer")
    preload("torch", "cadenza.stream.producer")
    assert preloaded() == [*chosen, "cadenza.stream.producer", "torch"]


def test_server_that_does_not_tell_its_modules_is_left_alone(chosen, monkeypatch) -> None:
    monkeypatch.setattr(fork_server, "forkserver", object())
    preload("cadenza.stream.producer")
    assert preloaded() == chosen
