"""Storing what there is to log, so that loggers can pull it when they write.

Keys:     ``group/name``. A windowed key may carry its length: ``windowed[LENGTH]:group/name``.
"""

import re
import warnings
from collections import UserDict, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.checks import whole_number
from cadenza.core.errors import CadenzaError, CheckpointKeyError, InputError, refuse
from cadenza.learn.callback import Callback, accepts_other_names

#: Start of a windowed key that carries its window length.
WINDOW_MARK: Final = "windowed["
_WINDOWED_KEY: Final = re.compile(r"windowed\[([1-9][0-9]*)\]:(.+)", re.DOTALL)

Scalar = float | torch.Tensor
#: What is a mixin's in a saved state; older files have the last three.
_SAVED: Final = (
    *("scalar_logs", "windowed_scalar", "windowed_scalar_cumulative"),
    *("hist_logs", "image_logs", "video_logs"),
)


class MixinOrderError(CadenzaError, AttributeError):
    """`LoggingMixin` stands behind the class whose state it should add to."""


class LazyScalars(UserDict[str, Any]):
    """Last value by key; one on another device is fetched when it is read."""

    def __getitem__(self, key: str) -> float:
        """Return the value as a float."""
        value = self.data[key]
        if isinstance(value, torch.Tensor):
            value = float((value if value.numel() == 1 else value.mean()).item())
            self.data[key] = value
        return value

    def keep_mean(self, key: str, values: torch.Tensor) -> None:
        """Keep the mean of ``values``, computed when it is read."""
        self.data[key] = values.detach()

    def keep(self, group: str, values: Mapping[str, Scalar]) -> None:
        """Keep numbers and tensors, which must not change until they are read."""
        self.data.update({f"{group}/{name}": value for name, value in values.items()})

    def __setitem__(self, key: str, value: Scalar) -> None:
        """Keep a number, or a copy of a tensor of one element."""
        if not isinstance(value, torch.Tensor):
            self.data[key] = _number(key, value)
            return
        if value.numel() != 1:
            got = f"a tensor of {value.numel()} elements"
            refuse(
                InputError, f"log key {key!r}", expected="one number", got=got, do="log its mean"
            )
        self.data[key] = value.item() if value.device.type == "cpu" else value.detach().clone()


class LoggingMixin:
    """Adds logging calls to a class: ``class X(LoggingMixin, Callback)``, in this order.

    Nothing is written here; loggers pull the attributes.

    Attributes:
        scalar_logs: Last number by key.
        windowed_scalar: Latest numbers by key, in windows of bounded length.
        windowed_scalar_cumulative: Sum of all numbers of a window ever logged, by key.
        image_logs: Image by key, (height, width, channels).
        hist_logs: Values of a histogram by key: a tensor, a list, or a window of numbers.
        video_logs: Frames and frames per second by key.
    """

    def __init__(self, *, default_window_length: int = 250, **kwargs: Any) -> None:
        """Make empty stores; a window whose key carries no length has ``default_window_length``."""
        whole_number("LoggingMixin.default_window_length", default_window_length, least=1)
        super().__init__(**kwargs)
        self.scalar_logs: LazyScalars = LazyScalars()
        self.windowed_scalar: dict[str, deque[float]] = {}
        self.windowed_scalar_cumulative: dict[str, float] = {}
        self.image_logs: dict[str, torch.Tensor] = {}
        self.hist_logs: dict[str, torch.Tensor | list[float] | deque[float]] = {}
        self.video_logs: dict[str, tuple[NDArray[Any], int]] = {}
        self._default_window_length = default_window_length
        self._dropped_images: set[str] = set()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn when a callback hides the mixin's state."""
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[: cls.__mro__.index(LoggingMixin)]:
            if issubclass(base, Callback) and not issubclass(base, LoggingMixin):
                warnings.warn(_order_message(cls), UserWarning, stacklevel=2)
                return

    def log_scalar(self, key: str, value: Scalar) -> None:
        """Keep the last value of ``key``, one number."""
        self.scalar_logs[key] = value

    def log_mean(self, key: str, value: torch.Tensor) -> None:
        """Keep the mean of floating-point ``value``, which must not change until it is read."""
        self.scalar_logs.keep_mean(key, value)

    def log_windowed_scalar(self, key: str, value: Scalar | Iterable[Scalar]) -> None:
        """Add to the window of ``key``; loggers write its mean and the sum of all values ever.

        Of ``windowed[LENGTH]:group/name`` the length of the first use stays.

        Raises:
            InputError: A malformed key, or values that are no numbers.
        """
        numbers = _numbers(key, value)
        if key not in self.windowed_scalar:
            length = window_length(key)
            self.windowed_scalar[key] = deque(maxlen=length or self._default_window_length)
        self.windowed_scalar[key].extend(numbers)
        total = self.windowed_scalar_cumulative.get(key, 0.0)
        self.windowed_scalar_cumulative[key] = total + sum(numbers)

    def log_image(self, key: str, value: torch.Tensor) -> None:
        """Keep the last image, (height, width, channels); others are dropped with a warning."""
        if value.dim() == 3:
            self.image_logs[key] = value.detach()
        elif key not in self._dropped_images:
            self._dropped_images.add(key)
            told = f"log_image {key!r}: expected shape (height, width, channels), got "
            told += f"{tuple(value.shape)}; nothing is kept. This is logged once per key."
            warnings.warn(told, UserWarning, stacklevel=2)

    def log_video(self, key: str, value: tuple[NDArray[Any], int]) -> None:
        """Keep the last video: frames and frames per second."""
        self.video_logs[key] = value

    def log_histogram(self, key: str, value: Scalar | Iterable[Scalar]) -> None:
        """Replace the values of ``key`` by several, or add one number to its window.

        Raises:
            InputError: ``value`` holds something that is no number.
        """
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            self.hist_logs[key] = value.detach().clone()
        elif isinstance(value, torch.Tensor | float | int | np.generic):
            window = self.hist_logs.get(key)
            if not isinstance(window, deque):
                window = deque[float](maxlen=self._default_window_length)
                self.hist_logs[key] = window
            window.extend(_numbers(key, value))
        else:
            self.hist_logs[key] = _numbers(key, value)

    def logs(self) -> dict[str, Any]:
        """Return scalars and windows: what `load_logs` takes over.

        Images, videos and histograms are left out: they are large, and the next steps log new ones.
        """
        # Copied before it is looked at: a collector's thread may be logging.
        windows = list(self.windowed_scalar.items())
        return {
            "scalar_logs": {key: self.scalar_logs[key] for key in list(self.scalar_logs)},
            "windowed_scalar": {key: (list(each), each.maxlen) for key, each in windows},
            "windowed_scalar_cumulative": dict(self.windowed_scalar_cumulative),
        }

    def load_logs(self, state: Mapping[str, Any]) -> None:
        """Take over what `logs` returned."""
        self.scalar_logs = LazyScalars(_part(state, "scalar_logs"))
        self.windowed_scalar = {
            key: deque(values, maxlen=length)
            for key, (values, length) in _part(state, "windowed_scalar").items()
        }
        self.windowed_scalar_cumulative = dict(_part(state, "windowed_scalar_cumulative"))

    def state_dict(self) -> dict[str, Any]:
        """Return the parent's state plus `logs`."""
        return {**self._parent("state_dict")(), **self.logs()}

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over logs (with ``load_hparams``) and give the rest to the parent."""
        rest = dict(state_dict)
        if load_hparams:
            self.load_logs(rest)
            for name in _SAVED:
                rest.pop(name, None)
        self._parent("load_state_dict")(rest, load_network, load_optimizer, load_hparams)

    def _refuse_hidden_state(self) -> NoReturn:
        """Refuse to leave this state out; only a callback in front of the mixin calls this."""
        raise MixinOrderError(_order_message(type(self)))

    def _parent(self, method: str) -> Any:
        """Return a method of the next class."""
        try:
            return getattr(super(), method)
        except AttributeError as error:
            raise MixinOrderError(_order_message(type(self))) from error


def window_length(key: str) -> int | None:
    """Return the window length that a key carries, or None."""
    if WINDOW_MARK not in key:
        return None
    match = _WINDOWED_KEY.fullmatch(key)
    if match is None:
        raise InputError(
            f"windowed key {key!r}: expected 'windowed[LENGTH]:group/name' with LENGTH >= 1; "
            "correct the key."
        )
    return int(match[1])


def without_window(key: str) -> str:
    """Return the key without its window length: what people want to read."""
    match = _WINDOWED_KEY.fullmatch(key)
    return key if match is None else match[2]


def _order_message(cls: type) -> str:
    order = " -> ".join(base.__name__ for base in cls.__mro__)
    return (
        f"{cls.__name__}: expected LoggingMixin before the class whose state it adds to, got the "
        f"order {order}; write class {cls.__name__}(LoggingMixin, Callback)."
    )


def _part(state: Mapping[str, Any], name: str) -> Any:
    """Return one part of a loaded state."""
    try:
        return state[name]
    except KeyError as error:
        raise CheckpointKeyError(
            f"logging state: expected {name!r}, got {sorted(state)}; load a state of an object of "
            "this class, or pass load_hparams=False."
        ) from error


def _number(key: str, value: object) -> float:
    """Return one number as a Python number."""
    try:
        return value if isinstance(value, float | int) else float(cast("Any", value))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"log key {key!r}: expected a number, got {type(value).__name__}: {error}."
        ) from error


def _numbers(key: str, value: object) -> list[float]:
    """Return one number or several as a list of Python numbers."""
    if isinstance(value, torch.Tensor):
        return cast("list[float]", cast("Any", value.detach()).reshape(-1).tolist())
    if isinstance(value, np.ndarray):
        return cast("NDArray[Any]", value).reshape(-1).tolist()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        items = cast("Iterable[object]", value)
        return [number for item in items for number in _numbers(key, item)]
    return [_number(key, value)]
