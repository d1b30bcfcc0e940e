"""What a LeRobotDataset calls the fields of an episode, and how it wants their values.

Axes:  L = steps of an episode, H, W = pixels.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.checks import is_whole, require_instance
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.lerobot_dataset import IMAGE, INDEX_COLUMNS
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.layout import Field

Array = NDArray[Any]

#: Source of a feature that is true in the last step of an episode.
DONE: Final = "episode.done"
#: Source of a feature that is true in the last step of an episode that succeeded.
SUCCESS: Final = "episode.success"
#: Most axes of a feature that the format knows.
MAX_RANK: Final = 5

_NUMBERS: Final = frozenset(
    {"bool", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
#: Names by which the format knows step fields of every store.
_STEP_NAMES: Final = {
    "actions": "action",
    "rewards": "next.reward",
    "terminated": "next.terminated",
    "truncated": "next.truncated",
}
_COLOURS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of a dataset.

    Attributes:
        key: Its name there, without slashes; policies look for ``observation.*`` and ``action``.
        source: Field of the episode, or `DONE` or `SUCCESS`. Of a state field each frame gets the
            entry before its action.
        shape: Shape of one value, ``(1,)`` of a number, ``(H, W, 3)`` of an image.
        dtype: Numpy name of its type, or ``"image"`` for colours, which are stored as PNG.
        names: Names of the components of a vector.
    """

    key: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("key", "source", "dtype"):
            require_instance(f"Feature.{name}", getattr(self, name), str, "give its name")
        require_instance("Feature.shape", self.shape, tuple, "write (1,) for a number")
        if not self.key or "/" in self.key or self.key in INDEX_COLUMNS:
            raise ConfigurationError(
                f"Feature.key: expected a name without '/' and none of {list(INDEX_COLUMNS)}, got "
                f"{self.key!r}."
            )
        if self.dtype != IMAGE and self.dtype not in _NUMBERS:
            raise ConfigurationError(
                f"Feature {self.key!r}: expected the dtype 'image' or one of {sorted(_NUMBERS)}, "
                f"got {self.dtype!r}."
            )
        is_image = len(self.shape) == _COLOURS and self.shape[-1] == _COLOURS
        if self.dtype == IMAGE and not is_image:
            raise ConfigurationError(
                f"Feature {self.key!r}: expected an image of shape (H, W, 3), got {self.shape}."
            )
        has_axes = all(is_whole(size) and size >= 1 for size in self.shape)
        if not has_axes or not 1 <= len(self.shape) <= MAX_RANK:
            raise ConfigurationError(
                f"Feature {self.key!r}: expected 1 to {MAX_RANK} axes of at least 1, got "
                f"{self.shape}; a number has the shape (1,)."
            )
        if self.names is not None:
            require_instance("Feature.names", self.names, tuple, "give a tuple of names or None")
        if self.names is not None and (self.dtype == IMAGE or self.shape != (len(self.names),)):
            raise ConfigurationError(
                f"Feature {self.key!r}: expected names for the components of a vector of shape "
                f"{self.shape}, got {self.names}."
            )

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the dataset's description."""
        names = ["height", "width", "channels"] if self.dtype == IMAGE else self.names
        shape = list(self.shape)
        return {"dtype": self.dtype, "shape": shape, "names": None if names is None else [*names]}

    def values(self, episode: Episode) -> Array:
        """Return one value per frame, shape (L, *shape), of the feature's type.

        Raises:
            UnknownNameError: The episode lacks the source.
            InputError: The values have another shape, would lose their meaning in the feature's
                type, or are not finite; or nobody judged whether the episode succeeded.
        """
        values = self._source(episode)
        if self.dtype == IMAGE and values.shape[1:] == (*self.shape[:2], 4):
            values = values[..., :_COLOURS]  # without transparency
        dtype = np.dtype("uint8" if self.dtype == IMAGE else self.dtype)
        if values.shape[1:] != self.shape and (values.shape[1:], self.shape) != ((), (1,)):
            raise InputError(
                f"Feature {self.key!r}: expected values of shape {self.shape}, got "
                f"{values.shape[1:]} from {self.source!r}."
            )
        converted = values.astype(dtype).reshape(-1, *self.shape)
        is_kept = dtype.kind == "f" or np.array_equal(converted.reshape(values.shape), values)
        if not (is_kept and np.can_cast(values.dtype, dtype, "same_kind")):
            raise InputError(
                f"Feature {self.key!r}: expected values that {dtype} can hold, got {values.dtype} "
                f"from {self.source!r}."
            )
        if dtype.kind == "f" and not np.isfinite(converted).all():
            raise InputError(
                f"Feature {self.key!r}: expected finite values, got NaN or infinity in episode "
                f"{episode.number}."
            )
        return converted

    def _source(self, episode: Episode) -> Array:
        if self.source == DONE:
            return episode.dones()
        if self.source == SUCCESS:
            if episode.success is None:
                raise InputError(
                    f"Feature {self.key!r}: expected an episode that was judged, got number "
                    f"{episode.number}, which was not; leave the feature out."
                )
            return episode.dones() & episode.success
        values = episode.field(self.source)
        return values[:-1] if self.source in episode.states else values


def features_of(fields: Iterable[Field], *, success: bool = False) -> list[Feature]:
    """Return a feature for every field, ``next.done``, and ``next.success`` if all were judged.

    A state field ``obs.a.b`` becomes ``observation.a.b``, or ``observation.state`` if it is the
    only one without colours; ``obs.sensor.front.color`` becomes ``observation.images.front``;
    ``actions`` and ``rewards`` become ``action`` and ``next.reward``.
    """
    fields = list(fields)
    plain = [field for field in fields if field.kind == "state" and not _is_image(field)]
    features = [_feature_of(field, is_only_state=plain == [field]) for field in fields]
    features.append(Feature(key="next.done", source=DONE, shape=(1,), dtype="bool"))
    if success:
        features.append(Feature(key="next.success", source=SUCCESS, shape=(1,), dtype="bool"))
    return features


def _feature_of(field: Field, *, is_only_state: bool) -> Feature:
    shape: tuple[int, ...] = field.shape or (1,)
    if field.kind == "step":
        key = _STEP_NAMES.get(field.name, field.name)
        return Feature(key=key, source=field.name, shape=shape, dtype=field.dtype)
    path = _without("obs", list(field.path), 0)
    if _is_image(field):
        path = _without("color", _without("sensor", path, 0), -1)
        key, image_shape = ".".join(("observation.images", *path)), (*shape[:2], _COLOURS)
        return Feature(key=key, source=field.name, shape=image_shape, dtype=IMAGE)
    key = "observation.state" if is_only_state else ".".join(("observation", *path))
    return Feature(key=key, source=field.name, shape=shape, dtype=field.dtype)


def _without(word: str, path: list[str], place: int) -> list[str]:
    """Return ``path`` without ``word`` at its beginning (0) or end (-1), unless that is all."""
    if len(path) == 1 or path[place] != word:
        return path
    return path[1:] if place == 0 else path[:-1]


def _is_image(field: Field) -> bool:
    is_coloured = len(field.shape) == _COLOURS and field.shape[-1] in (_COLOURS, 4)
    return field.kind == "state" and field.dtype == "uint8" and is_coloured
