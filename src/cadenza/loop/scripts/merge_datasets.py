"""Joins datasets of equal features by LeRobot's Python functions; blends two at a given share.

run.py merge --repo-ids=a,b --roots=DIR,DIR --out=DIR --repo-id=ID --result-json=FILE

Blend:   with F_d and F_m frames and a share r of the mix, the set that is too large loses
         episodes, evenly spread, until F_m / (F_d + F_m) is r as nearly as whole episodes allow.
Labels:  names of axes and kind of robot are the dataset's; features that only one has are left out.
Limits:  at least one episode of each stays; frames are drawn evenly by whoever trains.
"""

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import (
    ScriptError,
    difference,
    partial_of,
    publish,
    read_info,
    start,
    write_result,
)


def main(words: Sequence[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="merge", allow_abbrev=False)
    parser.add_argument("--repo-ids", help="names of the sources, comma-separated")
    parser.add_argument("--roots", "--sources", required=True, help="their folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repo-id", required=True)
    parser.add_argument("--result-json", type=Path)
    given = parser.parse_args(words)
    roots = [Path(root) for root in given.roots.split(",")]
    names = given.repo_ids.split(",") if given.repo_ids else [f"local/{r.name}" for r in roots]
    if len(names) != len(roots):
        parser.error(f"expected a name per folder, got {len(names)} for {len(roots)}")
    try:
        require_equal_features(roots)
        partial = partial_of(given.out)
        merged = merge(list(zip(names, roots, strict=True)), given.repo_id, partial)
    except ScriptError as error:
        sys.stderr.write(f"merge: {error}\n")
        return 2
    publish(partial, given.out)
    if given.result_json is not None:
        write_result(
            given.result_json,
            {
                "repo_id": given.repo_id,
                "root": str(given.out),
                "episodes": int(merged.num_episodes),
                "frames": int(merged.num_frames),
            },
        )
    return 0


def require_equal_features(roots: Sequence[Path], *, labels: bool = True) -> None:
    """Raise `ScriptError` unless all datasets have the first one's features and rate.

    ``labels`` says whether the kind of robot and the names of axes count, too.
    """
    first = read_info(roots[0])
    for root in roots[1:]:
        found = difference(first, read_info(root), labels=labels)
        if found is not None:
            raise ScriptError(
                f"expected {root} to have the features of {roots[0]}, got {found}; datasets that "
                "differ cannot be joined."
            )


def merge(sources: Sequence[tuple[str, Path]], repo_id: str, out: Path) -> Any:
    """Return LeRobot's dataset of all episodes of ``sources``, written to ``out``."""
    tools = importlib.import_module("lerobot.datasets.dataset_tools")
    datasets = importlib.import_module("lerobot.datasets.lerobot_dataset")
    parts = [datasets.LeRobotDataset(name, root=root) for name, root in sources]
    return tools.merge_datasets(parts, output_repo_id=repo_id, output_dir=out)


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
    """Join a dataset and a mix in ``out``, a folder that is made anew.

    ``root`` is None for a dataset that LeRobot finds or downloads; ``episodes``, as ``[0, 1]``, are
    those of it that count, None for all. ``ratio`` is the share of frames from the mix, in (0, 1).
    Returned are the joined dataset's folder, and the episodes of it to train on.
    """
    if root is None:
        datasets = importlib.import_module("lerobot.datasets.lerobot_dataset")
        root = str(datasets.LeRobotDataset(repo_id).root)
    own_count = int(read_info(Path(root))["total_episodes"])
    partial = partial_of(out)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        own_root = reduced(Path(root), to=Path(mix_root), out=Path(folder) / "data")
        other = reduced(Path(mix_root), to=Path(root), out=Path(folder) / "mix")
        require_equal_features([own_root, other], labels=False)
        view = relabelled(other, like=own_root, view=Path(folder) / "view")
        merged = merge([(repo_id, own_root), (mix_repo_id, view)], "local/blend", partial)
    lengths = [int(length) for length in merged.meta.episodes["length"]]
    publish(partial, out)
    own = list(range(own_count)) if episodes is None else sorted(set(json.loads(episodes)))
    if not own or own[-1] >= own_count or own_count == len(lengths):
        raise ScriptError(
            f"expected episodes below {own_count} and a mix with episodes, got {own[-1:]} and "
            f"{len(lengths) - own_count} mixed ones."
        )
    return out, chosen(lengths, own, list(range(own_count, len(lengths))), ratio)


def reduced(root: Path, *, to: Path, out: Path) -> Path:
    """Return the dataset ``root`` without the features that the dataset ``to`` lacks.

    Rewards and ends of recorded demonstrations are such; rollouts do not have them.
    """
    lacking = sorted(read_info(root)["features"].keys() - read_info(to)["features"].keys())
    if not lacking:
        return root
    tools = importlib.import_module("lerobot.datasets.dataset_tools")
    datasets = importlib.import_module("lerobot.datasets.lerobot_dataset")
    tools.remove_feature(datasets.LeRobotDataset("local/all", root=root), lacking, out, "local/few")
    return out


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
    """Return the episodes that give ``mixed`` a share of about ``ratio``, in (0, 1), of the frames.

    ``lengths`` has the frames of every episode; ``own`` and ``mixed`` have at least one each.
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


if __name__ == "__main__":
    start("merge", main)
