"""The native back end: our environments, cloning, evaluation and datasets, as `cadenza job` runs.

Data:      the first cycle's seeds in every cycle, so that more episodes extend the earlier ones; a
           proposal's focus changes the order of partners. With ``seed_root`` nothing is collected:
           a cycle takes episodes of that dataset, in order, partners in focus first served.
Training:  afresh or from given weights, with another seed every cycle.
Tasks:     the partners of the environment; ``eval.task_suite`` names them: classes with commas
           between them, ``default`` or ``leaving_way``; ``data.task_filter`` those of the data.
Checked:   the seal of a result file, the digests of dataset and weights, and the request that the
           loop made. Nothing of PyTorch is loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import confined_path, tree_digest
from cadenza.core.provenance import source_digest
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import parse_json_object, read_sealed_json
from cadenza.loop.backends.base import dataset_info
from cadenza.loop.config import LoopConfig
from cadenza.loop.config_backends import closest
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
    EpisodeOutcome,
    EvalReport,
    EvalRequest,
    Harvest,
    HarvestRequest,
    MergeRequest,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.resuming import require_intact, weights_digest
from cadenza.loop.schedule import DeterministicProposer
from cadenza.loop.scripts.select_episodes import select_balanced

#: Result file inside the folder of a step.
RESULT: Final = "result.json"
_KIND: Final = "cadenza-job-result"
_VERSION: Final = 1
_PAGE: Final = Path("meta/cadenza.json")
_SIDECAR: Final = ".json"
#: Features that a policy of this back end reads and writes.
_VECTORS: Final = ("observation.state", "action")


@dataclass(frozen=True, slots=True)
class SeedPage:
    """What a seed dataset says about its episodes: who was met in each, and how many they are."""

    partners: tuple[str, ...]
    total: int


def read_result(plan: JobPlan, **more: Any) -> dict[str, Any]:
    """Return a job's result, or raise `IntegrityError` for none, or another request's.

    The result must have been asked for the numbers and names of the job, and for ``more``; how many
    episodes are played at once makes no difference to an evaluation.
    """
    job = plan.job
    path, kind = Path(job.values()["result-json"]), job.WORDS[-1]
    facts = read_sealed_json(path, kind=_KIND, schema_version=_VERSION)
    request: dict[str, Any] = facts.get("request", {})
    named = {key.replace("-", "_"): value for key, value in job.values().items()}
    expected = {name: v for name, v in named.items() if isinstance(v, int | float | str)}
    if kind == "evaluate":
        expected.pop("batch_size", None)
    expected |= more
    other = [name for name, value in expected.items() if request.get(name) != value]
    if facts.get("job") != kind or other:
        wanted, got = ({name: source.get(name) for name in other} for source in (expected, request))
        raise IntegrityError(
            f"{path}: expected the result of {kind!r} with {wanted}, got that of "
            f"{facts.get('job')!r} with {got}; remove the folder of the step and run it again."
        )
    return facts


def read_dataset(folder: Path, facts: Mapping[str, Any], notes: str) -> DatasetRef:
    """Return the dataset that a job wrote, or raise `IntegrityError` for another digest."""
    root = confined_path(folder, str(facts["folder"]))
    digest, found = str(facts["sha256"]), tree_digest(root)
    if found != digest:
        raise IntegrityError(
            f"{root}: expected the files of the digest {digest[:16]}..., got {found[:16]}...; the "
            "dataset was changed, so restore it."
        )
    return DatasetRef(
        repo_id=str(facts["repo_id"]),
        root=str(root),
        num_episodes=int(facts["episodes"]),
        notes=notes,
        sha256=str(facts["sha256"]),
    )


def local_root(dataset: DatasetRef) -> Path:
    """Return the folder of a dataset, or raise `ConfigurationError` if it is not local."""
    if dataset.root is None:
        raise ConfigurationError(
            f"dataset {dataset.repo_id!r}: expected a local folder, got none; set seed_root."
        )
    return Path(dataset.root)


def dataset_features(dataset: DatasetRef) -> dict[str, list[int]]:
    """Return the shapes of state and action in a local dataset."""
    features: dict[str, Any] = dataset_info(local_root(dataset)).get("features", {})
    shapes = {key: features.get(key, {}).get("shape") for key in _VECTORS}
    for key, shape in shapes.items():
        if not isinstance(shape, list) or len(cast("list[Any]", shape)) != 1:
            raise ConfigurationError(
                f"{dataset.root}: expected the feature {key!r} as a vector of numbers, got "
                f"{features.get(key)}; this back end knows states, no images."
            )
    return cast("dict[str, list[int]]", shapes)


def dataset_task(dataset: DatasetRef) -> str | None:
    """Return the task that a dataset was played on; None if it does not say."""
    return read_page(Path(str(dataset.root))).get("task")


def read_page(root: Path) -> dict[str, Any]:
    """Return our page about a dataset; empty without one, an `IntegrityError` if it was changed."""
    path = root / _PAGE
    return read_sealed_json(path, kind="cadenza-dataset") if path.exists() else {}


def seed_page(root: Path) -> SeedPage:
    """Return what the dataset ``root`` says about its episodes."""
    total = dataset_info(root).get("total_episodes")
    if not isinstance(total, int) or total < 1:
        raise IntegrityError(f"{root}: expected a dataset with episodes, got {total!r} of them.")
    episodes: list[dict[str, Any]] = read_page(root).get("episodes", [])
    if episodes and len(episodes) != total:
        raise IntegrityError(
            f"{root / _PAGE}: expected a line for each of {total} episodes, got {len(episodes)}; "
            "restore the dataset, or remove this page of it."
        )
    return SeedPage(tuple(str(one["partner"]) for one in episodes), total)


def recorded_seeds(root: Path) -> tuple[int, ...] | None:
    """Return the seed of each episode of a dataset; None if it names none.

    A page that was changed, or names something else as a seed, is an `IntegrityError`.
    """
    episodes: list[dict[str, Any]] = read_page(root).get("episodes", [])
    seeds = [one.get("seed") for one in episodes]
    for seed in seeds:
        if type(seed) is not int or seed < 0:
            raise IntegrityError(
                f"{root / _PAGE}: expected the seed of every episode, a whole number, got {seed!r};"
                " restore the dataset, or remove this page of it."
            )
    return tuple(cast("list[int]", seeds)) or None


def checkpoint_facts(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """Return what the sidecar of a checkpoint says about it: ``features``, ``task``, ``rung``."""
    path = Path(checkpoint.path)
    sidecar = path.with_name(path.name + _SIDECAR)
    if not sidecar.is_file():
        raise IntegrityError(f"{sidecar}: expected the sidecar of a checkpoint, got no file.")
    facts = parse_json_object(sidecar.read_bytes(), source=str(sidecar))
    require_intact(checkpoint.model_copy(update={"sha256": str(facts.get("sha256"))}))
    extra = facts.get("extra")
    if not isinstance(extra, dict) or not isinstance(
        cast("dict[str, Any]", extra).get("features"), dict
    ):
        raise ConfigurationError(
            f"{sidecar}: expected 'features' in 'extra', got none; name a policy that "
            "`cadenza job train` trained."
        )
    return cast("dict[str, Any]", extra)


#: Episodes of a partner in focus for each episode of another one.
FOCUS_WEIGHT: Final = 3
#: Names of several partners at once, which the jobs know: all, and those that leave the ego a way.
_EVERYBODY: Final = "default"
_LEAVING_WAY: Final = "leaving_way"


def require_partners(key: str, text: str | None) -> None:
    """Raise unless ``text`` says whom to play with, or whose data to take.

    That is partners with commas between them, ``default`` or ``leaving_way``; None for everybody.
    """
    if text in (None, _EVERYBODY, _LEAVING_WAY):
        return
    from cadenza.partners.registry import list_registered

    names, known = text.split(","), list_registered()
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{key}: expected {_EVERYBODY} or {_LEAVING_WAY} alone, or partners with commas "
                f"between them (`cadenza partners list` names them), got {name!r}; "
                f"{closest(name, (_EVERYBODY, _LEAVING_WAY, *known))}"
            )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{key}: expected each partner once, got {text!r}.")


@dataclass(frozen=True, slots=True)
class PartnerFilter:
    """Whose data is taken, as ``data.task_filter`` says; None for everybody."""

    text: str | None

    def among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` whose data is taken, in order; unknown ones may be refused."""
        if self.text in (None, _EVERYBODY):
            return tuple(names)
        if self.text == _LEAVING_WAY:
            from cadenza.partners.registry import partner_card

            return tuple(name for name in names if partner_card(name).leaves_way)
        return tuple(name for name in names if name in self._named)

    def within(self, page: SeedPage) -> tuple[str, ...]:
        """Return the partners whose episodes of a dataset are taken; empty for everybody."""
        if self.text in (None, _EVERYBODY):
            return ()
        met = tuple(dict.fromkeys(page.partners))
        taken = self.among(met) if self.text == _LEAVING_WAY else self._named
        missing = [name for name in taken if name not in met]
        if missing or not taken:
            raise ConfigurationError(
                "data.task_filter: expected partners of the seed dataset "
                f"({', '.join(met) or 'it names none'}), got {(*missing, self.text)[0]!r}."
            )
        return taken

    @property
    def _named(self) -> tuple[str, ...]:
        return tuple((self.text or "").split(","))


def selected_episodes(
    page: SeedPage, count: int | None, focus: Sequence[str], partners: PartnerFilter
) -> tuple[int, ...] | None:
    """Return which episodes of a dataset a cycle takes, ``count`` of them; None for all.

    Without focus these are the first ones. With focus, rounds over the partners, three episodes of
    each in focus and one of each other one, in the order of the dataset, until there are enough.
    """
    met = np.asarray(page.partners or ("",) * page.total, dtype=np.str_)
    names, of_episode = np.unique(met, return_inverse=True)
    only = partners.within(page)
    taken = np.flatnonzero(np.isin(names, only)[of_episode]) if only else np.arange(page.total)
    wanted = len(taken) if count is None else min(count, len(taken))
    if wanted == page.total:
        return None
    in_focus = np.isin(names, np.asarray(focus, dtype=np.str_))
    if not in_focus[of_episode[taken]].any():
        return tuple(taken[:wanted].tolist())
    weights = np.where(in_focus, FOCUS_WEIGHT, 1).astype(np.int64)
    chosen, _ = select_balanced(taken, of_episode[taken], weights=weights, limit=wanted)
    return tuple(chosen.tolist())


def outcomes_of(
    facts: Mapping[str, Any], seeds: SeedRange, *, source: Path
) -> tuple[EpisodeOutcome, ...]:
    """Return the episodes of an evaluation's result, its figures checked against them."""
    outcomes = tuple(
        EpisodeOutcome(
            task=one["partner"], seed=one["seed"], success=one["success"], score=one["return"]
        )
        for one in facts["episodes"]
    )
    played = [outcome.seed for outcome in outcomes]
    if played != list(range(seeds.start, seeds.start + seeds.count)):
        raise IntegrityError(
            f"{source}: expected the seeds {seeds.start} to {seeds.start + seeds.count - 1} in "
            f"order, got {played[:3]}...; remove the folder of the step and run it again."
        )
    groups = {"overall": (facts["overall"], outcomes)}
    for name, figures in facts["per_task"].items():
        groups[name] = (figures, tuple(o for o in outcomes if o.task == name))
    for name, (figures, group) in groups.items():
        rate = sum(o.success for o in group) / max(len(group), 1)
        if figures["n_episodes"] != len(group) or figures["success_rate"] != rate:
            raise IntegrityError(
                f"{source}: expected figures of {name!r} that follow from the episodes ({rate} of "
                f"{len(group)}), got {figures['success_rate']} of {figures['n_episodes']}."
            )
    return outcomes


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
        if self._config.seed_root is not None:
            return None
        return _planned(
            NativeCollect(
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
        )

    def read_data(self, request: DataRequest) -> DatasetRef:
        """Return the data of the cycle."""
        plan = self.plan_data(request)
        if plan is None:
            return self._seed_data(request)
        facts = read_result(plan)
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
            "init_sha256": None if job.init is None else weights_digest(job.init),
        }
        if request.dataset.sha256 is not None:
            more["dataset_sha256"] = request.dataset.sha256
        if mix is None or mix.sha256 is not None:
            more["mix_sha256"] = None if mix is None else mix.sha256
        facts = read_result(_planned(job), **more)
        made = CheckpointRecord(
            policy_type=request.rung,
            path=str(request.folder / str(facts["policy"]["file"])),
            cycle=request.cycle,
            sha256=facts["policy"]["sha256"],
        )
        return require_intact(made)

    def plan_eval(self, request: EvalRequest) -> JobPlan:
        """Return the job that evaluates."""
        return _planned(
            NativeEvaluate(
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
        )

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return what the evaluation measured, with every episode."""
        facts = read_result(self.plan_eval(request), **_of_policy(request.checkpoint))
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
        return _planned(
            NativeHarvest(
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
        )

    def read_harvest(self, request: HarvestRequest) -> Harvest:
        """Return what the collection brought."""
        facts = read_result(self.plan_harvest(request), **_of_policy(request.checkpoint))
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
        return _planned(
            NativeMerge(
                out=request.folder,
                result_json=request.folder / RESULT,
                sources=tuple(local_root(source) for source in request.sources),
                repo_id=request.repo_id,
            )
        )

    def read_merge(self, request: MergeRequest) -> DatasetRef:
        """Return the joined dataset with its digest."""
        digests = [source.sha256 for source in request.sources]
        known = {} if None in digests else {"sources_sha256": digests}
        facts = read_result(self.plan_merge(request), **known)
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

    def _seed_data(self, request: DataRequest) -> DatasetRef:
        """Return the part of the user's dataset that the cycle takes."""
        root = Path(str(self._config.seed_root))
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


def _planned(job: NativeJob) -> JobPlan:
    return JobPlan(job=job, output_dir=job.out, result_path=job.result_json)


def _of_policy(checkpoint: CheckpointRecord) -> dict[str, str]:
    """Return what a result says of the policy that played, if that is known."""
    return {} if checkpoint.sha256 is None else {"policy_sha256": checkpoint.sha256}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
