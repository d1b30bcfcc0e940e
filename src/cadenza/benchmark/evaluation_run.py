"""Run an evaluation: checked configuration, plan, missing cells, one bundle per policy.

Output:   ``plan.json`` (immutable), ``cells/`` (one file per finished cell) and
          ``bundles/<policy>/``. Killed at any point, the same call with ``resume`` goes on.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

from pydantic import Field, ValidationError

import cadenza
from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import build_partner, code_digest, require_player
from cadenza.benchmark.bundle import (
    BundleRequest,
    build_bundle_files,
    current_provenance,
    write_bundle_dir,
)
from cadenza.benchmark.cells import (
    CELLS_FOLDER,
    LANES,
    SCALAR,
    CellRunnerFactory,
    ConditionEntry,
    EngineEntry,
    EvaluationPlan,
    Name,
    PartnerEntry,
    PlanModel,
    PolicyChoice,
    PolicyEntry,
    ResumeState,
    batches,
    find_missing_cells,
    from_name,
    partner_classes,
    read_cell,
    store_cell,
    store_plan,
)
from cadenza.benchmark.executor import (
    FailurePolicy,
    Job,
    JobFailure,
    JobProgress,
    default_workers,
    require_same,
    run_jobs,
)
from cadenza.benchmark.lanes import DEFAULT_LANES, has_lanes
from cadenza.benchmark.output_folder import open_output_folder, output_mode, require_outside
from cadenza.benchmark.policies import policy_weights_sha256
from cadenza.benchmark.ray_executor import RayCluster, run_jobs_on_ray
from cadenza.benchmark.registration import require_registered
from cadenza.benchmark.tasks import OptionValue, TaskSpec, get_task
from cadenza.core.checkpoints import resolve_uri
from cadenza.core.device import network_fingerprint
from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.core.files import remove_temporaries
from cadenza.core.key_values import apply_settings
from cadenza.core.signals import ends_on_signals
from cadenza.core.yaml_files import read_yaml
from cadenza.evaluation.prereg import LockedRegistration
from cadenza.evaluation.results import MIN_RESAMPLES, EpisodeResult, SubStage, first_problem
from cadenza.evaluation.summary import SummarySettings
from cadenza.partners.registry import list_registered, outside_modules
from cadenza.partners.weights import weights_digest, weights_path
from cadenza.partners.zoo_member import ZOO_MEMBER

#: Episodes that are kept in memory once they are read, about 3 kB each.
MAX_KEPT: Final = 50_000
#: Longest queue of episodes of one batch, per lane.
_QUEUE: Final = 4
#: Episodes per cell: a few seconds of work, so that little is lost and the pool stays busy.
DEFAULT_BLOCK_SIZE: Final = 20


class PartnerChoice(PartnerConfig):
    """A partner with the fields of `PartnerConfig`; ``seen`` if the ego trained with it."""

    name: Name
    class_name: str = Field()
    seen: bool = False


class EvaluationConfig(PlanModel):
    """Everything that determines one evaluation.

    Attributes:
        task: Registered task.
        task_version: Its version; by default the latest.
        condition_id: The one of the task's conditions; by default the usual one.
        episode_length: Control steps until truncation; by default the task's.
        agent_uids: Names of ego and partner seat.
        options: Further settings of the task's environment.
        policies: Ego policies; a bare built-in name is enough.
        partners: Partners; a bare class name is enough; by default the task's.
        conditions: Conditions; by default with and without the filter.
        seeds: Evaluation seeds, the clusters of the statistics.
        episodes_per_seed: Episodes per policy, condition, partner and seed.
        block_size: Episodes per cell, the unit of resuming.
        failure_policy: ``strict`` stops at the first failed cell, ``best_effort`` goes on and
            records the failure in the bundle.
        cell_time_limit_s: Most seconds that a cell may take; one that takes longer has failed. None
            for no limit.
        n_resamples: 0 for Student-t intervals on seed means, else bootstrap replicates.
        bootstrap_root_seed: Root seed of those replicates.
        artifacts_root: Folder that ``local://`` addresses are relative to. Partners load theirs
            from the folder of `cadenza.partners.weights`, and refuse other bytes than those here.
    """

    task: str
    task_version: int | None = None
    condition_id: str | None = None
    episode_length: int | None = Field(default=None, gt=0)
    agent_uids: tuple[str, str] = ("ego", "partner")
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    policies: tuple[Annotated[PolicyChoice, from_name("name", "source")], ...] = Field(min_length=1)
    partners: tuple[Annotated[PartnerChoice, from_name("name", "class_name")], ...] | None = None
    conditions: tuple[ConditionEntry, ...] = Field(
        default=(
            ConditionEntry(name="filter_on", safety=SafetyConfig(enabled=True)),
            ConditionEntry(name="filter_off"),
        ),
        min_length=1,
    )
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    episodes_per_seed: int = Field(default=20, gt=0)
    block_size: int = Field(default=DEFAULT_BLOCK_SIZE, gt=0)
    failure_policy: FailurePolicy = "strict"
    cell_time_limit_s: float | None = Field(default=None, gt=0)
    n_resamples: int = Field(default=0, ge=0)
    bootstrap_root_seed: int = Field(default=0, ge=0)
    artifacts_root: Path = Path()


def load_evaluation_config(path: Path, settings: Sequence[str] = ()) -> EvaluationConfig:
    """Return the configuration in the YAML file ``path``, with ``KEY=VALUE`` settings applied."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: expected a YAML mapping, got {type(content).__name__}.")
    return EvaluationConfig.model_validate(
        apply_settings(cast("dict[str, Any]", content), settings)
    )


def make_plan(config: EvaluationConfig) -> EvaluationPlan:
    """Return the plan of ``config``; reads the digests of all weights."""
    task = get_task(config.task, config.task_version)
    _check_fit(config, task)
    root = config.artifacts_root
    partners = tuple(_partner_entry(partner, config) for partner in _partners(config))
    for condition in config.conditions:  # refuses unknown options before anything is written
        task.complete_options({**config.options, **condition.options})
        build_partner(condition.partner_of(partners[0].partner))
    env = EnvConfig(
        task=config.task,
        condition_id=config.condition_id,
        episode_length=config.episode_length or task.episode_length,
        agent_uids=config.agent_uids,
        options=dict(task.complete_options(config.options)),
    )
    try:
        return EvaluationPlan(
            task_version=task.version,
            env=env,
            policies=tuple(
                PolicyEntry(
                    **policy.model_dump(),
                    weights_sha256=policy_weights_sha256(
                        policy.source, artifacts_root=root, task=config.task
                    ),
                )
                for policy in config.policies
            ),
            partners=partners,
            conditions=config.conditions,
            seeds=config.seeds,
            episodes_per_seed=config.episodes_per_seed,
            block_size=config.block_size,
            code_sha256=code_digest(task, partner_classes(partners, config.conditions)),
            package_version=cadenza.__version__,
            engine=_engine(config, task, env, partners),
        )
    except ValidationError as error:
        raise ConfigurationError(f"evaluation: {first_problem(error)}.") from error


def _engine(
    config: EvaluationConfig, task: TaskSpec, env: EnvConfig, partners: Sequence[PartnerEntry]
) -> EngineEntry:
    """Return what plays each condition: lanes wherever there is a batch."""
    first = partners[0].partner

    def engine(condition: ConditionEntry) -> Literal["lanes/1", "scalar/1"]:
        if condition.link is not None:
            return SCALAR
        own_env, partner = condition.env_of(env), condition.partner_of(first)
        possible = has_lanes(task, own_env, partner, condition.safety)
        return LANES if possible else SCALAR

    return EngineEntry(conditions={entry.name: engine(entry) for entry in config.conditions})


def summary_settings(config: EvaluationConfig) -> SummarySettings:
    """Return what the bundle's summary compares.

    Conditions with the filter of the first one, but another link or other settings, are compared
    with it; otherwise filtered with unfiltered, where both exist.
    """
    first, *others = config.conditions
    filtered = [c.name for c in config.conditions if c.safety.enabled]
    unfiltered = [c.name for c in config.conditions if not c.safety.enabled]
    comparison = (filtered[0], unfiltered[0]) if filtered and unfiltered else None
    alike = tuple(c.name for c in others if c.safety == first.safety)
    if alike:
        comparison = (*alike, first.name)
    return SummarySettings(
        n_resamples=config.n_resamples,
        bootstrap_root_seed=config.bootstrap_root_seed,
        headline_condition=(filtered or unfiltered)[0],
        comparison=comparison,
    )


def _partners(config: EvaluationConfig) -> tuple[PartnerChoice, ...]:
    if config.partners is not None:
        return config.partners
    task = get_task(config.task, config.task_version)
    return tuple(
        PartnerChoice(name=name, class_name=name, seen=name == task.seen_partner)
        for name in task.partners
    )


def _partner_entry(choice: PartnerChoice, config: EvaluationConfig) -> PartnerEntry:
    digest, extra = None, {"uid": config.agent_uids[1], **choice.extra}
    if choice.class_name == ZOO_MEMBER:  # reads relative to its own option
        extra.setdefault("root", str(config.artifacts_root))
    own = choice.model_dump(exclude={"name", "seen", "extra"})
    partner = PartnerConfig(**own, extra=extra)
    if partner.weights_uri is not None:
        digest = weights_digest(partner.weights_uri, artifacts_root=_root_of(partner))
    build_partner(partner)  # refuses unknown and wrong options before anything is written
    return PartnerEntry(name=choice.name, partner=partner, seen=choice.seen, weights_sha256=digest)


def _root_of(partner: PartnerConfig) -> Path | None:
    """Return the folder that its address is relative to; None for the artifacts folder."""
    return Path(partner.extra["root"]) if "root" in partner.extra else None


def _check_fit(config: EvaluationConfig, task: TaskSpec) -> None:
    """Raise unless partners, conditions and intervals exist for ``task``."""
    known = list_registered()
    for partner in _partners(config):
        _require(
            partner.class_name in known,
            f"partners: expected class_name among {', '.join(known)}, got {partner.class_name!r}"
            f"{did_you_mean(partner.class_name, known)}",
        )
        require_player(task, partner.class_name)
    if any(condition.safety.enabled for condition in config.conditions):
        _require(task.supports_safety, f"task {task.task_id!r} has no safety filter; turn it off")
    if any(condition.link is not None for condition in config.conditions):
        _require(task.supports_links, f"task {task.task_id!r} has no links; drop them")
    if config.n_resamples != 0:
        enough = config.n_resamples >= MIN_RESAMPLES
        _require(enough, f"n_resamples must be 0 or >= {MIN_RESAMPLES}, got {config.n_resamples}")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ConfigurationError(f"evaluation: {problem}.")


_logger = logging.getLogger(__name__)

#: Folder of bundles inside the output folder.
BUNDLES_FOLDER: Final = "bundles"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOutcome:
    """What an evaluation produced.

    Attributes:
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


@ends_on_signals
def run_evaluation(
    config: EvaluationConfig,
    *,
    out: Path,
    workers: int | None = None,
    lanes: int = DEFAULT_LANES,
    cluster: RayCluster | None = None,
    resume: bool = False,
    overwrite: bool = False,
    repo_root: Path | None = None,
    repro_command: str = "cadenza eval run",
    config_sha256: str | None = None,
    registration: LockedRegistration | None = None,
    spike: tuple[str, SubStage] | None = None,
    progress: JobProgress | None = None,
    held: ExitStack | None = None,
) -> EvaluationOutcome:
    """Run every cell that is not finished yet, and seal the results.

    Args:
        config: Checked configuration.
        out: Output folder.
        workers: Processes; by default one per core of this machine, or of the cluster.
        lanes: Most episodes that a process plays side by side; no byte depends on it.
        cluster: Ray cluster whose actors play; None for processes of this machine.
        resume: Continue an earlier run in ``out``.
        overwrite: Delete an earlier run in ``out`` first.
        repo_root: Source tree for the provenance; by default this package's own checkout.
        repro_command: Command line that repeats the evaluation; no host paths, it is hashed.
        config_sha256: Digest of the training configuration behind the policies, if known.
        registration: Protocol that was registered for this evaluation, locked by its tag.
        spike: Axis and stage of the spike that it is; bundles then hold its archive.
        progress: Called with (cells done, cells in all, label of the last one).
        held: Keeps ``out`` locked until it closes, for a caller who goes on to work there.

    Raises:
        ConfigurationError: The configuration or the folder does not fit.
        PreregistrationError: It is not the registered one; nothing was measured.
        CheckpointError: Weights are missing or damaged.
        CadenzaError: A cell failed and the policy is ``strict``; finished cells are kept.
        StorageError: The file system refused; finished cells are kept.
    """
    plan = make_plan(config)
    if registration is not None:
        require_registered(registration, plan, summary_settings(config))
    with ExitStack() as own:
        mode = output_mode(resume=resume, overwrite=overwrite)
        if mode == "overwrite":
            require_outside(out, _weights(plan, config.artifacts_root))
        (held or own).enter_context(open_output_folder(out, mode=mode))
        store_plan(out, plan)
        state = find_missing_cells(out, plan)
        for key, reason in state.damaged.items():
            _logger.warning("Running %s again: %s", plan.cells[key].label, reason)
        network = network_fingerprint() if state.missing else min(state.networks, default=None)
        for other in state.networks:
            require_same(network or "", other, f"{out}: finished cells")
        failures = _run_cells(config, plan, state, out, _Means(workers, lanes, cluster), progress)
        remove_temporaries(out / CELLS_FOLDER)
        episodes = StoredEpisodes(out, plan, {failure.key for failure in failures})
        template = BundleRequest(
            plan=plan,
            policy="",
            episodes=(),
            provenance=current_provenance(repo_root),
            repro_command=repro_command,
            settings=summary_settings(config),
            config_sha256=config_sha256,
            prereg=registration,
            network_sha256=network,
            spike=None if spike is None else {"axis": spike[0], "sub_stage": spike[1]},
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


def _weights(plan: EvaluationPlan, artifacts_root: Path) -> Iterator[Path]:
    """Yield the files that policies and partners are read from."""
    for policy in plan.policies:
        if policy.weights_sha256 is not None:
            yield resolve_uri(policy.source, artifacts_root=artifacts_root)
    for entry in plan.partners:
        if entry.weights_sha256 is not None:
            root = _root_of(entry.partner)
            yield weights_path(cast("str", entry.partner.weights_uri), artifacts_root=root)


class _Means(NamedTuple):
    """With what cells are played."""

    workers: int | None
    lanes: int
    cluster: RayCluster | None


def _run_cells(
    config: EvaluationConfig,
    plan: EvaluationPlan,
    state: ResumeState,
    out: Path,
    means: _Means,
    progress: JobProgress | None,
) -> list[JobFailure]:
    """Run the missing cells and return the failures."""
    done = len(state.done)
    if means.lanes < 1:
        raise ConfigurationError(f"run_evaluation: expected lanes >= 1, got {means.lanes}.")

    def report(finished: int, _: int, label: str) -> None:
        if progress is not None:
            progress(done + finished, len(plan.cells), label)

    report(0, 0, "")
    factory = CellRunnerFactory(
        plan=plan.to_bytes(),
        artifacts_root=config.artifacts_root.resolve(),
        task=get_task(plan.env.task, plan.task_version),
        modules=outside_modules(partner_classes(plan.partners, plan.conditions)),
        lanes=means.lanes,
    )
    workers = default_workers() if means.workers is None else means.workers
    missing = sum(plan.cells[key].n_episodes for key in state.missing)
    # Queues longer than there are lanes keep them full; shorter ones keep workers busy.
    size = max(means.lanes, min(_QUEUE * means.lanes, -(-missing // max(workers, 1))))
    jobs = [
        Job(key=key, label=plan.cells[key].label, batch=batch, configuration=configuration)
        for key, configuration, batch in batches(plan, state.missing, episodes=size)
    ]
    common: dict[str, Any] = {
        "failure_policy": config.failure_policy,
        "progress": report,
        "store": partial(store_cell, out),
        "time_limit_s": config.cell_time_limit_s,
        "fingerprint": network_fingerprint,
    }
    if means.cluster is not None:
        return run_jobs_on_ray(jobs, factory, cluster=means.cluster, actors=means.workers, **common)
    return run_jobs(jobs, factory, workers=workers, **common)


class StoredEpisodes(Mapping[str, Sequence[EpisodeResult]]):
    """The episodes of each policy, in plan order, read when asked for.

    They are kept as far as there are no more than `MAX_KEPT`; more are read again each time.
    """

    def __init__(self, folder: Path, plan: EvaluationPlan, failed: set[str]) -> None:
        self._folder, self._plan, self._failed = folder, plan, failed
        self._kept: dict[str, list[EpisodeResult]] = {}

    def __getitem__(self, policy: str) -> list[EpisodeResult]:
        """Return the stored episodes of one policy."""
        if policy in self._kept:
            return self._kept[policy]
        self._plan.policy(policy)
        episodes = [
            episode
            for key, cell in self._plan.cells.items()
            if cell.policy == policy and key not in self._failed
            for episode in read_cell(self._folder, key, self._plan)
        ]
        if sum(map(len, self._kept.values())) + len(episodes) <= MAX_KEPT:
            self._kept[policy] = episodes
        return episodes

    def __iter__(self) -> Iterator[str]:
        """Return the policies' names."""
        return (entry.name for entry in self._plan.policies)

    def __len__(self) -> int:
        """Return the number of policies."""
        return len(self._plan.policies)


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
