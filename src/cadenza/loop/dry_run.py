"""A run that runs no command: what it would do, in a folder that is thrown away.

Real:       configuration, constitution, proposals without a model, state machine, store, events,
            every command as the back end makes it.
Synthetic:  what commands leave. Policies of the first cycle solve every other initial state, later
            ones all, so that a run promotes, harvests, merges and adapts, and climbs the ladder.
Promise:    nothing is written outside the folder.
"""

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cadenza.loop.agents.base import CallableRunner, dry_runner
from cadenza.loop.backends.base import Backend
from cadenza.loop.config import ApprovalConfig, LoopConfig, NotifyConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    EpisodeOutcome,
    EvalReport,
    EvalRequest,
    Harvest,
    HarvestRequest,
    JobRunner,
    MergeRequest,
    TrainRequest,
)
from cadenza.loop.jobs.terms import StopCheck
from cadenza.loop.orchestrator.steps import RunSession
from cadenza.loop.store.jobstore import JobStore

_NOTES = "dry run"


@contextmanager
def throw_away(config: LoopConfig) -> Generator[LoopConfig]:
    """Yield ``config`` with a folder for everything it writes, which is removed at the end.

    No model is asked, nobody is told, and nobody's approval is waited for.
    """
    with TemporaryDirectory(prefix="cadenza-dry-run-") as folder:
        knowledge = config.knowledge.model_copy(update={"root": Path(folder) / "knowledge"})
        yield config.model_copy(
            update={
                "workdir": Path(folder) / "runs",
                "store": None,
                "llm": None,
                "curation": config.curation.model_copy(update={"enabled": False}),
                "knowledge": knowledge,
                "approval": ApprovalConfig(),
                "notify": NotifyConfig(),
            }
        )


def dry_jobs(session: RunSession, _stop: StopCheck) -> JobRunner:
    """Return a runner that notes commands in their logs and runs none."""
    return CallableRunner(session.store, session.lease, dry_runner)


def commands_of(store: JobStore, run_id: str, *, below: Path, shown_as: Path) -> list[str]:
    """Return the commands of a dry run, in order, with another folder than the one thrown away."""
    lines = (shlex.join(job.command) for job in store.jobs.of_run(run_id))
    return [line.replace(str(below.absolute()), str(shown_as.absolute())) for line in lines]


class DryBackend:
    """Another back end's commands, and synthetic outcomes of them, as ``config`` wants them.

    It has no capabilities: no environment is made, which a real run does before anything else.
    """

    def __init__(self, inner: Backend, config: LoopConfig) -> None:
        self.name = inner.name
        self.capabilities: dict[str, str] = {}
        self.plan_data, self.plan_train = inner.plan_data, inner.plan_train
        self.plan_eval, self.plan_harvest = inner.plan_eval, inner.plan_harvest
        self.plan_merge = inner.plan_merge
        self._seed_root = config.seed_root
        least, most = config.eval.score_range or (0.0, 1.0)
        # half of the episodes that succeed so lie above the bar, all of them further above it
        bar = config.thresholds.min_promote
        self._scores = max(least, 1.5 * bar - 0.5 * most), most

    def read_data(self, request: DataRequest) -> DatasetRef:
        """Return the seed dataset where no command makes another, else one that is not there."""
        proposal = request.proposal
        made = self._dataset(proposal.dataset, request.folder, proposal.num_episodes)
        if self.plan_data(request) is not None:
            return made
        root = self._seed_root
        return made.model_copy(update={"root": None if root is None else str(root)})

    def read_train(self, request: TrainRequest) -> CheckpointRecord:
        """Return a policy that is not there; it has no digest, so nobody looks for it."""
        return CheckpointRecord(
            policy_type=request.rung, path=str(request.folder / "policy"), cycle=request.cycle
        )

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return that a policy of the first cycle solved every other initial state, others all."""
        seeds = range(request.seeds.start, request.seeds.start + request.seeds.count)
        solved = {seed: request.checkpoint.cycle > 0 or seed % 2 == 0 for seed in seeds}
        outcomes = tuple(
            EpisodeOutcome(task=_NOTES, seed=seed, success=good, score=self._scores[good])
            for seed, good in solved.items()
        )
        rate = sum(outcome.success for outcome in outcomes) / len(outcomes)
        return EvalReport(
            checkpoint=request.checkpoint.path,
            env_type=_NOTES,
            task_suite=_NOTES,
            n_episodes=len(outcomes),
            success_rate=rate,
            per_task={_NOTES: rate},
            outcomes=outcomes,
        )

    def read_harvest(self, request: HarvestRequest) -> Harvest:
        """Return that all episodes were kept, after as many failures."""
        kept = min(request.episodes, request.seeds.count)
        return Harvest(
            kept=kept,
            successes=kept,
            attempts=min(2 * kept, request.seeds.count),
            dataset=self._dataset(request.repo_id, request.folder, kept),
        )

    def read_merge(self, request: MergeRequest) -> DatasetRef:
        """Return a dataset that is not there."""
        episodes = sum(source.num_episodes or 0 for source in request.sources)
        return self._dataset(request.repo_id, request.folder, episodes)

    def check_features(self, dataset: DatasetRef, checkpoint: CheckpointRecord | None) -> None:
        """Do nothing: there is nothing to look at."""

    def _dataset(self, repo_id: str, folder: Path, count: int | None) -> DatasetRef:
        return DatasetRef(
            repo_id=repo_id, root=str(folder / "dataset"), num_episodes=count, notes=_NOTES
        )
