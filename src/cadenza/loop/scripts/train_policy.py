"""Starts LeRobot's training so that it can be killed and started again with the same words.

    run.py train --output_dir=DIR --steps=N ... [--mix.root= --mix.repo_id= --mix.ratio=]

Started anew:  a finished checkpoint in DIR is gone on from, since LeRobot refuses a folder that
               exists; a folder without one is removed. Only a training that starts over draws the
               samples of an unbroken one.
Mix:           two datasets are joined beside DIR, and episodes of one are left out until the
               frames of the mix make up the asked share. LeRobot draws frames evenly.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from .files import ScriptError, start

_logger = logging.getLogger(__name__)
#: Words that this script reads and keeps from LeRobot.
_MIX: Final = "--mix."
LAST: Final = Path("checkpoints/last")


def main(words: Sequence[str]) -> int:
    """Become LeRobot's training; return an exit code only if there is nothing to train."""
    given = {key: text for key, _, text in (word.partition("=") for word in words)}
    plain = [word for word in words if not word.startswith(_MIX)]
    if "--output_dir" not in given:
        return _start(plain)
    output = Path(given["--output_dir"])
    done = finished_step(output)
    if done is not None and done >= int(given.get("--steps", "0")):
        _logger.info("training had ended at step %d", done)
        return 0
    if done is not None:
        _logger.info("training continues at step %d", done)
        return _start(resume_words(output, given.get("--steps")))
    if output.exists():
        _logger.info("removing %s, which holds no finished checkpoint", output)
        shutil.rmtree(output)
    try:
        return _start(plain if "--mix.root" not in given else _with_mix(plain, given, output))
    except ScriptError as error:
        sys.stderr.write(f"train: {error}\n")
        return 2


def resume_words(output: Path, steps: str | None) -> list[str]:
    """Return the words that make LeRobot go on from the last checkpoint in ``output``."""
    config = output / LAST / "pretrained_model" / "train_config.json"
    return [
        f"--config_path={config}",
        "--resume=true",
        *([] if steps is None else [f"--steps={steps}"]),
    ]


def finished_step(output: Path) -> int | None:
    """Return the step of the last finished checkpoint; None if there is none.

    LeRobot names a checkpoint the last one after all of its files are there.
    """
    try:
        state = json.loads((output / LAST / "training_state" / "training_step.json").read_text())
        step = state["step"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


def _with_mix(words: Sequence[str], given: dict[str, str], output: Path) -> list[str]:
    from .merge_datasets import blend

    root, episodes = blend(
        repo_id=given["--dataset.repo_id"],
        root=given.get("--dataset.root"),
        episodes=given.get("--dataset.episodes"),
        mix_repo_id=given["--mix.repo_id"],
        mix_root=given["--mix.root"],
        ratio=float(given["--mix.ratio"]),
        out=output.with_name(f"{output.name}_blend"),
    )
    replaced = ("--dataset.repo_id", "--dataset.root", "--dataset.episodes")
    kept = [word for word in words if word.partition("=")[0] not in replaced]
    return [
        *kept,
        "--dataset.repo_id=local/blend",
        f"--dataset.root={root}",
        f"--dataset.episodes={episodes}",
    ]


def _start(words: Sequence[str]) -> NoReturn:
    """Become LeRobot's program, which keeps this process's id."""
    program = str(Path(sys.executable).with_name("lerobot-train"))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, [program, *words])  # noqa: S606 - no shell is what is wanted


if __name__ == "__main__":
    start("train", main)
