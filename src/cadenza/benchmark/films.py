"""Episodes as pictures: a strip of moments, or a film.

Formats:  ``.png`` holds a few moments side by side, ``.gif`` every second tick; ``.mp4`` every
          tick and needs the package imageio-ffmpeg.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.cells import EvaluationPlan, initial_state_seed
from cadenza.benchmark.episodes import EpisodeTag
from cadenza.benchmark.lanes import has_lanes, open_lanes, record_in_lanes
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, ego_seat, load_policy
from cadenza.benchmark.tasks import OptionValue, get_task
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_writer

#: Moments of a strip.
MOMENTS: Final = 4
#: Ticks from one picture of a GIF to the next.
GIF_STRIDE: Final = 2
_FORMATS: Final = (".png", ".gif", ".mp4")


def film(
    out: Path,
    *,
    task: str,
    ego: str,
    partner: str,
    seed: int = 0,
    options: Mapping[str, OptionValue] | None = None,
    artifacts_root: Path = Path(),
) -> dict[str, Any]:
    """Play one episode and write its pictures; return its ``steps`` and the last ``info``.

    The ending of ``out`` chooses the format.

    Raises:
        ConfigurationError: Task, partner or policy do not fit, or MP4 cannot be written.
        InputError: The ending is none of ``.png``, ``.gif`` and ``.mp4``.
    """
    config = EnvConfig(
        task=task, episode_length=get_task(task).episode_length, options=dict(options or {})
    )
    return _film(out, config, ego, PartnerConfig(class_name=partner), seed, artifacts_root)


def film_cell(
    out: Path, plan: EvaluationPlan, *, ego: str, partner: str, start: int, artifacts_root: Path
) -> dict[str, Any]:
    """Play episode ``start`` of the first seed of an evaluation's cell again; see `film`.

    Raises:
        UnknownNameError: The plan names no such policy or partner.
    """
    condition, seed = plan.conditions[0], plan.seeds[0]
    return _film(
        out,
        condition.env_of(plan.env),
        plan.policy(ego).source,
        condition.partner_of(plan.partner(partner).partner),
        initial_state_seed(seed, start),
        artifacts_root,
    )


def _film(
    out: Path, config: EnvConfig, ego: str, partner: PartnerConfig, seed: int, root: Path
) -> dict[str, Any]:
    if out.suffix not in _FORMATS:
        raise InputError(f"film: expected a file ending in {', '.join(_FORMATS)}, got {out.name}.")
    frames, info, rate = _play(config, ego, partner, seed, root)
    with atomic_writer(out) as file:
        if out.suffix == ".png":
            last = len(frames) - 1
            moments = [frames[round(last * k / (MOMENTS - 1))] for k in range(MOMENTS)]
            _images([np.hstack(moments)])[0].save(file, "PNG")
        elif out.suffix == ".gif":
            _write_gif(frames[::GIF_STRIDE], file, round(1000.0 * GIF_STRIDE / rate))
        else:
            _write_mp4(frames, file, rate)
    return {"steps": len(frames) - 1, "info": info}


def _play(
    config: EnvConfig, ego_source: str, partner_config: PartnerConfig, seed: int, root: Path
) -> tuple[list[NDArray[np.uint8]], dict[str, Any], float]:
    """Return pictures, last info and pictures per second of what a cell would play."""

    def make_policy(seat: EgoSeat) -> EgoPolicy:
        return load_policy(ego_source, seat=seat, artifacts_root=root)

    env = build_env(config, root_seed=0, render_mode="rgb_array", partner=partner_config)
    with closing(env):
        obs, info = env.reset(seed=seed)
        frames: list[NDArray[np.uint8]] = [env.render()]
        if has_lanes(get_task(config.task), config, partner_config):
            for actions in _actions_in_lanes(config, partner_config, seed, make_policy):
                info = env.step(actions)[-1]
                frames.append(env.render())
            return frames, dict(info), 1.0 / env.control_timestep
        partner = build_partner(partner_config, env=env)
        ego = make_policy(ego_seat(env, env.ego_uid))
        partner.reset(seed=seed)
        ego.reset(seed=seed)
        over = False
        while not over:
            actions = {env.ego_uid: ego.act(obs), env.partner_uid: partner.act(obs)}
            obs, _, terminated, truncated, info = env.step(actions)
            frames.append(env.render())
            over = terminated or truncated
        return frames, dict(info), 1.0 / env.control_timestep


def _actions_in_lanes(
    config: EnvConfig,
    partner: PartnerConfig,
    seed: int,
    make_policy: Callable[[EgoSeat], EgoPolicy],
) -> list[dict[str, NDArray[Any]]]:
    """Return the actions of an episode; the environment of one copy has the bytes of a lane."""
    tag = EpisodeTag(
        seed=0,
        episode_idx=0,
        initial_state_seed=seed,
        policy="film",
        condition="filter_off",
        partner=partner.class_name,
    )
    opened = open_lanes(
        env=config, partner=partner, safety=SafetyConfig(), lanes=1, make_policy=make_policy
    )
    with opened as world:
        return record_in_lanes(world, tag)[2]


def _images(frames: list[NDArray[np.uint8]]) -> list[Any]:
    pillow = load_extra("PIL.Image")
    return [pillow.fromarray(frame) for frame in frames]


def _write_gif(frames: list[NDArray[np.uint8]], file: Any, duration_ms: int) -> None:
    coverage = load_extra("PIL.Image").Quantize.MAXCOVERAGE  # keeps the colours of small things
    first, *others = (image.quantize(128, method=coverage) for image in _images(frames))
    first.save(
        file,
        "GIF",
        save_all=True,
        append_images=others,
        duration=duration_ms,
        loop=0,
        optimize=True,
    )


def _write_mp4(frames: list[NDArray[np.uint8]], file: Any, rate: float) -> None:
    imageio = load_extra("imageio.v2")
    try:
        imageio.mimwrite(file, frames, format="mp4", fps=rate)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"film: expected a writer of MP4 files, got {error}; run pip install imageio-ffmpeg, "
            "or ask for a .gif."
        ) from error
