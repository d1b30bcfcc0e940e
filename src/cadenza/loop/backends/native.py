"""The native back end: our environments, cloning, evaluation and datasets, as `cadenza job` runs.

Data:      the first cycle's seeds in every cycle, so that more episodes extend the earlier ones; a
           proposal's focus changes the order of partners. With ``seed_root`` nothing is collected:
           a cycle takes episodes of that dataset, in order, partners in focus first served.
Training:  afresh or from given weights, with another seed every cycle.
Tasks:     the partners of the environment; ``eval.task_suite`` names them: classes with commas
           between them, ``default`` or ``leaving_way``; ``data.task_filter`` those of the data.
"""

from importlib import metadata
from pathlib import Path
from typing import Any

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_file, tree_digest
from cadenza.core.provenance import source_digest
from cadenza.core.seeding import derive_substream
from cadenza.loop.backends.native_files import (
    RESULT,
    PartnerFilter,
    checkpoint_facts,
    dataset_features,
    dataset_task,
    local_root,
    outcomes_of,
    read_dataset,
    read_result,
    require_partners,
    require_weights,
    seed_page,
    selected_episodes,
)
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import JobPlan
from cadenza.loop.constitution.typed_jobs import (
    NATIVE_JOBS,
    NativeCollect,
    NativeEvaluate,
    NativeHarvest,
    NativeJob,
    NativeMerge,
    NativeTrain,
)
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    EvalReport,
    EvalRequest,
    Harvest,
    HarvestRequest,
    MergeRequest,
    TrainRequest,
)
from cadenza.loop.schedule import DeterministicProposer


def _counting(dataset: DatasetRef) -> tuple[tuple[int, ...], int | None]:
    """Return the numbers of the episodes that count, or how many from the first; neither for all.

    Episodes from the first on are counted rather than listed: a command line has room for some
    twenty thousand numbers.
    """
    listed = dataset.episodes
    if listed is None:
        return (), dataset.num_episodes
    if not listed:
        raise ConfigurationError(
            f"dataset {dataset.repo_id!r}: expected episodes to train on, got an empty choice."
        )
    if listed == tuple(range(len(listed))):
        return (), len(listed)
    return listed, None


def _digest(path: Path) -> str:
    if not path.is_file():
        raise IntegrityError(
            f"{path}: expected the weights that the training started from, got no file."
        )
    return sha256_file(path)


class NativeBackend:
    """Commands of this package, and readers of what they leave."""

    def __init__(self, config: LoopConfig) -> None:
        """Check the settings, or raise `ConfigurationError`."""
        data = config.data
        if config.seed_root is None and data.initial_episodes is None:
            raise ConfigurationError(
                "data.initial_episodes: expected a number without seed_root, got null; say how "
                "many episodes cycle 0 collects."
            )
        require_partners("eval.task_suite", config.eval.task_suite)
        if config.seed_root is None:  # else they are those that the dataset met
            require_partners("data.task_filter", data.task_filter)
        self._config = config
        self._schedule = DeterministicProposer(
            config.seed_dataset, data.initial_episodes, data.growth, data.max_episodes
        )
        self._partners = PartnerFilter(data.task_filter)
        known = sorted({flag for job in NATIVE_JOBS for flag in job.FURTHER})
        for word in config.eval.env_args:
            if not word.startswith(tuple(f"--{flag}=" for flag in known)):
                raise ConfigurationError(
                    f"eval.env_args: expected --key=value with a key of {', '.join(known)}, got "
                    f"{word!r}."
                )

    @property
    def name(self) -> str:
        """Name in configurations."""
        return "native"

    @property
    def capabilities(self) -> dict[str, str]:
        """Version and digest of the code that the jobs run."""
        return {"cadenza": metadata.version("cadenza"), "code_sha256": source_digest()}

    def plan_data(self, request: DataRequest) -> JobPlan | None:
        """Return the job that collects; None with a seed dataset of the user's."""
        return None if self._config.seed_root is not None else _planned(self._collecting(request))

    def read_data(self, request: DataRequest) -> DatasetRef:
        """Return the data of the cycle."""
        if self._config.seed_root is not None:
            return self._seed_data(request, self._config.seed_root)
        facts = read_result(self._collecting(request))
        return read_dataset(request.folder, facts["dataset"], request.proposal.notes)

    def plan_train(self, request: TrainRequest) -> JobPlan:
        """Return the job that trains."""
        return _planned(self._training(request))

    def read_train(self, request: TrainRequest) -> CheckpointRecord:
        """Return the trained policy with its digest."""
        job, mix = self._training(request), request.mix
        more: dict[str, Any] = {
            "episodes": list(job.episodes or ()),
            "first_episodes": job.first_episodes,
            "mix_ratio": job.mix_ratio,
            "max_epochs": job.max_epochs,
            "init_sha256": None if job.init is None else _digest(job.init),
        }
        if request.dataset.sha256 is not None:
            more["dataset_sha256"] = request.dataset.sha256
        if mix is None or mix.sha256 is not None:
            more["mix_sha256"] = None if mix is None else mix.sha256
        facts = read_result(job, **more)
        path, digest = request.folder / str(facts["policy"]["file"]), facts["policy"]["sha256"]
        require_weights(path, digest)
        return CheckpointRecord(
            policy_type=request.rung, path=str(path), cycle=request.cycle, sha256=digest
        )

    def plan_eval(self, request: EvalRequest) -> JobPlan:
        """Return the job that evaluates."""
        return _planned(self._evaluating(request))

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return what the evaluation measured, with every episode."""
        facts = read_result(self._evaluating(request), **_of_policy(request.checkpoint))
        features = checkpoint_facts(request.checkpoint)["features"]
        if facts["features"] != features:
            raise IntegrityError(
                f"{request.folder}: expected an environment with the policy's features {features}, "
                f"got {facts['features']}; evaluate on the task that it was trained for."
            )
        outcomes = outcomes_of(facts, request.seeds, source=request.folder)
        return EvalReport(
            checkpoint=request.checkpoint.path,
            env_type=self._config.eval.env_type,
            task_suite=self._config.eval.task_suite,
            n_episodes=len(outcomes),
            success_rate=facts["overall"]["success_rate"],
            per_task={name: one["success_rate"] for name, one in facts["per_task"].items()},
            raw={key: value for key, value in facts.items() if key != "episodes"},
            outcomes=outcomes,
        )

    def plan_harvest(self, request: HarvestRequest) -> JobPlan:
        """Return the job that collects the policy's successes."""
        if request.device != "cpu" or request.task_text is not None:
            raise ConfigurationError(
                "improve: expected device cpu and no task_text with the native back end, got "
                f"{request.device!r} and {request.task_text!r}; correct the configuration."
            )
        return _planned(self._harvesting(request))

    def read_harvest(self, request: HarvestRequest) -> Harvest:
        """Return what the collection brought."""
        facts = read_result(self._harvesting(request), **_of_policy(request.checkpoint))
        dataset = facts["dataset"]
        what = "starts failed by" if request.starts == "failed" else "successes of"
        notes = f"{what} {request.checkpoint.policy_type}, cycle {request.cycle}"
        return Harvest(
            kept=facts["kept"],
            successes=facts["successes"],
            attempts=facts["attempts"],
            dataset=None if dataset is None else read_dataset(request.folder, dataset, notes),
        )

    def plan_merge(self, request: MergeRequest) -> JobPlan:
        """Return the job that joins datasets."""
        return _planned(_joining(request))

    def read_merge(self, request: MergeRequest) -> DatasetRef:
        """Return the joined dataset with its digest."""
        digests = [source.sha256 for source in request.sources]
        known = {} if None in digests else {"sources_sha256": digests}
        facts = read_result(_joining(request), **known)
        notes = f"{len(digests)} datasets joined"
        return read_dataset(request.folder, facts["dataset"], notes)

    def check_features(self, dataset: DatasetRef, checkpoint: CheckpointRecord | None) -> None:
        """Raise unless dataset, policy and environment agree on names and shapes."""
        shapes, task = dataset_features(dataset), dataset_task(dataset)
        wanted = self._config.eval.env_type
        if task not in (None, wanted):
            raise ConfigurationError(
                f"dataset {dataset.repo_id!r}: expected episodes of eval.env_type {wanted!r}, got "
                f"those of {task!r}."
            )
        if checkpoint is None:
            return
        facts = checkpoint_facts(checkpoint)
        if facts.get("task", wanted) != wanted:
            raise ConfigurationError(
                f"{checkpoint.path}: expected a policy of eval.env_type {wanted!r}, got one of "
                f"{facts['task']!r}."
            )
        for key, shape in shapes.items():
            if facts["features"].get(key) != shape:
                raise ConfigurationError(
                    f"feature {key!r}: expected the dataset's shape {shape} in {checkpoint.path}, "
                    f"got {facts['features'].get(key)}; train a policy on this dataset."
                )

    def _shared_by(self, job: type[NativeJob]) -> tuple[str, ...]:
        """Return the words of ``eval.env_args`` that a job takes."""
        taken = tuple(f"--{key}=" for key in job.FURTHER)
        return tuple(word for word in self._config.eval.env_args if word.startswith(taken))

    def _wanted(self, request: DataRequest) -> int:
        """Return the episodes to collect, at most one for each initial state.

        A model may ask for all, or for more than there can be: the run must not end of it.
        """
        wanted = request.proposal.num_episodes or self._schedule.scheduled_episodes(request.cycle)
        return min(wanted or request.seeds.count, request.seeds.count)

    def _seed_data(self, request: DataRequest, root: Path) -> DatasetRef:
        """Return the part of the user's dataset that the cycle takes."""
        chosen = selected_episodes(
            seed_page(root),
            request.proposal.num_episodes,
            request.proposal.focus,
            self._partners,
        )
        return DatasetRef(
            repo_id=request.proposal.dataset,
            root=str(root),
            episodes=chosen,
            num_episodes=None if chosen is None else len(chosen),
            notes=request.proposal.notes,
            sha256=tree_digest(root),
        )

    def _training(self, request: TrainRequest) -> NativeTrain:
        """Return the training of a request; every cycle has a seed of its own."""
        seeds = derive_substream("loop.native.training", root_seed=self._config.seed)
        data, mix = request.dataset, request.mix
        root = local_root(data)
        listed, first = _counting(data)
        return NativeTrain(
            out=request.folder,
            result_json=request.folder / RESULT,
            rung=request.rung,
            dataset_root=root,
            episodes=listed or None,
            first_episodes=first,
            mix=None if mix is None else local_root(mix),
            mix_ratio=None if mix is None else request.mix_ratio,
            steps=request.steps,
            batch_size=request.batch_size,
            learning_rate=request.learning_rate,
            max_epochs=self._config.train.max_epochs,
            init=None if request.init is None else Path(request.init),
            seed=seeds.child(request.cycle).integer_seed(),
            extra=request.extra_args,
        )

    def _collecting(self, request: DataRequest) -> NativeCollect:
        return NativeCollect(
            out=request.folder,
            result_json=request.folder / RESULT,
            env_type=self._config.eval.env_type,
            partners=_names(self._config.data.task_filter or self._config.eval.task_suite),
            episodes=self._wanted(request),
            seed_start=request.seeds.start,
            seed_count=request.seeds.count,
            repo_id=request.proposal.dataset,
            focus=self._partners.among(request.proposal.focus) or None,
            extra=self._shared_by(NativeCollect),
        )

    def _evaluating(self, request: EvalRequest) -> NativeEvaluate:
        return NativeEvaluate(
            out=request.folder,
            result_json=request.folder / RESULT,
            policy=Path(request.checkpoint.path),
            env_type=self._config.eval.env_type,
            partners=_names(self._config.eval.task_suite),
            seed_start=request.seeds.start,
            episodes=request.seeds.count,
            batch_size=request.batch_size,
            extra=(*self._shared_by(NativeEvaluate), *request.extra_args),
        )

    def _harvesting(self, request: HarvestRequest) -> NativeHarvest:
        return NativeHarvest(
            out=request.folder,
            result_json=request.folder / RESULT,
            policy=Path(request.checkpoint.path),
            env_type=self._config.eval.env_type,
            partners=_names(self._config.eval.task_suite),
            episodes=min(request.episodes, request.seeds.count),
            seed_start=request.seeds.start,
            attempts=request.seeds.count,
            repo_id=request.repo_id,
            focus=request.focus or None,
            starts="failed" if request.starts == "failed" else None,
            extra=(*self._shared_by(NativeHarvest), *request.extra_args),
        )


def _joining(request: MergeRequest) -> NativeMerge:
    return NativeMerge(
        out=request.folder,
        result_json=request.folder / RESULT,
        sources=tuple(local_root(source) for source in request.sources),
        repo_id=request.repo_id,
    )


def _planned(job: NativeJob) -> JobPlan:
    return JobPlan(job=job, output_dir=job.out, result_path=job.result_json)


def _of_policy(checkpoint: CheckpointRecord) -> dict[str, str]:
    """Return what a result says of the policy that played, if that is known."""
    return {} if checkpoint.sha256 is None else {"policy_sha256": checkpoint.sha256}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
