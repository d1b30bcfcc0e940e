"""Small values that everything shares: errors, arrays, spaces and types."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from cadenza.core import errors
from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import InputError
from cadenza.core.spaces import BoxSpace
from cadenza.core.types import EpisodeState


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
    assert (str(error), error.errno) == ("path 'x': expected a path inside /y", None)


def test_require_shape_with_another_shape_names_both():
    require_shape("position", np.zeros((2, 3)), (2, 3))
    with pytest.raises(InputError, match=r"position: expected shape \(3,\), got \(2,\)"):
        require_shape("position", np.zeros(2), (3,))


@pytest.mark.parametrize(
    ("array", "found"),
    [
        *(([[1.0, 2.0], [bad, 4.0]], r"\(1, 0\) \(1 of 4") for bad in (np.nan, np.inf, -np.inf)),
        ([np.inf, -np.inf], r"\(0,\) \(2 of 2"),  # not fooled by their sum
    ],
)
def test_require_finite_with_a_bad_entry_names_index_and_count(array, found):
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(InputError, match=f"goal: .* at index {found} entries"),
    ):
        require_finite("goal", np.array(array))


def test_require_finite_accepts_finite_entries_whose_sum_overflows():
    with warnings.catch_warnings(action="error"):
        require_finite("goal", np.array([1.7e308, 1.7e308]))
        require_finite("every second", np.full((4, 4), 1e200)[::2, ::2])
    require_finite("empty", np.zeros(0))
    require_finite("integers", np.array([1, 2]))


def test_box_space_shape_becomes_a_tuple_of_ints_that_are_not_negative():
    space = BoxSpace(torch.float32, torch.Size([np.int64(3), 2]))
    assert space.shape == (3, 2)
    assert type(space.shape) is tuple
    assert BoxSpace(torch.float32, [4]).shape == (4,)
    with pytest.raises(InputError, match=r"BoxSpace.shape: expected sizes >= 0, got \(2, -1\)"):
        BoxSpace(np.float32, (2, -1))


def test_episode_states_have_the_published_numbers():
    assert {state.name: state.value for state in EpisodeState} == {
        "RUNNING": 0,
        "INTERRUPTED": 1,
        "TERMINAL": 2,
        "INITIAL": 3,
    }


def test_light_modules_do_not_load_torch():
    code = """
import sys
import cadenza.core
from cadenza.core import arrays, errors, files, log_sinks, provenance, runlog
from cadenza.core import schedules, seeding, spaces, strict_json, threads, timing, types
heavy = sorted({"torch", "wandb", "scipy", "matplotlib", "pydantic"} & set(sys.modules))
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_require_shape_lets_a_named_axis_have_any_size():
    require_shape("rows", np.zeros((7, 3)), ("rows", 3))
    for other in ((7, 4), (7,), (7, 3, 1)):
        with pytest.raises(
            InputError, match=r"rows: expected shape \(rows, 3\), got .*; do this\."
        ):
            require_shape("rows", np.zeros(other), ("rows", 3), "do this")
