"""What the ego learners on rows share: the alternation of act and observe, and their states.

Axes:  N = environments, S = row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_seat_rows import SeatOutcome, SeatRows
from cadenza.aht.types import EventLogger
from cadenza.core.errors import CheckpointError, NotReadyError
from cadenza.core.types import Observation
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY, MlpPolicy

#: Layout version of `EgoSeatTrainer.training_state`.
TRAINING_STATE_VERSION: Final = 1


class StoredLearner(Protocol):
    """The part of a learner that a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers and random streams."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue where `state_dict` was taken."""
        ...


class EgoSeatTrainer(ABC):
    """Learns the ego's policy from the rows of its seat.

    Args:
        cfg: Checked configuration.
        seat: Reads rows off observations.
        stored: What checkpoints hold under `LEARNER_KEY`.
        logger: Receives events of figures.
    """

    #: Where the learner's state lies in checkpoints.
    LEARNER_KEY: ClassVar[str]

    def __init__(
        self,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        stored: StoredLearner,
        logger: EventLogger | None,
    ) -> None:
        self._cfg, self._seat, self._stored, self._logger = cfg, seat, stored, logger
        self._pending = False
        self._frames = 0

    @classmethod
    def _seat_of(cls, cfg: EgoAHTConfig, env: Any, ego_uid: str, *, joint: bool) -> SeatRows:
        """Return the reader of the seat's rows; with ``joint``, of all seats' states."""
        others = tuple(uid for uid in cfg.env.agent_uids if uid != ego_uid)
        return SeatRows(cls.__name__, env=env, ego_uid=ego_uid, other_uids=others if joint else ())

    def observe(
        self,
        obs: Observation,
        reward: float | NDArray[Any],
        done: bool | NDArray[np.bool_],
        *,
        truncated: bool | NDArray[np.bool_] = False,
        final_obs: Observation | None = None,
        terminated: bool | NDArray[np.bool_] | None = None,
    ) -> None:
        """Record what followed the last drawn action; see `cadenza.aht.types.EgoTrainer`.

        Raises:
            NotReadyError: No drawn action is waiting.
            InputError: Shapes or flags contradict each other, or something is not finite.
        """
        if not self._pending:
            raise NotReadyError(
                f"{type(self).__name__}.observe: expected act(obs) before it, got no drawn action "
                "to complete; alternate act and observe."
            )
        count = self._cfg.env.num_envs
        step = self._seat.outcome(
            obs,
            reward,
            (done, truncated, terminated),
            final_obs,
            batched=count > 1,
            count=count,
        )
        self._record(step)
        self._pending = False
        self._frames += count
        self._after_record(count)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy checkpoint: a policy anyone can play, and the whole learner."""
        return {
            MLP_POLICY_KEY: self.policy().state_dict(),
            self.LEARNER_KEY: self._stored.state_dict(),
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Take over networks, optimisers and streams; an action that waits is dropped.

        Raises:
            CheckpointError: The checkpoint is of another algorithm or of other sizes.
        """
        if self.LEARNER_KEY not in payload:
            raise CheckpointError(
                f"{type(self).__name__}: expected a checkpoint with a part {self.LEARNER_KEY!r}, "
                f"got {sorted(payload)}; load what the same algorithm wrote."
            )
        self._stored.load_state_dict(payload[self.LEARNER_KEY])
        self._pending = False

    def training_state(self) -> dict[str, Any]:
        """Return everything the future depends on, also between two updates.

        Raises:
            NotReadyError: A drawn action waits for what follows.
        """
        if self._pending:
            raise NotReadyError(
                f"{type(self).__name__}.training_state: expected observe() after act(), got a "
                "drawn action whose outcome is unknown."
            )
        return {
            "version": TRAINING_STATE_VERSION,
            self.LEARNER_KEY: self._stored.state_dict(),
            **self._progress_state(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `training_state` was taken.

        Raises:
            CheckpointError: The state has another version, is incomplete or of other sizes.
        """
        owner = f"{type(self).__name__}.load_training_state"
        require_version(owner, state, TRAINING_STATE_VERSION)
        with complete_state(owner, "this configuration"):
            self._stored.load_state_dict(state[self.LEARNER_KEY])
            self._load_progress_state(state)
        self._pending = False

    @abstractmethod
    def policy(self) -> MlpPolicy:
        """Return the greedy policy as one of its own; it shares the weights."""

    @abstractmethod
    def _record(self, step: SeatOutcome) -> None:
        """Keep the drawn action and what followed it; the step is counted afterwards."""

    def _after_record(self, count: int) -> None:
        """Do what the ``count`` frames just counted made due; nothing by default."""
        del count

    @abstractmethod
    def _progress_state(self) -> dict[str, Any]:
        """Return what was collected and not yet forgotten, and the counters."""

    @abstractmethod
    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_progress_state` returned."""
