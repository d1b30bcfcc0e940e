"""A job: one command of one step of one cycle, and how it ended.

A job's key is (run, cycle, stage). Whoever asks for a job whose key ended well gets the recorded
end; nothing runs twice. A job must therefore be repeatable: killed at any point and started again
with the same command it goes on, or starts over, and leaves the same bytes.
"""

from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from pydantic import Field

from cadenza.loop.contracts.records import Name, Record

#: Devices that budgets are counted for.
Device: TypeAlias = Literal["cpu", "gpu"]
#: What happens, before an attempt, to an output folder that an earlier attempt left.
ExistingOutput: TypeAlias = Literal["keep", "remove"]
#: How a job stands.
JobStatus: TypeAlias = Literal["pending", "running", "succeeded", "failed", "cancelled"]


class JobKey(Record):
    """What a job is for.

    Attributes:
        run_id: The run.
        cycle: Its cycle, from 0.
        stage: Step of the cycle, e.g. ``"train"`` or ``"eval_candidate_0"``; unique within it.
    """

    run_id: Name
    cycle: int = Field(ge=0)
    stage: Name


class JobSpec(Record):
    """One command to run.

    Attributes:
        key: What it is for.
        command: Program name and arguments, already cleared by the constitution. The first is a
            name of the program table, never a path; the runner resolves it.
        output_dir: Folder that the command creates and owns.
        log_path: File that gets its stdout and stderr, outside ``output_dir``.
        result_path: JSON file that the command writes atomically, as its last act; None for a
            program that has no such option, whose exit code must then be trusted.
        device: What its seconds are charged to.
        time_limit_s: Wall-clock seconds before it is ended; None without a limit of its own.
        on_existing: ``"keep"`` for a command that goes on from what an earlier attempt left;
            ``"remove"`` for one that refuses an existing ``output_dir``.
    """

    key: JobKey
    command: tuple[str, ...] = Field(min_length=1)
    output_dir: Path
    log_path: Path
    result_path: Path | None = None
    device: Device = "cpu"
    time_limit_s: float | None = Field(default=None, gt=0.0)
    on_existing: ExistingOutput = "keep"


class JobEnd(Record):
    """How a job ended.

    Attributes:
        key: Which job.
        exit_code: Exit status of the command; negative for the signal that ended it.
        duration_s: Seconds of all its attempts, failed ones included.
        attempts: Attempts it took, >= 1.
        log_path: Its log.
        result_sha256: Digest of the result file; None where there is none.
    """

    key: JobKey
    exit_code: int
    duration_s: float = Field(ge=0.0)
    attempts: int = Field(ge=1)
    log_path: Path
    result_sha256: str | None = None


class JobRunner(Protocol):
    """Runs jobs, each key at most once to its end, whatever process is killed meanwhile."""

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the end of ``spec``: recorded, adopted from a live process, or run now.

        Raises:
            JobFailedError: It failed in every attempt; the message names the log.
            BudgetExceededError: The budget ended before the job did.
            StopRequestedError: Someone asked the run to stop; the job was ended.
            IntegrityError: It succeeded before, and its result file was changed since.
            StaleLeaseError: Another controller took the run over.
        """
        ...
