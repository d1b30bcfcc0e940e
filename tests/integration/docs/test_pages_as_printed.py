"""Pages whose programs have no test of their own run as printed, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import environment

DOCS = Path(__file__).parents[3] / "docs"


def run(page: str, folder: Path) -> str:
    """Run a page's programs one after the other and return what they print."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (folder / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_conformal_page_brakes_an_ego_that_would_meet_its_partner(tmp_path):
    printed = run("conformal.md", tmp_path)
    assert float(printed.strip("[]\n").split()[0]) < 0.0


def test_page_on_safety_reports_writes_the_two_files_it_reads(tmp_path):
    assert r"\toprule" in run("reference/safety-report.md", tmp_path)
    written = {path.name for path in (tmp_path / "runs/report").iterdir()}
    assert written == {"three_tables.json", "three_tables.md"}


def test_oscbf_page_runs(tmp_path):
    pytest.importorskip("mujoco")
    run("oscbf.md", tmp_path)


def test_page_on_agents_trains_keeps_guards_and_judges_them(tmp_path):
    printed = run("how-to/train-an-agent.md", tmp_path)
    assert "SACConfig.tau" in printed
    assert (tmp_path / "runs/kept/best").is_file()


def test_home_page_runs(tmp_path):
    mean, interval = run("index.md", tmp_path).split(" ", 1)
    assert 200.0 < float(mean) <= 500.0
    assert interval[0] in "[("
