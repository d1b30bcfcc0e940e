"""Errors as bounded text in shared memory."""

import pytest

from cadenza.core.errors import ConfigurationError, InputError, OnlineDataWorkerError
from cadenza.stream.error_envelope import (
    ErrorEnvelope,
    clear_envelope,
    read_envelope,
    write_envelope,
)
from cadenza.stream.layout import BOOKKEEPING, ERROR_BYTES, StoreLayout
from cadenza.stream.slots import SlotStore


@pytest.fixture
def store() -> SlotStore:
    return SlotStore.create(StoreLayout(slots=1, steps=1, producers=2, fields=BOOKKEEPING))


class MuteError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except (KeyError, MuteError) as caught:
        return caught


def test_error_comes_back_as_text_with_its_traceback(store) -> None:
    write_envelope(store, 1, ErrorEnvelope.of(raised(KeyError("joint"))))
    found = read_envelope(store, 1)
    assert found is not None
    assert (found.kind, found.message) == ("builtins.KeyError", "'joint'")
    assert "raise error" in found.trace
    assert not found.is_final
    assert read_envelope(store, 0) is None
    told = found.error(1)
    assert isinstance(told, OnlineDataWorkerError)
    assert isinstance(told, RuntimeError)
    assert str(told).startswith("producer 1 failed with builtins.KeyError: 'joint'\n\nTraceback")
    clear_envelope(store, 1)
    assert read_envelope(store, 1) is None


@pytest.mark.parametrize("character", ["x", "ü", "\U0001f916", "\0"])
def test_any_text_fits(store, character) -> None:
    envelope = ErrorEnvelope(kind="K" * 9999, message=character * 99999, trace=character * 99999)
    write_envelope(store, 0, envelope)
    assert 0 < store.producers["error_length"][0] <= ERROR_BYTES
    found = read_envelope(store, 0)
    assert found is not None
    assert found.message.startswith(character)
    assert found.message.endswith(character)
    assert " ... " in found.message


def test_error_without_text_is_told_all_the_same(store) -> None:
    envelope = ErrorEnvelope.of(raised(MuteError()))
    assert envelope.message == "(its text could not be made: RuntimeError)"


@pytest.mark.parametrize(
    ("error", "at_first", "later"),
    [
        (ConfigurationError("c"), True, True),
        (ImportError("i"), True, True),
        (InputError("i"), True, False),
        (TypeError("t"), True, False),
        (AttributeError("a"), True, False),
        (OSError("o"), False, False),
    ],
)
def test_errors_that_would_repeat_are_final(store, error, at_first, later) -> None:
    for has_worked, is_final in ((False, at_first), (True, later)):
        write_envelope(store, 0, ErrorEnvelope.of(error, has_worked=has_worked))
        found = read_envelope(store, 0)
        assert found is not None
        assert found.is_final is is_final


def test_half_written_error_is_none(store) -> None:
    write_envelope(store, 0, ErrorEnvelope(kind="k", message="m"))
    store.producers["error_length"][0] -= 1
    assert read_envelope(store, 0) is None


def test_error_without_traceback_says_nothing_of_one() -> None:
    assert str(ErrorEnvelope(kind="hang", message="m").error(3)) == "producer 3 failed with hang: m"
