"""What the training loop expects of its parts, and what it returns.

Environment and partner come from outside (`EnvLike`, `PartnerLike`); the learner comes from a
`TrainerFactory`. Results are plain values: a reward curve and the trained learner.

Units: rewards are the environment's; lengths and steps count control steps; frames count
environment frames, which is steps times environments stepped as one batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.core.runlog import EventLogger
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.nn.portable import PortableNetwork

#: Observation in, deterministic ego action out; a `RememberingPolicy` is told of episodes.
Policy: TypeAlias = Callable[[Observation], NDArray[Any]]
#: Called with (frames done, frames in total, return of the last complete episode or None).
ProgressCallback: TypeAlias = Callable[[int, int, float | None], None]


class EgoTrainer(Protocol):
    """A learner that plays the ego's seat.

    The loop calls `act`, then `observe` with what followed, then `update` at rollout boundaries.
    Batched environments pass arrays of shape (N,) for reward, done and truncated.
    """

    def act(self, obs: Observation, *, deterministic: bool = False) -> NDArray[Any]:
        """Return the ego action, float32, (A,) or (N, A)."""
        ...

    def observe(
        self,
        obs: Observation,
        reward: float | NDArray[Any],
        done: bool | NDArray[np.bool_],
        *,
        truncated: bool | NDArray[np.bool_] = False,
        final_obs: Observation | None = None,
    ) -> None:
        """Record what followed the last `act`.

        ``obs`` comes after the automatic reset, when batched, ``final_obs`` before it, when any
        episode ended; ``truncated`` is the time limit alone, false if it also terminated.
        """
        ...

    def update(self) -> None:
        """Learn from what was observed since the last update."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the policy checkpoint: tensors only."""
        ...


@runtime_checkable
class ResumableTrainer(Protocol):
    """A learner whose complete state can be saved; needed for checkpoints that resume exactly."""

    def training_state(self) -> dict[str, Any]:
        """Return everything the learner's future depends on: tensors and JSON scalars only."""
        ...

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the learner that wrote ``state``."""
        ...


@runtime_checkable
class PortableTrainer(Protocol):
    """A learner whose policy can be written as a policy file, which stands beside checkpoints."""

    def network(self, **fields: Any) -> PortableNetwork:
        """Return the policy without chance; ``fields`` are further ones of `PortableNetwork`."""
        ...


@runtime_checkable
class ForgettingTrainer(Protocol):
    """A learner that can continue with new episodes where the running ones cannot be restored."""

    def forget_episodes(self) -> None:
        """Forget what has not ended: the next observation begins an episode."""
        ...


@runtime_checkable
class SteppingTrainer(Protocol):
    """A learner that steps the ego's seat itself, and says when to update."""

    @property
    def due(self) -> int:
        """Updates that the steps so far call for."""
        ...

    def sit(self, seat: Any) -> None:
        """Take the `cadenza.aht.seat.Seat` to step."""
        ...

    def begin(self, steps: int) -> None:
        """Go on with the running episodes, and aim at ``steps`` more frames."""
        ...

    def step(self) -> Any:
        """Take one control step; return the `cadenza.aht.seat.SeatStep`."""
        ...

    def policy(self) -> "RememberingPolicy":
        """Return what plays greedily, from the beginning of an episode."""
        ...


@runtime_checkable
class RememberingPolicy(Protocol):
    """A `Policy` that remembers the episode so far."""

    def reset(self) -> None:
        """Forget the last episode."""
        ...

    def __call__(self, obs: Observation) -> NDArray[Any]:
        """Return the deterministic action."""
        ...


@runtime_checkable
class RowResettablePartner(Protocol):
    """A partner that can begin a new episode in one row of a batch."""

    def reset_row(self, row: int, *, seed: int) -> None:
        """Forget the last episode of ``row``."""
        ...


@runtime_checkable
class ScoredPartner(Protocol):
    """A partner that another one plays in every episode, drawn by how the last ones went.

    ``sampler`` has ``state_dict`` and ``load_state_dict``.
    """

    @property
    def sampler(self) -> Any:
        """What draws them."""
        ...

    def score(self, row: int, score: float) -> None:
        """Note how the last episode of ``row`` went: its success, 0 or 1, or else its return."""
        ...


class TrainerFactory(Protocol):
    """Builds the learner; the loop calls it once, before the first reset."""

    def __call__(
        self,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,
        ego_uid: str,
        logger: EventLogger | None = None,
    ) -> EgoTrainer:
        """Return a learner for the seat ``ego_uid`` of ``env`` beside ``partner``."""
        ...


class Evaluator(Protocol):
    """Measures a policy on held-out episodes of its own environment."""

    def __call__(self, policy: Policy, *, episodes: int, root_seed: int) -> Mapping[str, float]:
        """Return named figures, e.g. ``success_rate`` and ``mean_episode_reward``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One training episode of so many control steps; an incomplete one was cut off by the end.

    ``success`` is the task's flag at the last step; None for tasks without one.
    """

    episode_return: float
    length: int
    complete: bool
    end_frame: int
    success: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation: what was measured after so many frames."""

    frame: int
    results: dict[str, float]

    @property
    def rank(self) -> tuple[float, float]:
        """Success rate, 0 where the task tells none, and mean return: the larger the better."""
        return self.results.get("success_rate", 0.0), self.results["mean_episode_reward"]


#: Called after every evaluation with all of the run so far, the newest last; what it raises ends
#: the run, which keeps its last checkpoint.
EvaluationWatch: TypeAlias = Callable[[Sequence[EvaluationRecord]], None]


@dataclass(frozen=True)
class RewardCurve:
    """How the run went, oldest first.

    ``per_step_ego_rewards`` are means over the batch, when batched. ``per_episode_ego_rewards`` are
    of complete episodes; with ``compat="upstream"`` also of those that the end of training cut off,
    even empty ones. ``episodes`` has every one. ``evaluations`` are the periodic ones,
    ``validations`` those that choose the best checkpoint.
    """

    run_id: str
    per_step_ego_rewards: list[float] = field(default_factory=list[float])
    per_episode_ego_rewards: list[float] = field(default_factory=list[float])
    checkpoint_paths: list[Path] = field(default_factory=list[Path])
    episodes: list[EpisodeRecord] = field(default_factory=list[EpisodeRecord])
    evaluations: list[EvaluationRecord] = field(default_factory=list[EvaluationRecord])
    validations: list[EvaluationRecord] = field(default_factory=list[EvaluationRecord])

    @property
    def best(self) -> EvaluationRecord | None:
        """What the best checkpoint reached on validation partners; None without any."""
        return max(self.validations, key=lambda record: record.rank, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What this call of `train` did.

    ``"already_finished"`` by an earlier call: nothing was computed or written. ``resumed_from`` is
    the frame this call continued from; None if it began the run. ``best_policy`` is the policy file
    of the best checkpoint, `RewardCurve.best`; None without validation partners.
    """

    status: Literal["completed", "already_finished"]
    frames: int
    resumed_from: int | None
    log_path: Path
    curve_path: Path
    best_policy: Path | None = None


class _TrainingResultFields(NamedTuple):
    curve: RewardCurve
    trainer: EgoTrainer


class TrainingResult(_TrainingResultFields):
    """Return value of `train`; unpacks as ``curve, trainer``; no outcome when built by hand."""

    outcome: RunOutcome | None

    def __new__(
        cls, curve: RewardCurve, trainer: EgoTrainer, *, outcome: RunOutcome | None = None
    ) -> "TrainingResult":
        """Return a pair that also carries ``outcome``."""
        self = super().__new__(cls, curve, trainer)
        self.outcome = outcome
        return self


def partner_id_of(partner: PartnerLike) -> str | None:
    """Return the identity in the partner's spec; partners made by hand may have none."""
    identity = getattr(partner.spec, "partner_id", None)
    return None if identity is None else str(identity)


def playing_ids_of(partner: PartnerLike, rows: int) -> str | list[str | None] | None:
    """Return who plays all rows, or each of them; None stands for one that is not known yet."""
    ids: str | Sequence[str] | None = getattr(partner, "playing_ids", None)
    if ids is None:
        return partner_id_of(partner)
    return ids if isinstance(ids, str) else [*ids, *[None] * (rows - len(ids))]
