"""A command in a fork of the warm interpreter behaves as in an interpreter of its own."""

import signal
import subprocess

import pytest

from tests.e2e.commands import LIMIT_S, Started, cadenza, warm


@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "list", "--json"),
        ("train", "absent.yaml"),
        ("eval", "verify", "nowhere", "--json"),
    ],
)
def test_fork_prints_and_ends_as_a_fresh_interpreter(words, tmp_path):
    assert cadenza(*words, cwd=tmp_path) == cadenza(*words, cwd=tmp_path, fresh=True)


def test_script_has_its_words_folder_variables_and_exit_code(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, os, sys\n"
        "atexit.register(print, 'end', file=sys.stderr)\n"
        "print(__name__, sys.argv[1:], os.getcwd(), os.environ['WORD'])\n"
        "print(os.getsid(0) == os.getpid())\n"
        "sys.exit(7)\n"
    )
    started = Started(script, "a b", cwd=tmp_path, variables={"WORD": "said"}, new_session=True)
    done = started.outcome(LIMIT_S)
    assert done.code == 7
    assert done.out == f"__main__ ['a b'] {tmp_path} said\nTrue\n"
    assert done.err == "end\n"


def test_signal_and_time_limit_end_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(600)\n")
    started = Started(script, cwd=tmp_path)
    assert started.process.poll() is None
    started.process.send_signal(signal.SIGTERM)
    assert started.outcome(LIMIT_S).code == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        warm(script, cwd=tmp_path, timeout=0.2)
