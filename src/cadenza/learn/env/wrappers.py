"""Image wrappers: smaller grey frames, floats in [-1, 1], the last frames stacked.

`make_vision_box2d_env` makes Box2D environments that show images, such as car racing, with them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import error, spaces
from numpy.typing import NDArray

from cadenza.core.errors import InputError, MissingExtraError
from cadenza.core.extras import load_extra
from cadenza.learn.env.stepping import ReplayableEnv

#: Largest value of a pixel.
_WHITE: Final = 255
#: Weights of red, green and blue in brightness. Source: ITU-R BT.601.
_LUMA: Final = (0.299, 0.587, 0.114)


class WarpFrame(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Turns images into grey ones of another size: (height, width, 1), uint8.

    Pixels are averaged over the area they cover.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], width: int = 84, height: int = 84) -> None:
        """Wrap ``env``, whose observations are colour images, (X, Y, 3), uint8; sizes are pixels.

        Raises:
            InputError: Observations of another kind.
        """
        _require_image(env.observation_space, "WarpFrame", channels=3)
        super().__init__(env)
        self._size = (width, height)
        self.observation_space = spaces.Box(0, _WHITE, (height, width, 1), np.uint8)

    def observation(  # pyright: ignore[reportIncompatibleMethodOverride] -- promised name
        self, frame: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Return ``frame``, (X, Y, 3), as a grey image, (height, width, 1)."""
        image = load_extra("PIL.Image")
        grey = image.fromarray((frame @ np.array(_LUMA)).astype(np.float32))
        small = np.asarray(grey.resize(self._size, image.Resampling.BOX))
        return np.rint(small).clip(0, _WHITE).astype(np.uint8)[:, :, None]


class ScaledFloatFrame(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Turns bytes into float32 between -1 and 1: ``(x / 255 - 0.5) * 2``."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wrap ``env``, whose observations are uint8 arrays.

        Raises:
            InputError: Observations of another kind.
        """
        space = _require_image(env.observation_space, "ScaledFloatFrame", channels=None)
        super().__init__(env)
        self.observation_space = spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """Return ``observation`` as floats between -1 and 1."""
        return (np.asarray(observation, np.float32) / np.float32(_WHITE) - np.float32(0.5)) * 2


class LazyFrames:
    """Frames side by side on the channel axis, joined when someone looks.

    Stacks that follow each other share the frames they have in common, so a memory of many stacks
    is as small as one of single frames until they are joined.
    """

    def __init__(self, frames: Sequence[NDArray[Any]]) -> None:
        """Keep ``frames``, each (X, Y, C), without copying them."""
        self._frames: list[NDArray[Any]] | None = list(frames)
        self._joined: NDArray[Any] | None = None

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """Return the frames as one array, (X, Y, C * n)."""
        return np.array(self._array(), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        """Return the size of the first axis."""
        return len(self._array())

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the joined array."""
        return self._array()[index]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis."""
        return iter(self._array())

    def count(self) -> int:
        """Return the size of the channel axis."""
        return self._array().shape[-1]

    def frame(self, index: int) -> NDArray[Any]:
        """Return one channel, (X, Y)."""
        return self._array()[..., index]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the joined array."""
        return self._array().shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the joined array."""
        return self._array().dtype

    def _array(self) -> NDArray[Any]:
        if self._joined is None:
            self._joined = np.concatenate(cast("list[NDArray[Any]]", self._frames), axis=-1)
            self._frames = None  # let go of what the joined array repeats
        return self._joined


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stacks the last ``n_frames`` images on the channel axis, as `LazyFrames`.

    At a reset, the first image stands for those before it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], n_frames: int) -> None:
        """Wrap ``env``, whose observations are arrays of one type with a channel axis last.

        Raises:
            InputError: Fewer than one frame, or observations that are no `Box` with axes.
        """
        space = env.observation_space
        if n_frames < 1 or not isinstance(space, spaces.Box) or not space.shape:
            raise InputError(
                "FrameStack: expected n_frames >= 1 and observations that are a Box with a channel "
                f"axis, got n_frames = {n_frames} and {space}."
            )
        super().__init__(env)
        self._frames: deque[NDArray[Any]] = deque(maxlen=n_frames)
        box = cast("Any", space)  # gymnasium leaves the element type of spaces open
        self.observation_space = spaces.Box(
            np.concatenate([box.low] * n_frames, axis=-1),
            np.concatenate([box.high] * n_frames, axis=-1),
            dtype=box.dtype,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        """Start an episode; the first image fills the stack."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([observation] * cast("int", self._frames.maxlen))
        return LazyFrames(self._frames), info

    def step(self, action: Any) -> tuple[LazyFrames, Any, bool, bool, dict[str, Any]]:
        """Step and push the new image onto the stack."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(observation)
        return LazyFrames(self._frames), reward, terminated, truncated, info


def _require_image(
    space: gymnasium.Space[Any], wrapper: str, *, channels: int | None
) -> "spaces.Box[Any]":
    """Return ``space`` if it is one of bytes, with as many channels as asked for."""
    is_bytes = isinstance(space, spaces.Box) and cast("Any", space).dtype == np.uint8
    has_channels = channels is None or (
        space.shape is not None and len(space.shape) == 3 and space.shape[2] == channels
    )
    if not is_bytes or not has_channels:
        wanted = "a uint8 Box" if channels is None else f"a uint8 Box of shape (X, Y, {channels})"
        raise InputError(
            f"{wrapper}: expected observations that are {wanted}, got {space}; put this wrapper "
            "directly around an environment that shows images."
        )
    return cast("spaces.Box[Any]", space)


def make_vision_box2d_env(
    environment_id: str,
    rank: int,
    seed: int = 0,
    frame_stack: int = 3,
    use_float_scaling: bool = True,
) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return a function that makes an environment with small grey images.

    Its episodes are seeded from ``seed + rank``; ``frame_stack`` images lie side by side on the
    channel axis, as floats in [-1, 1] or as bytes.

    Raises:
        InputError: ``frame_stack`` is smaller than 1.
        MissingExtraError: When called: Box2D is not installed.
    """
    if frame_stack < 1:
        raise InputError(f"make_vision_box2d_env: expected frame_stack >= 1, got {frame_stack}.")

    def make() -> gymnasium.Env[Any, Any]:
        try:
            env: gymnasium.Env[Any, Any] = gymnasium.make(environment_id)
        except error.DependencyNotInstalled as missing:
            raise MissingExtraError(
                f"{environment_id}: expected Box2D, got '{missing}'; pip install 'cadenza[box2d]'."
            ) from missing
        env = WarpFrame(env)
        if use_float_scaling:
            env = ScaledFloatFrame(env)
        if frame_stack > 1:
            env = FrameStack(env, frame_stack)
        return ReplayableEnv(env, root_seed=seed + rank, index=rank)

    return make
