import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import typer

from cadenza.cli.output import (
    ExitCode,
    OutputClosedError,
    TerminationError,
    exit_code_of,
    print_json,
    print_table,
    print_text,
    typed_exits,
)
from cadenza.core import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CheckpointError("c"), ExitCode.DAMAGED_DATA),
        (errors.IntegrityError("i"), ExitCode.DAMAGED_DATA),
        (errors.StorageError("s"), ExitCode.STORAGE),
        (errors.MissingExtraError("m"), ExitCode.MISSING_EXTRA),
        (errors.NotReadyError("n"), ExitCode.NOT_READY),
        (errors.ConfigurationError("c"), ExitCode.USAGE),
        (errors.UnknownNameError("u"), ExitCode.USAGE),
        (errors.InputError("i"), ExitCode.BAD_INPUT),
        (FileNotFoundError("f"), ExitCode.USAGE),
        (PermissionError("p"), ExitCode.STORAGE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (TerminationError(), ExitCode.TERMINATED),
        (MemoryError("m"), ExitCode.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ExitCode.OUT_OF_MEMORY),
        (OutputClosedError("o"), ExitCode.OUTPUT_CLOSED),
        (ZeroDivisionError(), None),
        (RuntimeError("expected a square matrix"), None),
    ],
)
def test_each_expected_error_has_its_exit_code_and_a_bug_of_our_own_none(error, code):
    assert exit_code_of(error) is code


def test_typed_exits_writes_the_message_once_and_ends_with_the_code(capsys):
    with pytest.raises(typer.Exit) as ended, typed_exits(as_json=True):
        raise errors.ConfigurationError("expected seed >= 0, got -1")
    streams = capsys.readouterr()
    assert ended.value.exit_code == ExitCode.USAGE
    assert streams.err == "error: expected seed >= 0, got -1\n"
    assert json.loads(streams.out) == {
        "error": {"kind": "ConfigurationError", "message": "expected seed >= 0, got -1"}
    }


def test_print_json_refuses_numbers_json_cannot_hold():
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"loss": float("nan")})


def test_sigterm_ends_the_body_with_its_own_code_and_restores_the_handler(capsys):
    before = signal.getsignal(signal.SIGTERM)
    left: list[bool] = []

    def body() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60.0)
        finally:
            left.append(True)

    with pytest.raises(typer.Exit) as ended, typed_exits():
        body()
    assert ended.value.exit_code == ExitCode.TERMINATED
    assert left == [True]
    assert "--resume" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_deleted_current_folder_is_a_message(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(typer.Exit) as ended, typed_exits():
        pytest.fail("the body ran")
    assert ended.value.exit_code == ExitCode.STORAGE
    assert "current folder: expected one that exists, got a deleted one" in capsys.readouterr().err


def test_next_file_does_not_get_the_number_of_a_closed_stream():
    for n in range(3):
        told = f"os.write(3, os.readlink('/proc/self/fd/{n}').encode())"
        body = f"lambda: ({told}, os._exit(0))"
        look = f"import os, cadenza.cli.main as m; m.build_command = {body}; m.main()"
        line = f'exec "{sys.executable}" -c "{look}" 3>&1 {n}>&-'
        assert subprocess.check_output(["/bin/sh", "-c", line], text=True) == os.devnull


def test_typed_exits_outside_the_main_thread_leaves_signals_alone():
    codes: list[int] = []

    def body() -> None:
        with pytest.raises(typer.Exit) as ended, typed_exits():
            raise errors.InputError("expected a finite action, got nan")
        codes.append(ended.value.exit_code)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert codes == [ExitCode.BAD_INPUT]


def test_a_message_keeps_its_lines_where_a_command_wants_them(capsys):
    with pytest.raises(typer.Exit), typed_exits(keep_lines=True, as_json=True):
        raise errors.ConfigurationError("expected keys, got:\n  songs\n")
    shown = capsys.readouterr()
    assert shown.err == "error: expected keys, got:\n  songs\n"
    assert json.loads(shown.out)["error"]["message"] == "expected keys, got:\n  songs"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.StorageError(errno.ENOSPC, "a.pt: free space"), "a.pt: free space"),
        (errors.ConfigurationError("expected YAML, got\n  a tab\n"), "expected YAML, got a tab"),
        (
            PermissionError(errno.EACCES, "Permission denied", "a.yaml"),
            "a.yaml: the file system refused with 'Permission denied'; check path and permissions",
        ),
        (
            MemoryError("no 3 TB"),
            "expected the job to fit into memory, got: no 3 TB; lower the sizes of the "
            "configuration (environments, rollout length, network) or the number of workers",
        ),
    ],
)
def test_error_messages_are_sentences_on_one_line_without_error_numbers(error, text, capsys):
    with pytest.raises(typer.Exit), typed_exits():
        raise error
    assert capsys.readouterr().err == f"error: {text}\n"


class _Refusing(io.StringIO):
    """A stdout whose every flush fails with one error number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def flush(self) -> None:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("write", [lambda: print_json({"a": 1}), lambda: print_table("t", "a", [])])
def test_full_stdout_is_an_error_that_says_so(write, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", _Refusing(errno.ENOSPC))
    with pytest.raises(typer.Exit) as ended, typed_exits(as_json=True):
        write()
    assert ended.value.exit_code == ExitCode.STORAGE
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("error: stdout: expected to write the result, got 'No space left on")


def _raise_input_error() -> None:
    raise errors.InputError("got nan")


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (lambda: print_text("line"), ExitCode.OUTPUT_CLOSED, ""),
        (_raise_input_error, ExitCode.BAD_INPUT, "error: got nan\n"),
    ],
)
def test_a_reader_that_left_is_no_error_and_hides_none(body, code, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", _Refusing(errno.EPIPE))
    with pytest.raises(typer.Exit) as ended, typed_exits(as_json=True):
        body()
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("closed", [True, False])
def test_missing_stdout_is_an_error_that_says_so(closed, monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream if closed else None)
    with pytest.raises(
        errors.StorageError, match="expected to write the result, got 'it is closed'"
    ):
        print_text("line")


def test_text_a_stream_cannot_show_is_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_text("r\u00e9sum\u00e9")
    print_table("t", ("name",), [("\u00e9",)])
    print_json({"name": "\u00e9 \udcc3"})
    text, *_, last = raw.getvalue().decode("ascii").splitlines()
    assert text == r"r\xe9sum\xe9"
    assert json.loads(last) == {"name": "\u00e9 \udcc3"}
