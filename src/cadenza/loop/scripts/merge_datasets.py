"""Joins datasets of equal features by LeRobot's Python functions.

run.py merge --repo-ids=a,b --roots=DIR,DIR --out=DIR --repo-id=ID --result-json=FILE
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import ScriptError, partial_of, publish, write_result
from .infos import difference, read_info
from .starting import start


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
    """Raise unless all datasets have the first one's features, rate and kind of robot.

    Args:
        roots: Their folders.
        labels: Whether the kind of robot and the names of axes count.

    Raises:
        ScriptError: They differ.
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


if __name__ == "__main__":
    start("merge", main)
