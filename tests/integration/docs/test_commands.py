"""The documentation's commands work where the package is installed, without a checkout."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.core import shipped_configs
from tests.e2e.commands import environment

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Where the work begins that a command asks for; everything before it is the command's own.
WORK = (
    "cadenza.benchmark.training.run_training",
    "cadenza.benchmark.training_seeds.SeedRunner.run",
    "cadenza.benchmark.sweep.SweepRunner.run",
    "cadenza.benchmark.suite.SuiteRunner.run",
    "cadenza.benchmark.evaluation_run.run_evaluation",
    "cadenza.benchmark.quickstart.run_quickstart",
    "cadenza.safety.verifier.attacks.attack",
    "cadenza.safety.verifier.run.verify",
    "cadenza.cli.loop_run.work_on",
    "cadenza.loop.orchestrator.preflight.require_ready",
)


class WorkBegunError(Exception):
    """The command got as far as its work."""


def documented_commands() -> list[str]:
    """Return the documented commands that begin some work, each once."""
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    commands = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    names = "train|sweep|suite run|eval run|safety verify|quickstart|loop (run|demo|doctor -)"
    working = rf"cadenza ({names})"
    return [
        command
        for command in dict.fromkeys(commands)
        if re.match(working, command) and "--prereg" not in command  # its page makes that file
    ]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as a wheel installs it, and an empty current folder."""
    package = tmp_path / "site-packages" / "cadenza"
    shutil.copytree(ROOT / "configs", package / "_configs")
    monkeypatch.setattr(shipped_configs, "PACKAGE", package)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "empty"


def test_documentation_shows_documented_commands():
    assert sum("configs/" in command for command in documented_commands()) > 5
    assert any("configs/" not in command for command in documented_commands())


@pytest.mark.parametrize("line", documented_commands())
def test_documented_command_reaches_its_work_without_a_checkout(line, installed, monkeypatch):
    def reached(*_, **__):
        raise WorkBegunError

    for place in WORK:
        monkeypatch.setattr(place, reached)
    if "my-evaluation" in line:  # the file that the tour writes
        Path("runs").mkdir()
        shutil.copy(ROOT / "configs/eval/crossing.yaml", "runs/my-evaluation.yaml")
    if "best.yaml" in line:  # what a sweep writes
        Path("runs/sweep").mkdir(parents=True)
        shutil.copy(ROOT / "configs/train/crossing.yaml", "runs/sweep/best.yaml")
    for zoo in re.findall(r"--zoo (\S+)", line):  # what `zoo train` writes
        made = CliRunner().invoke(app, ["zoo", "train", "scripted", "--out", zoo, "--quiet"])
        assert made.exit_code == 0, made.output
    command = line.replace("crossing_polite", "crossing_chaser")  # the page defines the former
    ended = CliRunner().invoke(app, shlex.split(command)[1:])
    if "doctor" in line:  # looks at this machine, which need not have LeRobot
        assert "configuration" in ended.output
        assert "expected a YAML file" not in ended.output
    else:
        assert isinstance(ended.exception, WorkBegunError), ended.output


def cadenza(*words: str, cwd: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run the package as laid out in ``site``, with nothing of the checkout on the path."""
    return subprocess.run(
        [sys.executable, "-m", "cadenza", *words],
        cwd=cwd,
        env={**environment(), "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def test_installed_package_lists_shows_and_copies_its_configurations(tmp_path):
    site, folder = tmp_path / "site", tmp_path / "empty"
    shutil.copytree(
        ROOT / "src" / "cadenza", site / "cadenza", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "configs", site / "cadenza" / "_configs")
    folder.mkdir()
    listed = cadenza("configs", "list", "--json", cwd=folder, site=site)
    assert '"train/crossing"' in listed.stdout
    shipped = (ROOT / "configs/eval/crossing.yaml").read_text("utf-8")
    assert cadenza("configs", "show", "eval/crossing", cwd=folder, site=site).stdout == shipped
    words = ("configs", "copy", "eval/crossing")
    assert cadenza(*words, cwd=folder, site=site).returncode == 0
    own = folder / "configs/eval/crossing.yaml"
    assert own.read_text("utf-8") == shipped
    assert cadenza(*words, cwd=folder, site=site).returncode == 2  # never over a file of one's own
    # A file of one's own goes before the shipped one of the same name.
    own.write_text("task: rehearsal\npolicies: [zero]\nseeds: [0]\nepisodes_per_seed: 1\n")
    words = ("eval", "run", "configs/eval/crossing.yaml", "--out", "x")
    refused = cadenza(*words, cwd=folder, site=site)
    assert refused.returncode == 2
    assert "rehearsal" in refused.stderr
