import pytest

from cadenza.core import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InputError, ValueError),
        (errors.ConfigurationError, ValueError),
        (errors.ConfigurationKeyError, KeyError),
        (errors.CheckpointNotFoundError, FileNotFoundError),
        (errors.CheckpointKeyError, KeyError),
        (errors.PreconditionError, AssertionError),
        (errors.NotReadyError, RuntimeError),
        (errors.UnknownNameError, KeyError),
        (errors.CheckpointError, RuntimeError),
        (errors.IntegrityError, RuntimeError),
        (errors.StorageError, OSError),
        (errors.MissingExtraError, ImportError),
        (errors.DeviceUnavailableError, RuntimeError),
        (errors.SinkError, RuntimeError),
    ],
)
def test_error_is_both_ours_and_the_builtin(error, builtin):
    assert issubclass(error, errors.CadenzaError)
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    "kind", [errors.UnknownNameError, errors.ConfigurationKeyError, errors.CheckpointKeyError]
)
def test_key_errors_show_their_message_without_quotes(kind):
    assert str(kind("expected one of a, b; got 'c'")) == "expected one of a, b; got 'c'"
    assert str(kind()) == ""


def test_storage_error_without_a_number_shows_its_message():
    error = errors.StorageError("path 'x': expected a path inside /y")
    assert str(error) == "path 'x': expected a path inside /y"
    assert error.errno is None
