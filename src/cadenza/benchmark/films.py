"""Episodes as pictures: a strip of moments, or a film; or, of any task, as numbers.

Formats:  ``.png`` holds a few moments side by side, ``.gif`` every second tick; ``.mp4`` every
          tick and needs the package imageio-ffmpeg. ``.json`` holds what everybody saw and did at
          each tick, of any task.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import build_env, build_partner, build_safety_driver
from cadenza.benchmark.cells import LANES, EvaluationPlan, initial_state_seed
from cadenza.benchmark.episodes import EpisodeTag, playing_id
from cadenza.benchmark.lanes import has_lanes, open_lanes, record_in_lanes
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, ego_seat, load_policy
from cadenza.benchmark.tasks import OptionValue, get_task
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_json, atomic_writer

#: Moments of a strip.
MOMENTS: Final = 4
#: Ticks from one picture of a GIF to the next.
GIF_STRIDE: Final = 2
_FORMATS: Final = (".png", ".gif", ".mp4", ".json")
_TRACE: Final = ".json"


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
        InputError: The ending is none of ``.png``, ``.gif``, ``.mp4`` and ``.json``.
    """
    config = EnvConfig(task=task, options=dict(options or {}))
    played = PartnerConfig(class_name=partner)
    in_lanes = has_lanes(get_task(task), config, played, SafetyConfig())
    return _film(out, _Played(config, ego, played, seed, artifacts_root, in_lanes))


def film_cell(
    out: Path, plan: EvaluationPlan, *, ego: str, partner: str, start: int, artifacts_root: Path
) -> dict[str, Any]:
    """Play episode ``start`` of the first seed of an evaluation's cell again; see `film`.

    Raises:
        UnknownNameError: The plan names no such policy or partner.
    """
    condition, seed = plan.conditions[0], plan.seeds[0]
    played = _Played(
        condition.env_of(plan.env),
        plan.policy(ego).source,
        condition.partner_of(plan.partner(partner).partner),
        initial_state_seed(seed, start),
        artifacts_root,
        plan.engine is not None and plan.engine.conditions[condition.name] == LANES,
        condition.safety,
    )
    return _film(out, played)


def has_pictures(plan: EvaluationPlan) -> bool:
    """Return whether the task of an evaluation can be drawn; builds and closes it."""
    partner = plan.conditions[0].partner_of(plan.partners[0].partner)
    config = plan.conditions[0].env_of(plan.env)
    try:
        env = build_env(config, root_seed=0, render_mode="rgb_array", partner=partner)
    except ConfigurationError:
        return False
    env.close()
    return True


class _Played(NamedTuple):
    """What is filmed: task, source of the ego, partner, start, folder of addresses, and how."""

    env: EnvConfig
    ego: str
    partner: PartnerConfig
    seed: int
    root: Path
    in_lanes: bool
    safety: SafetyConfig = SafetyConfig()


def _film(out: Path, played: _Played) -> dict[str, Any]:
    if out.suffix not in _FORMATS:
        raise InputError(f"film: expected a file ending in {', '.join(_FORMATS)}, got {out.name}.")
    drawn = out.suffix != _TRACE
    kept: list[Any] = []
    info: Mapping[str, Any] = {}
    rate = 0.0
    for step in _steps(played, "rgb_array" if drawn else None):
        info = step.info
        if drawn:
            kept.append(step.env.render())
            rate = 1.0 / step.env.control_timestep
        else:
            kept.append(step.told())
    if not drawn:
        atomic_write_json(out, kept)
        return {"steps": len(kept) - 1, "info": dict(info)}
    with atomic_writer(out) as file:
        if out.suffix == ".png":
            last = len(kept) - 1
            moments = [kept[round(last * k / (MOMENTS - 1))] for k in range(MOMENTS)]
            _images([np.hstack(moments)])[0].save(file, "PNG")
        elif out.suffix == ".gif":
            _write_gif(kept[::GIF_STRIDE], file, round(1000.0 * GIF_STRIDE / rate))
        else:
            _write_mp4(kept, file, rate)
    return {"steps": len(kept) - 1, "info": dict(info)}


class _Step(NamedTuple):
    """What one step led to; the first has no actions."""

    env: Any
    obs: Mapping[str, Any]
    actions: Mapping[str, NDArray[Any]]
    reward: float
    info: Mapping[str, Any]

    def told(self) -> dict[str, Any]:
        """Return what everybody saw after it, what they did before, and the reward."""
        seen = {uid: np.asarray(told["state"]).tolist() for uid, told in self.obs["agent"].items()}
        done = {uid: np.asarray(action).tolist() for uid, action in self.actions.items()}
        return {"states": seen, "actions": done, "reward": self.reward}


def _steps(played: _Played, render_mode: str | None) -> Iterator[_Step]:
    """Yield the steps of what a cell would play."""

    def make_policy(seat: EgoSeat) -> EgoPolicy:
        return load_policy(played.ego, seat=seat, artifacts_root=played.root)

    seed = played.seed
    env = build_env(played.env, root_seed=0, render_mode=render_mode, partner=played.partner)
    with closing(env):
        obs, info = env.reset(seed=seed)
        yield _Step(env, obs, {}, 0.0, info)
        if played.in_lanes:
            for actions in _actions_in_lanes(played, make_policy):
                obs, reward, _, _, info = env.step(actions)
                yield _Step(env, obs, actions, float(reward), info)
            return
        partner = build_partner(played.partner, env=env)
        ego, guard = (
            make_policy(ego_seat(env, env.ego_uid)),
            build_safety_driver(env, played.safety),
        )
        partner.reset(seed=seed)
        ego.reset(seed=seed)
        if guard is not None:
            guard.begin_run(seed)
            guard.begin_episode()
        over = False
        while not over:
            action = ego.act(obs)
            done = partner.act(obs)
            if guard is not None:
                action = guard.step(action, partner_id=playing_id(partner)).action
            actions = {env.ego_uid: action, env.partner_uid: done}
            obs, reward, terminated, truncated, info = env.step(actions)
            yield _Step(env, obs, actions, float(reward), info)
            over = terminated or truncated


def _actions_in_lanes(
    played: _Played, make_policy: Callable[[EgoSeat], EgoPolicy]
) -> list[dict[str, NDArray[Any]]]:
    """Return the actions of an episode; the environment of one copy has the bytes of a lane."""
    tag = EpisodeTag(
        seed=0,
        episode_idx=0,
        initial_state_seed=played.seed,
        policy="film",
        condition="film",
        partner=played.partner.class_name,
    )
    opened = open_lanes(
        env=played.env,
        partner=played.partner,
        safety=played.safety,
        lanes=1,
        make_policy=make_policy,
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
