import subprocess
import sys

from tests.e2e.commands import environment

#: Libraries that take longer to import than the whole answer to --help may take.
HEAVY = (
    *("torch", "numpy", "scipy", "gymnasium", "pydantic", "matplotlib", "structlog"),
    *("sqlalchemy", "ray", "anthropic", "openai"),
)


def test_command_line_imports_nothing_heavy_before_a_command_runs():
    program = "import sys, cadenza.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert not set(HEAVY) & set(done.stdout.split())
