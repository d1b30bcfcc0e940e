from pathlib import Path

import pytest

from tests.e2e.commands import REPOSITORY


@pytest.fixture(scope="session")
def short_training() -> list[str | Path]:
    """Words after ``cadenza`` that train for 2 560 frames below the current folder."""
    return [
        "train",
        REPOSITORY / "configs" / "train" / "mpe_cooperative_push.yaml",
        "total_frames=2560",
        "checkpoint_every=512",
        "happo.rollout_length=256",
        "happo.batch_size=128",
    ]
