import warnings
from collections import deque

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointKeyError, InputError
from cadenza.learn import Callback
from cadenza.learn.callback import BatchCallback
from cadenza.learn.callbacks.logging_mixin import LazyScalars, LoggingMixin, MixinOrderError


class Logs(LoggingMixin, Callback):
    """A callback that logs."""


def test_scalar_keeps_the_last_value_as_a_float():
    logs = Logs()
    logs.log_scalar("training/loss", 3.0)
    logs.log_scalar("training/loss", torch.tensor([0.5], requires_grad=True))
    logs.log_scalar("training/count", np.int64(4))
    assert dict(logs.scalar_logs) == {"training/loss": 0.5, "training/count": 4.0}
    assert type(logs.scalar_logs["training/loss"]) is float


def test_window_keeps_the_last_values_and_the_sum_of_all():
    logs = Logs(default_window_length=2)
    for _ in range(3):
        logs.log_windowed_scalar("one", 1)
    logs.log_windowed_scalar("list", [3, 3])
    assert logs.windowed_scalar["one"] == deque([1, 1])
    assert logs.windowed_scalar_cumulative == {"one": 3, "list": 6}
    assert list(logs.windowed_scalar["list"]) == [3, 3]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(2.5), [2.5]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        (np.float32(1.5), [1.5]),
        (np.array(1.5), [1.5]),
        (np.array([[1.0], [2.0]]), [1.0, 2.0]),
        ([torch.tensor(1.0), 2], [1.0, 2.0]),
        ((x for x in (1.0, 4.0)), [1.0, 4.0]),
        ([], []),
    ],
)
def test_window_takes_numbers_tensors_and_iterables(value, expected):
    logs = Logs()
    logs.log_windowed_scalar("a", value)
    assert list(logs.windowed_scalar["a"]) == expected
    assert logs.windowed_scalar_cumulative["a"] == sum(expected)


def test_window_length_of_the_key_is_fixed_by_the_first_use():
    logs = Logs(default_window_length=7)
    logs.log_windowed_scalar("windowed[3]:episode/reward", [1, 2, 3, 4])
    logs.log_windowed_scalar("episode/reward", 1)
    assert logs.windowed_scalar["windowed[3]:episode/reward"].maxlen == 3
    assert list(logs.windowed_scalar["windowed[3]:episode/reward"]) == [2, 3, 4]
    assert logs.windowed_scalar["episode/reward"].maxlen == 7
    assert Logs().windowed_scalar == {}
    other = Logs()
    other.log_windowed_scalar("a", 1)
    assert other.windowed_scalar["a"].maxlen == 250


@pytest.mark.parametrize(
    "key",
    [
        "windowed[0]:a",
        "windowed[-1]:a",
        "windowed[x]:a",
        "windowed[3]a",
        "windowed[3]:",
        "windowed[",
        "a/windowed[3]:b",
    ],
)
def test_malformed_windowed_key_is_refused(key):
    with pytest.raises(InputError, match=r"expected 'windowed\[LENGTH\]:group/name'"):
        Logs().log_windowed_scalar(key, 1)


def test_image_of_three_axes_is_kept_and_others_warn_once_per_key():
    logs = Logs()
    logs.log_image("good", torch.zeros(2, 3, 1, requires_grad=True))
    assert logs.image_logs["good"].shape == (2, 3, 1)
    assert not logs.image_logs["good"].requires_grad
    message = r"log_image 'flat': expected shape .* got \(2, 3\)"
    with pytest.warns(UserWarning, match=message):
        logs.log_image("flat", torch.zeros(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs.log_image("flat", torch.zeros(2, 3))
    assert "flat" not in logs.image_logs


def test_histogram_is_replaced_by_several_values_and_grows_by_single_ones():
    logs = Logs(default_window_length=2)
    logs.log_histogram("h", torch.tensor([1.0, 2.0], requires_grad=True))
    assert logs.hist_logs["h"].tolist() == [1.0, 2.0]
    assert not logs.hist_logs["h"].requires_grad
    logs.log_histogram("h", [5, torch.tensor(6.0)])
    assert logs.hist_logs["h"] == [5, 6.0]
    for value in (1, torch.tensor(2.0), np.float64(3.0)):
        logs.log_histogram("h", value)
    assert logs.hist_logs["h"] == deque([2.0, 3.0], maxlen=2)


def filled():
    logs = Logs(default_window_length=3)
    logs.log_scalar("a", 1.5)
    logs.log_windowed_scalar("windowed[2]:w", [1, 2, 3])
    logs.log_histogram("h", [1.0])
    logs.log_image("i", torch.zeros(1, 1, 1))
    logs.log_video("v", (np.zeros(1), 1))
    return logs


def test_state_has_scalars_and_windows_and_nothing_large():
    assert filled().state_dict() == {
        "scalar_logs": {"a": 1.5},
        "windowed_scalar": {"windowed[2]:w": ([2, 3], 2)},
        "windowed_scalar_cumulative": {"windowed[2]:w": 6},
    }


@pytest.mark.parametrize("make", [Logs, filled], ids=["fresh", "used"])
def test_loaded_windows_go_on_where_they_were(make):
    state, logs = filled().state_dict(), make()
    logs.load_state_dict(state)
    logs.log_windowed_scalar("windowed[2]:w", 10)
    assert list(logs.windowed_scalar["windowed[2]:w"]) == [3, 10]
    assert logs.windowed_scalar_cumulative["windowed[2]:w"] == 16
    assert logs.scalar_logs["a"] == 1.5
    assert state == filled().state_dict()  # loading leaves the caller's dict alone


def test_logs_are_not_loaded_without_hparams():
    logs = Logs()
    logs.load_state_dict({}, load_hparams=False)
    logs.load_state_dict(filled().state_dict(), True, True, False)
    assert dict(logs.scalar_logs) == {}


def test_state_without_logs_is_an_error_that_is_a_key_error():
    with pytest.raises(CheckpointKeyError, match=r"expected 'scalar_logs', got \['other'\]"):
        Logs().load_state_dict({"other": 1})
    with pytest.raises(KeyError):
        Logs().load_state_dict({})


def test_state_hidden_by_a_wrong_order_is_refused_and_not_lost():
    with pytest.warns(UserWarning, match="expected LoggingMixin before"):

        class Wrong(Callback, LoggingMixin):
            pass

    with pytest.warns(UserWarning, match="expected LoggingMixin before"):

        class OwnState(BatchCallback, LoggingMixin):
            def state_dict(self):
                return super().state_dict() | {"mine": 1}

    order = r"got the order Wrong -> Callback -> LoggingMixin -> object; write class Wrong\("
    with pytest.raises(MixinOrderError, match=order):
        Wrong().state_dict()
    with pytest.raises(AttributeError, match=order):
        Wrong().load_state_dict({})
    with pytest.raises(AttributeError, match="OwnState -> BatchCallback -> Callback -> Logging"):
        OwnState().state_dict()


def test_tensor_elsewhere_is_fetched_at_the_first_read_and_only_then():
    class Elsewhere(torch.Tensor):
        """Stands for a tensor on a GPU: counts how often it is brought to the host."""

        fetched = 0

        @property
        def device(self):
            return torch.device("cuda")

        def item(self):
            Elsewhere.fetched += 1
            return super().item()

    scalars = LazyScalars()
    value = torch.tensor(2.0).as_subclass(Elsewhere)
    scalars["a"] = value
    value.add_(1.0)  # what is logged is the value at that time
    assert Elsewhere.fetched == 0
    assert (scalars["a"], scalars["a"], Elsewhere.fetched) == (2.0, 2.0, 1)
    assert list(scalars.values()) == [2.0]
