import json

import pytest
import typer

from cadenza.cli.exit_codes import ExitCode
from cadenza.cli.output import exit_code_of, print_json, typed_exits
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
    ],
)
def test_each_expected_error_has_its_exit_code(error, code):
    assert exit_code_of(error) is code


def test_a_bug_of_our_own_has_no_exit_code():
    assert exit_code_of(ZeroDivisionError()) is None


def test_no_two_outcomes_share_an_exit_code():
    assert len({int(code) for code in ExitCode}) == len(ExitCode.__members__)


def test_typed_exits_writes_the_message_once_and_ends_with_the_code(capsys):
    with pytest.raises(typer.Exit) as ended, typed_exits(as_json=True):
        raise errors.ConfigurationError("expected seed >= 0, got -1")
    streams = capsys.readouterr()
    assert ended.value.exit_code == ExitCode.USAGE
    assert streams.err == "error: expected seed >= 0, got -1\n"
    assert json.loads(streams.out) == {
        "error": {"kind": "ConfigurationError", "message": "expected seed >= 0, got -1"}
    }


def test_typed_exits_lets_a_bug_through_with_its_traceback():
    with pytest.raises(ZeroDivisionError), typed_exits():
        raise ZeroDivisionError


def test_print_json_refuses_numbers_json_cannot_hold():
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"loss": float("nan")})


def test_interrupt_says_how_to_go_on(capsys):
    with pytest.raises(typer.Exit), typed_exits():
        raise KeyboardInterrupt
    assert "--resume" in capsys.readouterr().err
