"""Blends two datasets at a given share of frames, by joining them and leaving episodes out.

Method:  with F_d and F_m frames and a share r of the mix, the set that is too large loses
         episodes, evenly spread, until F_m / (F_d + F_m) is r as nearly as whole episodes allow.
Limits:  at least one episode of each stays; frames are drawn evenly by whoever trains.
"""

import importlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .files import ScriptError, partial_of, publish
from .infos import read_info
from .merge_datasets import merge, require_equal_features


def blend(
    *,
    repo_id: str,
    root: str | None,
    episodes: str | None,
    mix_repo_id: str,
    mix_root: str,
    ratio: float,
    out: Path,
) -> tuple[Path, list[int]]:
    """Join a dataset and a mix.

    Args:
        repo_id: Name of the dataset.
        root: Its folder; None for one that LeRobot finds or downloads.
        episodes: Episodes of it that count, as ``[0, 1]``; None for all.
        mix_repo_id: Name of the mix.
        mix_root: Its folder.
        ratio: Share of frames from the mix, in (0, 1).
        out: Folder of the joined dataset; one of an earlier attempt is made anew.

    Returns:
        The joined dataset's folder, and the episodes of it to train on.

    Raises:
        ScriptError: The two differ in features.
    """
    if root is None:
        datasets = importlib.import_module("lerobot.datasets.lerobot_dataset")
        root = str(datasets.LeRobotDataset(repo_id).root)
    require_equal_features([Path(root), Path(mix_root)], labels=False)
    own_count = int(read_info(Path(root))["total_episodes"])
    partial = partial_of(out)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        view = relabelled(Path(mix_root), like=Path(root), view=Path(folder) / "mix")
        merged = merge([(repo_id, Path(root)), (mix_repo_id, view)], "local/blend", partial)
    lengths = [int(length) for length in merged.meta.episodes["length"]]
    publish(partial, out)
    own = list(range(own_count)) if episodes is None else sorted(set(json.loads(episodes)))
    if not own or own[-1] >= own_count or own_count == len(lengths):
        raise ScriptError(
            f"expected episodes below {own_count} and a mix with episodes, got {own[-1:]} and "
            f"{len(lengths) - own_count} mixed ones."
        )
    return out, chosen(lengths, own, list(range(own_count, len(lengths))), ratio)


def relabelled(root: Path, *, like: Path, view: Path) -> Path:
    """Make ``view``, the dataset ``root`` with the axis names and kind of robot of ``like``."""
    info, other = read_info(root), read_info(like)
    info["robot_type"] = other.get("robot_type")
    for key, feature in info["features"].items():
        feature["names"] = other["features"][key].get("names")
    shutil.copytree(root / "meta", view / "meta")
    (view / "meta" / "info.json").write_text(json.dumps(info), encoding="utf-8")
    for part in ("data", "videos"):
        if (root / part).is_dir():
            (view / part).symlink_to((root / part).resolve(), target_is_directory=True)
    return view


def chosen(
    lengths: Sequence[int], own: Sequence[int], mixed: Sequence[int], ratio: float
) -> list[int]:
    """Return the episodes whose frames come from ``mixed`` at a share of about ``ratio``.

    Args:
        lengths: Frames of every episode.
        own: Episodes of the dataset, at least one.
        mixed: Episodes of the mix, at least one.
        ratio: The share, in (0, 1).
    """
    own_frames = sum(lengths[episode] for episode in own)
    mixed_frames = sum(lengths[episode] for episode in mixed)
    if mixed_frames < ratio * (own_frames + mixed_frames):
        own = _spread(lengths, own, mixed_frames * (1.0 - ratio) / ratio)
    else:
        mixed = _spread(lengths, mixed, own_frames * ratio / (1.0 - ratio))
    return sorted([*own, *mixed])


def _spread(lengths: Sequence[int], episodes: Sequence[int], frames: float) -> list[int]:
    """Return evenly spread episodes of about ``frames`` frames in all, at least one episode."""
    total = sum(lengths[episode] for episode in episodes)
    count = max(1, min(len(episodes), round(len(episodes) * frames / total)))
    return [episodes[index * len(episodes) // count] for index in range(count)]
