"""What an installation without extras can do, and what it says where an extra is missing."""

import json
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.commands import environment

TOUR = (Path(__file__).parents[2] / "docs" / "tour.md").read_text(encoding="utf-8")
#: Imports only what is installed without extras, as if nothing else were there.
PRELUDE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
COMMAND = "sys.argv = ['cadenza', *WORDS]\nfrom cadenza.cli.main import main\nmain()"


@cache
def absent_modules():
    """Return the importable packages that none of the required distributions brings."""
    wanted, required = ["cadenza"], set()
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in required:
            continue
        required.add(name)
        try:
            requirements = map(Requirement, metadata.requires(name) or [])
        except metadata.PackageNotFoundError:  # for another platform
            continue
        wanted += [r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})]
    providers = metadata.packages_distributions().items()
    return [
        module
        for module, distributions in providers
        if required.isdisjoint(name.lower().replace("_", "-") for name in distributions)
    ]


def run(program, cwd, *words):
    names = f"ABSENT = set({json.dumps(absent_modules())})\nWORDS = {json.dumps(words)}\n"
    return subprocess.run(
        [sys.executable, "-c", names + PRELUDE + program],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def test_packages_of_extras_are_absent_here():
    assert {"scipy", "sqlalchemy", "pyarrow"} <= set(absent_modules())
    assert {"torch", "numpy", "typer", "daqp"}.isdisjoint(absent_modules())


def test_filter_tasks_and_partners_work_without_extras(tmp_path):
    program = "\n".join(re.findall(r"```python\n(.*?)```", TOUR, flags=re.DOTALL))
    done = run(program, tmp_path)
    assert done.stdout.startswith("closest 0.4"), done.stderr


@pytest.mark.parametrize("words", [("partners", "list"), ("configs", "list")])
def test_command_works_without_extras(words, tmp_path):
    assert run(COMMAND, tmp_path, *words).returncode == 0


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("train", "crossing"), "train"),
        (("safety", "verify", "--steps", "100", "--partners", "1"), "train"),
        (("loop", "status"), "loop"),
        (("dash",), "dash"),
    ],
)
def test_command_names_the_extra_it_lacks(words, extra, tmp_path):
    done = run(COMMAND, tmp_path, *words)
    assert done.returncode == 14, done.stderr
    assert f"run: pip install 'cadenza[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("from cadenza.loop import JobStore", "loop"),
        ("from cadenza.web import create_app", "dash"),
    ],
)
def test_a_name_tells_the_extra_it_lacks(line, extra, tmp_path):
    done = run(line, tmp_path)
    assert f"cadenza[{extra}]" in done.stderr.splitlines()[-1]
