import subprocess

import pytest

from tests.e2e.commands import LIMIT_S, arguments, environment


def shell(line):
    """Run one line of bash in which ``cadenza`` stands for the command."""
    words = " ".join(f"'{word}'" for word in arguments())
    return subprocess.run(
        ["/bin/bash", "-c", f'cadenza() {{ {words} "$@"; }}; {line}'],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("words", ["partners list", "tasks list --json", "--version", "--help"])
def test_full_standard_output_ends_with_one_line_and_the_storage_code(words):
    done = shell(f"cadenza {words} > /dev/full")
    assert done.returncode == 11, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("error: stdout: expected")
    assert "No space left on device" in first
    assert "Traceback" not in done.stderr
