"""The programs that stand on the pages of the documentation."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cadenza.cli.main import app

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", text(page), flags=re.DOTALL)


def block(page: str, start: str) -> str:
    """Return the program of the page that contains ``start``."""
    return next(found for found in blocks(page) if start in found)


def execute(page: str, *programs: str) -> dict[str, Any]:
    """Run ``programs``, or all of the page, as one; return the names they leave."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(programs or blocks(page)), page, "exec"), names)  # noqa: S102
    return names


def run_line(line, smaller):
    """Run a line of a page, shortened as told; return its exit code and output."""
    for printed, less in smaller.items():
        line = line.replace(printed, less)
    words = shlex.split(line)
    if words[0] == "cd":
        os.chdir(words[1])
        return 0, ""
    if words[0] == "cadenza":
        done = CliRunner().invoke(app, words[1:])
        return done.exit_code, done.output
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def begin_study(folder, monkeypatch):
    """Go to ``folder``, as an author that git knows."""
    monkeypatch.chdir(folder)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.org")
