"""A plain function as a job runner: for dry runs, and for people's own ways to run commands.

The function blocks until the command is over, so nothing survives a killed controller: the next
one starts the command again. Use `cadenza.loop.jobs.durable_runner` where that is too dear.
"""

from cadenza.core.errors import IntegrityError
from cadenza.loop.agents.base import Runner
from cadenza.loop.jobs.ends import job_failure, recorded_end
from cadenza.loop.jobs.programs import ProgramTable
from cadenza.loop.jobs.results import remove_output, result_digest
from cadenza.loop.jobs.spec import JobEnd, JobSpec
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import JobRow, Lease


class CallableRunner:
    """Runs each job by one call of a function; a `cadenza.loop.jobs.spec.JobRunner`."""

    def __init__(
        self,
        store: JobStore,
        lease: Lease,
        call: Runner,
        *,
        programs: ProgramTable | None = None,
    ) -> None:
        """Run jobs by ``call``, once each.

        Args:
            store: Store of the run; jobs are recorded in it.
            lease: The controller's right to change the run.
            call: Gets command and log file, returns when the command is over.
            programs: What the names in commands stand for; None leaves that to ``call``.
        """
        self._jobs = store.jobs
        self._lease = lease
        self._call = call
        self._programs = programs

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the recorded end of ``spec``, or that of a call made now.

        Raises:
            JobFailedError: The command failed, or left no result.
            IntegrityError: It succeeded before, and its result file was changed since.
            StaleLeaseError: Another controller took the run over.
        """
        row = self._jobs.open(self._lease, spec)
        if row.status == "running":  # by a controller that was killed
            row = self._end(spec, row, exit_code=None, duration_s=row.attempt_s)
        if row.status == "pending":
            row = self._attempt(spec)
        return recorded_end(spec, row)

    def _attempt(self, spec: JobSpec) -> JobRow:
        command = spec.command if self._programs is None else self._programs.resolve(spec.command)
        row = self._jobs.begin_attempt(self._lease, spec.key)
        if spec.on_existing == "remove":
            remove_output(spec)
        result = self._call(command, spec.log_path)
        row = self._end(spec, row, exit_code=result.exit_code, duration_s=result.duration_s)
        problem = f"exit code {result.exit_code}"
        if result.exit_code == 0:
            try:
                digest = None if spec.result_path is None else result_digest(spec.result_path)
                return self._jobs.close(self._lease, spec.key, "succeeded", result_sha256=digest)
            except IntegrityError as error:
                problem = f"exit code 0, but {error}"
        self._jobs.close(self._lease, spec.key, "failed")
        raise job_failure(spec, row, problem)

    def _end(
        self, spec: JobSpec, row: JobRow, *, exit_code: int | None, duration_s: float
    ) -> JobRow:
        return self._jobs.end_attempt(
            self._lease,
            spec.key,
            attempt=row.attempt,
            exit_code=exit_code,
            duration_s=duration_s,
            interrupted=exit_code is None,
        )
