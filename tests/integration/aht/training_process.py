"""Child process of the kill test: train the configuration given on the command line.

Prints ``<frames done>`` after every progress report, and ``finished <status>`` at the end.
"""

import sys
from pathlib import Path

import torch

from cadenza.aht.config import load_config
from cadenza.benchmark.training import run_training


def main() -> None:
    torch.set_num_threads(1)
    config_path, *overrides = sys.argv[1:]
    config = load_config(config_path=Path(config_path), overrides=overrides)
    result = run_training(
        config,
        repo_root=config.artifacts_root,  # edits of the source meanwhile must not rename the run
        resume=True,
        progress=lambda done, total, last: say(str(done)),
    )
    say(f"finished {result.outcome.status}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
