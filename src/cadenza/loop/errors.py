"""Error types of the loop; all derive from `cadenza.core.errors.CadenzaError`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from cadenza.core.errors import (
    CadenzaError,
    ConfigurationError,
    IntegrityError,
    MissingExtraError,
    StorageError,
)


class StoreError(CadenzaError, RuntimeError):
    """The job store refused; nothing was changed."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store where one was to be read; reading never creates one."""


class StoreVersionError(StoreError):
    """The store was written by another version of the package."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The database did not answer, or stayed locked for too long; the call may be repeated."""


class StoreAccessError(StoreUnavailableError):
    """The database refuses us: a wrong or missing password, or a right that the user lacks."""


class StoreCorruptError(StoreError):
    """The file is no database, or a damaged one."""


class StoreForeignError(StoreError, ConfigurationError):
    """The database is another program's; nothing was changed in it."""


class DuplicateRunError(StoreError, ValueError):
    """A run of this id exists already."""


class UnknownRowError(StoreError, KeyError):
    """The store holds no run, cycle, checkpoint, job or approval of this key."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class RecordConflictError(StoreError):
    """A row that is there contradicts the new one: it may be written once, or has its seeds."""


class LeaseHeldError(StoreError):
    """Another live controller owns the run."""


class StaleLeaseError(StoreError):
    """The lease was released, or another controller took the run over."""


class StaleStateError(StoreError):
    """The run's state was changed since it was loaded."""


class ApprovalDecidedError(StoreError):
    """A gate was decided before; a decision is final."""


class EventLogError(StorageError):
    """The event log cannot be written, is another writer's, or does not fit the store."""


class EventLogHeldError(EventLogError):
    """Another process holds the event log."""


@dataclass(eq=False, repr=False)
class JobFailedError(CadenzaError, RuntimeError):
    """A job failed in every attempt; the message names the job, its exit code and its log.

    The code is None if the end of the last attempt was not seen, the log if there is none.
    """

    message: str
    _: KW_ONLY
    exit_code: int | None = None
    duration_s: float = 0.0
    log_path: Path | None = None


@dataclass(eq=False, repr=False)
class BudgetExceededError(CadenzaError, RuntimeError):
    """A run used up ``limit`` of its ``budgets``; its jobs may go on with a larger one."""

    message: str
    _: KW_ONLY
    limit: str


class StopRequestedError(CadenzaError, RuntimeError):
    """Someone asked the run to stop; it can be resumed."""


class UnansweredError(StopRequestedError):
    """No answer came in time, and the run is configured to stop then."""


class JobHostError(CadenzaError, RuntimeError):
    """The process in charge of a job shows no sign of life and cannot be ended from here."""


@dataclass(eq=False, repr=False)
class LLMCallError(CadenzaError, RuntimeError):
    """A language model gave no usable reply; the message holds no key.

    Attributes:
        passing: Whether another try may succeed.
        retry_after_s: Pause that the service asked for, s; None if it did not.
        billed: Whether the service may have counted tokens for it.
    """

    message: str
    _: KW_ONLY
    passing: bool = False
    retry_after_s: float | None = None
    billed: bool = False


class LLMPackageMissingError(MissingExtraError, RuntimeError):
    """The official package of a language model's service is not installed."""


class StoreOutdatedError(StoreVersionError):
    """The store was written by an older version of the package; a writer brings it up to date."""


class RefusedError(CadenzaError, RuntimeError):
    """The constitution refuses a command, or its own file; base of `ConstitutionError`."""


class StageError(CadenzaError, RuntimeError):
    """A step of a cycle failed: its job failed, or its result is unusable."""


class DataError(StageError):
    """There is no data for the cycle."""


class TrainError(StageError):
    """Training failed."""


class EvalError(StageError):
    """An evaluation failed, or measured nothing usable."""


class TrainOutputError(TrainError, IntegrityError):
    """A training ended well and left no policy, or a damaged one."""


class EvalOutputError(EvalError, IntegrityError):
    """An evaluation ended well and left no report, or a damaged one."""


class ImproveError(StageError):
    """The harvest of successes, or joining it to the others, failed; a run goes on without it."""
