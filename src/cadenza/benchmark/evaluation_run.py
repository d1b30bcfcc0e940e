"""Run an evaluation: plan, missing cells, one bundle per policy.

Output:   ``plan.json`` (immutable), ``cells/`` (one file per finished cell) and
          ``bundles/<policy>/``. Killed at any point, the same call with ``resume`` goes on.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cadenza.benchmark.bundle import (
    BundleRequest,
    build_bundle_files,
    current_provenance,
    write_bundle_dir,
)
from cadenza.benchmark.cells import (
    CELLS_FOLDER,
    CellRunnerFactory,
    EvaluationPlan,
    ResumeState,
    find_missing_cells,
    read_cell,
    store_plan,
)
from cadenza.benchmark.evaluation_config import EvaluationConfig, make_plan, summary_settings
from cadenza.benchmark.executor import (
    Job,
    JobFailure,
    JobProgress,
    default_workers,
    run_jobs,
)
from cadenza.benchmark.output_folder import OutputMode, open_output_folder
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import remove_temporaries
from cadenza.evaluation.results import EpisodeResult
from cadenza.partners.registry import outside_modules

_logger = logging.getLogger(__name__)

#: Folder of bundles inside the output folder.
BUNDLES_FOLDER: Final = "bundles"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOutcome:
    """What an evaluation produced.

    Attributes:
        plan: The plan.
        bundles: Bundle folder by policy.
        episodes: Episodes by policy, in plan order.
        failures: Cells that failed for good; not empty only under ``best_effort``.
        reused: Number of cells that an earlier call had finished.
        redone: Why stored cells could not be used, by key; they were run again.
    """

    plan: EvaluationPlan
    bundles: Mapping[str, Path]
    episodes: Mapping[str, Sequence[EpisodeResult]]
    failures: Sequence[JobFailure]
    reused: int
    redone: Mapping[str, str]

    @property
    def has_success(self) -> bool:
        """Whether the task has a success predicate; otherwise ``success`` is false throughout."""
        return get_task(self.plan.env.task, self.plan.task_version).has_success


def run_evaluation(
    config: EvaluationConfig,
    *,
    out: Path,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    repo_root: Path | None = None,
    repro_command: str = "cadenza eval run",
    config_sha256: str | None = None,
    progress: JobProgress | None = None,
) -> EvaluationOutcome:
    """Run every cell that is not finished yet, and seal the results.

    Args:
        config: Checked configuration.
        out: Output folder.
        workers: Processes; by default one per core.
        resume: Go on with an earlier run in ``out``.
        overwrite: Delete an earlier run in ``out`` first.
        repo_root: Source tree for the provenance; by default this package's own checkout.
        repro_command: Command line that repeats the evaluation; no host paths, it is hashed.
        config_sha256: Digest of the training configuration behind the policies, if known.
        progress: Told (cells done, cells in all, label of the last one).

    Raises:
        ConfigurationError: The configuration or the folder does not fit.
        CheckpointError: Weights are missing or damaged.
        CadenzaError: A cell failed and the policy is ``strict``; finished cells are kept.
        StorageError: The file system refused; finished cells are kept.
    """
    plan = make_plan(config)
    with open_output_folder(out, mode=_mode(resume=resume, overwrite=overwrite)):
        store_plan(out, plan)
        state = find_missing_cells(out, plan)
        for key, reason in state.damaged.items():
            _logger.warning("Running %s again: %s", plan.cells[key].label, reason)
        failures = _run_cells(config, plan, state, out, workers, progress)
        remove_temporaries(out / CELLS_FOLDER)
        episodes = {p.name: _collect(out, plan, p.name, failures) for p in plan.policies}
        template = BundleRequest(
            plan=plan,
            policy="",
            episodes=(),
            provenance=current_provenance(repo_root),
            repro_command=repro_command,
            settings=summary_settings(config),
            config_sha256=config_sha256,
        )
        bundles = _seal(out, template, episodes, failures)
    return EvaluationOutcome(
        plan=plan,
        bundles=bundles,
        episodes=episodes,
        failures=failures,
        reused=len(state.done),
        redone=state.damaged,
    )


def _mode(*, resume: bool, overwrite: bool) -> OutputMode:
    if resume and overwrite:
        raise ConfigurationError(
            "run_evaluation: expected resume or overwrite, got both; resume goes on with a run, "
            "overwrite deletes it."
        )
    if overwrite:
        return "overwrite"
    return "resume" if resume else "new"


def _run_cells(
    config: EvaluationConfig,
    plan: EvaluationPlan,
    state: ResumeState,
    out: Path,
    workers: int | None,
    progress: JobProgress | None,
) -> list[JobFailure]:
    """Run the missing cells and return the failures."""
    done = len(state.done)

    def report(finished: int, _: int, label: str) -> None:
        if progress is not None:
            progress(done + finished, len(plan.cells), label)

    report(0, 0, "")
    return run_jobs(
        [Job(key=key, label=plan.cells[key].label) for key in state.missing],
        CellRunnerFactory(
            folder=out.resolve(),
            artifacts_root=config.artifacts_root.resolve(),
            plan_sha256=plan.digest,
            task=get_task(plan.env.task, plan.task_version),
            modules=outside_modules(entry.partner.class_name for entry in plan.partners),
        ),
        workers=default_workers() if workers is None else workers,
        failure_policy=config.failure_policy,
        job_timeout_s=config.cell_timeout_s,
        progress=report,
    )


def _collect(
    out: Path, plan: EvaluationPlan, policy: str, failures: Sequence[JobFailure]
) -> list[EpisodeResult]:
    """Return the stored episodes of one policy, in plan order."""
    failed = {failure.key for failure in failures}
    return [
        episode
        for key, cell in plan.cells.items()
        if cell.policy == policy and key not in failed
        for episode in read_cell(out, key, plan)
    ]


def _seal(
    out: Path,
    template: BundleRequest,
    episodes: Mapping[str, Sequence[EpisodeResult]],
    failures: Sequence[JobFailure],
) -> dict[str, Path]:
    """Store one bundle per policy and return their folders."""
    cells = template.plan.cells
    bundles: dict[str, Path] = {}
    for policy, played in episodes.items():
        request = replace(
            template,
            policy=policy,
            episodes=played,
            failures=[failure for failure in failures if cells[failure.key].policy == policy],
        )
        bundles[policy] = out / BUNDLES_FOLDER / policy
        _store_bundle(bundles[policy], build_bundle_files(request))
    return bundles


def _store_bundle(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the bundle unless exactly it is there; one that differs is derived, so replaced."""
    if folder.is_dir():
        present = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        if present == files:
            return
        _logger.warning("Replacing %s: it differs from what the cells give.", folder)
        shutil.rmtree(folder)
    write_bundle_dir(folder, files)
