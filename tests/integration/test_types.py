"""Types as a user's editor sees them, with pyright's strict rules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
USER_PROGRAM = Path(__file__).parents[1] / "data" / "typed_user.py"


def pyright(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this environment's pyright on what this environment installs."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [str(folder / "pyright"), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_an_editor_knows_a_user_s_types_and_underlines_mistakes(tmp_path):
    strict = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(strict))
    (tmp_path / "program.py").write_text(USER_PROGRAM.read_text())
    done = pyright("--pythonpath", sys.executable, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_public_names_have_types(tmp_path):
    done = pyright("--verifytypes", "cadenza", "--ignoreexternal", "--outputjson", cwd=tmp_path)
    assert json.loads(done.stdout)["typeCompleteness"]["completenessScore"] >= 0.98
