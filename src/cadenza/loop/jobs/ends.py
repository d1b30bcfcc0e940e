"""What a runner says of a job that is closed: its recorded end, or why it failed."""

import shlex

from cadenza.loop.errors import JobFailedError
from cadenza.loop.jobs.results import last_lines, require_unchanged
from cadenza.loop.jobs.spec import JobEnd, JobSpec
from cadenza.loop.store.rows import JobRow


def recorded_end(spec: JobSpec, row: JobRow) -> JobEnd:
    """Return the recorded end of a closed job.

    Raises:
        JobFailedError: It failed or was cancelled.
        IntegrityError: Its result file is missing or was changed since.
    """
    if row.status != "succeeded":
        raise job_failure(spec, row, f"{row.status}, exit code {row.exit_code}")
    if spec.result_path is not None:
        require_unchanged(spec.result_path, row.result_sha256)
    return JobEnd(
        key=row.key,
        exit_code=0,
        duration_s=row.duration_s,
        attempts=row.attempt,
        log_path=spec.log_path,
        result_sha256=row.result_sha256,
    )


def job_failure(spec: JobSpec, row: JobRow, problem: str) -> JobFailedError:
    """Return the error of a job that failed for good, with the end of its log."""
    key = spec.key
    tail = last_lines(spec.log_path)
    why = problem.rstrip(".")
    return JobFailedError(
        f"job {key.run_id}/{key.cycle}/{key.stage}: expected an end with exit code 0, got none in "
        f"{row.attempt} attempts; the last one: {why}. Command: {shlex.join(row.command)}. "
        f"Log {spec.log_path}" + (f" ends with:\n{tail}" if tail else " is empty."),
        exit_code=row.exit_code,
        duration_s=row.duration_s,
    )
