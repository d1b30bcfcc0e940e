"""Environments of their own: made once, by one process at a time, and never half made."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import nightly
from tests.e2e.commands import wait_for

PROGRAM = Path(__file__).parents[3] / "environments" / "install.py"
#: A package whose build waits for a file ``go`` beside it, once it has written ``begun``.
BACKEND = r"""
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
FILES = {
    "tiny.py": "VALUE = 7",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "",
}


def build_wheel(folder, config_settings=None, metadata_directory=None):
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        time.sleep(0.02)
    if (HERE / "fail").exists():
        raise SystemExit("no")
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        for path, text in FILES.items():
            wheel.writestr(path, text)
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return the folder of a package that can be built at once."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "go").touch()
    return folder


@pytest.fixture
def pins(tmp_path: Path, package: Path) -> Path:
    path = tmp_path / "small.txt"
    path.write_text(f"# A comment.\ntiny @ {package.as_uri()}\n")
    return path


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Generator[None]:
    started.clear()
    yield
    for process in started:
        process.kill()
        process.communicate()


started: list[subprocess.Popen[str]] = []


def begin(tmp_path: Path, *arguments: object) -> "subprocess.Popen[str]":
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=800)
    return process.returncode, output.strip(), errors


def load() -> Any:
    """Return the program as a module."""
    spec = importlib.util.spec_from_file_location("install", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value(python: str) -> str:
    program = "import tiny; print(tiny.VALUE)"
    return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()


@nightly
def test_failed_install_is_said_and_a_complete_one_is_kept_until_all_are_removed(
    tmp_path: Path, pins: Path, package: Path
) -> None:
    (package / "fail").touch()
    code, output, errors = end(begin(tmp_path, pins))
    assert (code, output) == (1, "")
    assert re.search("expected '.* pip install .*' to succeed, got exit code 1; see", errors)
    (package / "fail").unlink()
    code, python, errors = end(begin(tmp_path, pins))
    assert (code, value(python)) == (0, "7"), errors
    folder = Path(python).parents[1]
    assert folder.parent == tmp_path / "cache" / "cadenza" / "environments"
    assert end(begin(tmp_path, pins)) == (0, python, "")

    (tmp_path / "cache" / "other").mkdir()
    code, output, errors = end(begin(tmp_path, "--remove-all"))
    assert (code, output, errors) == (0, "", f"Removing {folder}\n")
    assert not folder.exists()
    assert (tmp_path / "cache" / "other").exists()


def test_environments_differ_by_their_pins_not_by_comments(tmp_path: Path) -> None:
    install: Any = load()
    texts = ["a==1\nb==2\n", "# Why.\na==1  # because\n\nb==2", "a==1\nb==3\n"]
    folders = []
    for text in texts:
        (tmp_path / "small.txt").write_text(text)
        folders.append(install.environment_folder(tmp_path / "small.txt", tmp_path))
    assert folders[0] == folders[1] != folders[2]
    assert all(folder.name.startswith("small-") for folder in folders)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "/home/me/.cache/cadenza/environments"),
        ({"XDG_CACHE_HOME": "/fast"}, "/fast/cadenza/environments"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/cadenza/environments"),
    ],
)
def test_cache_is_the_users(given: dict[str, str], expected: str) -> None:
    assert load().cache_folder({"HOME": "/home/me", **given}) == Path(expected)


@nightly
def test_environment_of_a_killed_installer_is_made_anew_once_its_child_has_ended(
    tmp_path: Path, pins: Path, package: Path
) -> None:
    (package / "go").unlink()
    first = begin(tmp_path, pins)
    wait_for((package / "begun").exists, first)
    first.kill()
    first.wait()
    second = begin(tmp_path, pins)
    assert "Waiting for another process" in second.stderr.readline()  # pip goes on
    folders = (tmp_path / "cache/cadenza/environments").iterdir()
    (folder,) = (path for path in folders if path.is_dir())
    (folder / "half").touch()
    (package / "go").touch()
    code, python, errors = end(second)
    assert (code, value(python)) == (0, "7"), errors
    assert Path(python).parents[1] == folder
    assert not (folder / "half").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="headers are needed on Linux only")
@pytest.mark.parametrize(
    ("header", "path", "message"),
    [
        ("linux/no-such.h", None, "expected the C header linux/no-such.h, got none; .*apt-get"),
        ("stdio.h", "/nowhere", "expected the C compiler .*, got none; .*apt-get install gcc"),
    ],
)
def test_missing_tools_for_building_are_named(
    tmp_path: Path,
    pins: Path,
    monkeypatch: pytest.MonkeyPatch,
    header: str,
    path: str | None,
    message: str,
) -> None:
    if path is not None:
        monkeypatch.setenv("PATH", path)
    code, output, errors = end(begin(tmp_path, pins, "--needs-header", header))
    assert (code, output) == (1, "")
    assert re.search(message, errors), errors
    assert [p for p in (tmp_path / "cache/cadenza/environments").iterdir() if p.is_dir()] == []
