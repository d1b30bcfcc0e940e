"""Box2D environments that show images, such as car racing."""

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium import error

from cadenza.core.errors import InputError, MissingExtraError
from cadenza.learn.env.replayable import ReplayableEnv
from cadenza.learn.env.wrappers import FrameStack, ScaledFloatFrame, WarpFrame


def make_vision_box2d_env(
    environment_id: str,
    rank: int,
    seed: int = 0,
    frame_stack: int = 3,
    use_float_scaling: bool = True,
) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return a function that makes an environment with small grey images.

    Args:
        environment_id: Gymnasium id of an environment that shows colour images.
        rank: Number of this environment; its episodes are seeded from ``seed + rank``.
        seed: Seed of the first environment, >= 0.
        frame_stack: Number of images side by side on the channel axis, >= 1.
        use_float_scaling: Floats in [-1, 1] instead of bytes.

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
