"""How processes of producers begin, and what is refused there."""

import multiprocessing
import os
from collections.abc import Generator
from multiprocessing import forkserver

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.stream import processes
from cadenza.stream.processes import preload, require_imported_main, set_environment


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the program have chosen modules, and put back what was chosen."""
    modules = ["__main__", "json"]
    monkeypatch.setattr(vars(forkserver)["_forkserver"], "_preload_modules", modules)
    return modules


def preloaded() -> list[str]:
    return vars(forkserver)["_forkserver"]._preload_modules


def test_preloaded_module_comes_after_those_of_the_program_and_once(chosen: list[str]) -> None:
    preload("cadenza.stream.producer")
    preload("cadenza.stream.producer")
    assert preloaded() == [*chosen, "cadenza.stream.producer"]


def test_server_that_does_not_tell_its_modules_is_left_alone(chosen, monkeypatch) -> None:
    monkeypatch.setattr(processes, "forkserver", object())
    preload("cadenza.stream.producer")
    assert preloaded() == chosen


def test_variables_of_the_environment_are_replaced(monkeypatch) -> None:
    before = dict(os.environ)
    monkeypatch.setenv("STREAM_TEST_OLD", "1")
    try:
        set_environment({**before, "STREAM_TEST_NEW": "2"})
        assert "STREAM_TEST_OLD" not in os.environ
        assert os.environ["STREAM_TEST_NEW"] == "2"
    finally:
        set_environment(before)


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> Generator[multiprocessing.process.BaseProcess]:
    """Let this process import its main module, as a new one does."""
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_inheriting", True, raising=False)
    name = process.name
    yield process
    process.name = name


def test_main_module_that_starts_an_engine_at_import_is_refused(importing) -> None:
    with pytest.raises(
        ConfigurationError, match="expected to run once, got: the main module start"
    ):
        require_imported_main()


def test_producer_with_such_a_module_ends_with_a_code_of_its_own(importing, monkeypatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", lambda code: codes.append(code) or exit(code))
    importing.name = "cadenza-producer-3"
    with pytest.raises(SystemExit):
        require_imported_main()
    assert codes == [processes.UNGUARDED_EXIT]


def test_module_that_was_imported_may_start_engines() -> None:
    require_imported_main()
