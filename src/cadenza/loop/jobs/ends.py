"""What a runner says of a job that is closed: its recorded end, or why it failed."""

from cadenza.loop.contracts.records import JobEnd, JobSpec
from cadenza.loop.errors import JobFailedError
from cadenza.loop.jobs.results import require_unchanged
from cadenza.loop.store.rows import JobRow


def recorded_end(spec: JobSpec, row: JobRow) -> JobEnd:
    """Return the recorded end of a closed job.

    Raises:
        JobFailedError: It failed or was cancelled.
        IntegrityError: Its result file is missing or was changed since.
    """
    if row.status != "succeeded":
        without = ", but no usable result" if row.exit_code == 0 else ""
        raise job_failure(spec, row, f"exit code {row.exit_code}{without}")
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
    """Return the error of a job that failed for good, in one sentence; its log has the rest.

    Args:
        spec: The job.
        row: What the store knows of it.
        problem: What became of its last attempt.
    """
    key, often = spec.key, "" if row.attempt == 1 else f" in the last of {row.attempt} attempts"
    return JobFailedError(
        f"job {key.run_id}/{key.cycle}/{key.stage}: expected {wanted_end(row.exit_code)}, got "
        f"{problem.rstrip('.')}{often}; see its log {spec.log_path}",
        exit_code=row.exit_code,
        duration_s=row.duration_s,
        log_path=spec.log_path,
    )


def wanted_end(exit_code: int | None) -> str:
    """Return what was expected of a job that failed with this exit code; with 0, its result."""
    wanted = "an end with exit code 0"
    return f"{wanted} and its result" if exit_code == 0 else wanted
