"""Policies of jobs: checkpoints named by their path."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cadenza.benchmark.policies import EgoPolicy, EgoSeat, load_policy, policy_weights_sha256
from cadenza.core.checkpoints import LOCAL_URI_SCHEME


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPolicy:
    """A checkpoint that was checked once and is loaded for a seat later.

    Attributes:
        path: The payload.
        sha256: Digest of its weights.
    """

    path: Path
    sha256: str

    def load(self, seat: EgoSeat) -> EgoPolicy:
        """Return the policy for ``seat``.

        Raises:
            CheckpointError: The file was changed since, or the policy was made for another seat.
        """
        return load_policy(
            LOCAL_URI_SCHEME + self.path.name,
            seat=seat,
            artifacts_root=self.path.parent,
            weights_sha256=self.sha256,
        )


def open_policy(path: Path, *, task: str) -> TrainedPolicy:
    """Return the checkpoint ``path``, a policy of ``task``.

    Raises:
        CheckpointError: It is missing, damaged or of another task.
    """
    source = LOCAL_URI_SCHEME + path.name
    digest = policy_weights_sha256(source, artifacts_root=path.parent, task=task)
    return TrainedPolicy(path=path, sha256=cast("str", digest))  # an address always has weights
