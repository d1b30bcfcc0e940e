"""The LeRobot back end: training, evaluation and rollouts by LeRobot in its own environment.

Data:      the seed dataset, or the part that a proposal asks for. A suite's episodes
           (``data.task_filter``), or more of the tasks that fail, are chosen by a job.
Training:  afresh or from given weights, with another seed every cycle.
Mix:       harvested episodes alone with ``improve.mix_ratio: 1``, as in LeAgents; otherwise joined
           with the data, episodes left out until the ratio holds.
Commands:  as LeAgents wrote them, with seeds and shared environment settings before the user's
           further arguments. A flag that the release lacks is a `ConfigurationError`; without an
           environment, as in a dry run, nobody can tell.
Tasks:     are called ``<suite>_<number>``, as LeRobot names the folders of their videos.
Seeds:     a report of LeRobot 0.4 names none; episode i of every task began from seed start + i, as
           `cadenza.loop.backends.lerobot_probe` tries out before a run. Where a report does name
           seeds, they must be these.
Frames:    of data and mix only the episodes that the blending script keeps count. Lengths of data
           on a hub are not known; a blend with them has about F_m / r frames at most, F_m those of
           the mix and r its share.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from pydantic import TypeAdapter, ValidationError

from cadenza.core.errors import ConfigurationError, IntegrityError, MissingExtraError
from cadenza.core.extras import load_extra
from cadenza.core.files import tree_digest
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.base import dataset_info
from cadenza.loop.backends.lerobot_probe import (
    Interface,
    LeRobotEnvironment,
    LeRobotTools,
    dataset_interface,
    describe_environment,
    environment_interface,
    lerobot_programs,
    machine_has_gpu,
    policy_interface,
    probe,
    require_agreement,
    require_seeds,
)
from cadenza.loop.config import LoopConfig
from cadenza.loop.config_backends import (
    environment_of,
    flag_of,
    seeded_words,
    unseeded_words,
)
from cadenza.loop.constitution import JobPlan
from cadenza.loop.constitution.typed_jobs import (
    LeRobotEvaluate,
    LeRobotHarvest,
    LeRobotMerge,
    LeRobotSelect,
    LeRobotTrain,
)
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    Device,
    EpisodeOutcome,
    EvalReport,
    EvalRequest,
    Harvest,
    HarvestRequest,
    MergeRequest,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.errors import DataError, EvalError, ImproveError
from cadenza.loop.scripts.merge_datasets import chosen

#: Results of our scripts, in the folder of their step.
RESULT: Final = "result.json"
#: Dataset that a step makes, in its folder.
DATASET: Final = "dataset"
#: Suites whose instructions the package libero knows.
_LIBERO: Final = "libero"
#: Seeds that all of LeRobot's generators take lie below.
_SEED_LIMIT: Final = 2**32
#: What an evaluation writes at its end.
EVAL_INFO: Final = "eval_info.json"
#: Where training leaves its last policy.
CHECKPOINT: Final = Path("checkpoints/last/pretrained_model")
_STEP: Final = Path("checkpoints/last/training_state/training_step.json")
#: Largest difference between a reported mean and that of the episodes, rounding of float32.
_TOLERANCE: Final = 1e-6


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``, or raise `IntegrityError` without one."""
    try:
        return parse_json_object(path.read_bytes(), source=str(path))
    except OSError as error:
        raise IntegrityError(
            f"{path}: expected the result of a job, got '{error.strerror}'; run it again."
        ) from error


def success_rate(raw: Mapping[str, Any], *, source: str) -> float:
    """Return the share of successes, in [0, 1], that an evaluation states.

    It is in ``overall``, else in ``aggregated``, else at the top: ``pc_success`` in percent, else
    ``success_rate``.
    """
    aggregate: Any = raw.get("overall", raw.get("aggregated", raw))
    found: Any = None
    if isinstance(aggregate, dict):
        stated = cast("dict[str, Any]", aggregate)
        found = stated.get("pc_success")
        found = found / 100.0 if _is_number(found) else stated.get("success_rate")
    if not _is_number(found) or not -_TOLERANCE <= found <= 1.0 + _TOLERANCE:
        raise EvalError(
            f"{source}: expected pc_success in [0, 100] or success_rate in [0, 1], got {found!r}."
        )
    return min(1.0, max(0.0, float(found)))


def episode_outcomes(
    raw: Mapping[str, Any], seeds: SeedRange, *, source: str
) -> tuple[EpisodeOutcome, ...]:
    """Return every episode of every task, tasks by name; empty if the evaluation lists none.

    An `EvalError` tells of other episodes than ``seeds``, or of values that make no sense.
    """
    expected = list(range(seeds.start, seeds.start + seeds.count))
    outcomes: list[EpisodeOutcome] = []
    if not isinstance(raw.get("per_task"), list):
        return ()
    entries = cast("list[dict[str, Any]]", raw["per_task"])
    try:
        tasks = {f"{e['task_group']}_{e['task_id']}": e["metrics"] for e in entries}
        if len(tasks) != len(entries):
            raise EvalError(f"{source}: expected every task once, got {len(entries)} of them.")
        for name, metrics in sorted(tasks.items()):
            successes, scores = metrics["successes"], metrics["max_rewards"]
            if {len(successes), len(scores)} != {seeds.count}:
                raise EvalError(
                    f"{source}: expected {seeds.count} episodes of {name}, got {len(successes)}."
                )
            named = [dict(one).get("seed") for one in metrics.get("per_episode") or ()]
            if any(seed is not None for seed in named) and named != expected:
                raise EvalError(
                    f"{source}: {name}: expected episodes from the seeds {expected[0]} to "
                    f"{expected[-1]} in order, got {named[:3]}...; others may be those of training "
                    "data."
                )
            outcomes += [
                EpisodeOutcome(task=name, seed=seed, success=ok, score=score)
                for seed, ok, score in zip(expected, successes, scores, strict=True)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise EvalError(
            f"{source}: expected successes and max_rewards of every task, got {error!r}."
        ) from error
    return tuple(outcomes)


def local_dataset(facts: Mapping[str, Any], repo_id: str, *, notes: str = "") -> DatasetRef:
    """Return the dataset that a script says it wrote, with its digest."""
    root = Path(str(facts["root"]))
    count = facts.get("kept", facts.get("episodes"))
    return DatasetRef(
        repo_id=repo_id,
        root=str(root),
        num_episodes=int(cast("int", count)),
        notes=notes,
        sha256=tree_digest(root),
    )


def _group_rates(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates of groups of tasks, for evaluations that list no tasks."""
    groups: Any = raw.get("per_group", {})
    return {
        str(name): float(group["pc_success"]) / 100.0
        for name, group in cast("dict[str, Any]", groups).items()
        if _is_number(group.get("pc_success"))
    }


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # a whole number may be beyond it


def capped_steps(request: TrainRequest, max_epochs: float | None) -> int:
    """Return the gradient steps: fewer on data so small that ``max_epochs`` would be passed."""
    frames = None if max_epochs is None else trained_frames(request)
    if max_epochs is None or frames is None:
        return request.steps
    return min(request.steps, max(1, math.ceil(max_epochs * frames / request.batch_size)))


def trained_frames(request: TrainRequest) -> int | None:
    """Return the frames that a training draws from; None for data that is not here."""
    data, mix = request.dataset, request.mix
    if mix is None or mix.root is None or request.mix_ratio == 0.0:
        return _frames(data)
    if request.mix_ratio == 1.0:
        return _frames(mix)
    if not Path(mix.root).is_dir():
        return None
    mixed = episode_lengths(Path(mix.root))
    if data.root is None:
        return math.ceil(sum(mixed) / request.mix_ratio)
    if not Path(data.root).is_dir():
        return None
    own = episode_lengths(Path(data.root))
    lengths = [*own, *mixed]
    own_episodes = range(len(own)) if data.episodes is None else sorted(set(data.episodes))
    mixed_episodes = range(len(own), len(lengths))
    kept = chosen(lengths, own_episodes, mixed_episodes, request.mix_ratio)
    return sum(lengths[episode] for episode in kept)


def episode_lengths(root: Path) -> list[int]:
    """Return the frames of every episode in order; a `ConfigurationError` for a damaged dataset."""
    arrow, parquet = load_extra("pyarrow"), load_extra("pyarrow.parquet")
    found: dict[int, int] = {}
    try:
        for path in sorted((root / "meta" / "episodes").rglob("*.parquet")):
            table = parquet.ParquetFile(path).read(columns=["episode_index", "length"])
            numbers, lengths = table["episode_index"].to_pylist(), table["length"].to_pylist()
            found.update(zip(numbers, lengths, strict=True))
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise ConfigurationError(
            f"{root}: expected readable tables below meta/episodes, got: {error}"
        ) from error
    if not found or sorted(found) != list(range(len(found))):
        raise ConfigurationError(
            f"{root}: expected episodes 0, 1, 2, ... below meta/episodes, got {len(found)} of "
            "other numbers; the dataset is incomplete."
        )
    return [found[number] for number in range(len(found))]


def _frames(data: DatasetRef) -> int | None:
    """Return the frames of a dataset that count; None if it is not on this machine."""
    if data.root is None or not Path(data.root).is_dir():
        return None
    root = Path(data.root)
    if data.episodes is None:
        return int(dataset_info(root).get("total_frames", 0))
    lengths = episode_lengths(root)
    return sum(lengths[episode] for episode in set(data.episodes))


class LeRobotBackend:
    """Commands of LeRobot, and readers of what they leave."""

    def __init__(
        self,
        config: LoopConfig,
        *,
        environment: LeRobotEnvironment | None = None,
        environ: Mapping[str, str] = os.environ,
        measures: bool = True,
    ) -> None:
        """Take the settings of a run; without ``environment``, ``environ`` says where LeRobot is.

        ``measures`` off: the configuration says nowhere that policies are measured, so nothing is
        compared with an environment, nor is one asked whether it follows its seeds.
        """
        self._config = config
        self._given, self._environ = environment, environ
        self._measures = measures

    @property
    def name(self) -> str:
        """Name in configurations."""
        return "lerobot"

    @property
    def capabilities(self) -> dict[str, str]:
        """Release and flag names of the installed LeRobot, its device, and what its seeds mean."""
        device = "cuda" if self._has_gpu else "cpu"
        if self._tools is None:
            return {"lerobot": "not installed", "device": device}
        return {**self._tools.capabilities, "device": device, **self._seeds}

    @property
    def programs(self) -> Mapping[str, tuple[str, ...]]:
        """Executables of LeRobot and of our scripts, for the runner."""
        return lerobot_programs(self._environment or LeRobotEnvironment.find(self._environ))

    def plan_data(self, request: DataRequest) -> JobPlan | None:
        """Return the job that chooses episodes; None where all or the first ones are taken."""
        suite = self._suite(request)
        if suite is None:
            return None
        instructions = self._config.data.instructions
        job = LeRobotSelect(
            repo_id=request.proposal.dataset,
            root=self._seed_root,
            suite=suite,
            limit=request.proposal.num_episodes,
            focus=_of_suite(request.proposal.focus, suite) or None,
            instructions=None if instructions is None else instructions.absolute(),
            result_json=request.folder / RESULT,
        )
        return JobPlan(job=job, output_dir=request.folder, result_path=job.result_json)

    def read_data(self, request: DataRequest) -> DatasetRef:
        """Return the data of the cycle."""
        proposal, root = request.proposal, self._seed_root
        notes, count = proposal.notes, proposal.num_episodes
        episodes: tuple[int, ...] | None = None
        suite = self._suite(request)
        if suite is not None:
            facts = read_document(request.folder / RESULT)
            found: Any = facts.get("episodes")
            episodes = tuple(cast("list[Any]", found)) if isinstance(found, list) else ()
            if not episodes or not all(type(one) is int and one >= 0 for one in episodes):
                raise DataError(f"{request.folder}: expected chosen episodes, got {found!r}.")
            covered = f"{facts.get('tasks_covered')}/{facts.get('suite_tasks')} tasks covered"
            notes, count = f"{notes} | suite={suite}, {covered}", len(episodes)
        elif root is not None:
            total = int(cast("int", dataset_info(root).get("total_episodes", 0)))
            count = total if count is None else min(count, total)
            episodes = tuple(range(count)) if count < total else None
        return DatasetRef(
            repo_id=proposal.dataset,
            root=None if root is None else str(root),
            episodes=episodes,
            num_episodes=count,
            notes=notes,
            sha256=None if root is None else tree_digest(root),
        )

    def plan_train(self, request: TrainRequest) -> JobPlan:
        """Return the job that trains; it goes on when it is started again."""
        data, mix = request.dataset, request.mix
        if mix is not None and request.mix_ratio == 1.0:
            data, mix = mix, None
        if mix is not None and (request.mix_ratio == 0.0 or mix.root is None):
            mix = None
        episodes = data.episodes
        if episodes is None and data.num_episodes and data.root is None:  # the first of a hub's
            episodes = range(data.num_episodes)
        extra = self._translated("lerobot-train", request.extra_args)
        played = environment_of(extra)
        if played is not None:
            extra = (*_new(self._shared_words, extra), *extra)
            extra = (*_seeded("lerobot-train", played, extra), *extra)
        workers_known = self._has_gpu or "numworkers" in map(flag_of, extra)
        stream = derive_substream("loop.lerobot.training", root_seed=self._config.seed)
        job = LeRobotTrain(
            policy_path=request.init or None,
            policy_type=None if request.init else request.rung,
            push_to_hub=False,
            repo_id=data.repo_id,
            dataset_root=_path(data.root),
            revision=data.revision,
            episodes=None if episodes is None else list(episodes),
            mix_repo_id=None if mix is None else mix.repo_id,
            mix_root=None if mix is None else _path(mix.root),
            mix_ratio=None if mix is None else request.mix_ratio,
            output_dir=request.folder,
            steps=self._steps(request),
            batch_size=request.batch_size,
            seed=stream.child(request.cycle).integer_seed() % _SEED_LIMIT,
            num_workers=None if workers_known else 0,
            extra=extra,
        )
        return JobPlan(job=job, output_dir=request.folder, device=self._device(extra))

    def read_train(self, request: TrainRequest) -> CheckpointRecord:
        """Return the trained policy with its digest."""
        path, steps = request.folder / CHECKPOINT, self._steps(request)
        if not (path / "config.json").is_file():
            raise IntegrityError(
                f"{path}: expected a trained policy, got no config.json; see the log of the "
                "training."
            )
        step = read_document(request.folder / _STEP).get("step")
        if step != steps:
            raise IntegrityError(f"{path}: expected a policy after {steps} steps, got {step}.")
        return CheckpointRecord(
            policy_type=request.rung, path=str(path), cycle=request.cycle, sha256=tree_digest(path)
        )

    def plan_eval(self, request: EvalRequest) -> JobPlan:
        """Return the job that plays ``seeds.count`` episodes of every task of the suite."""
        measured, count = self._config.eval, request.seeds.count
        words = (*measured.env_args, *request.extra_args)
        words = self._translated("lerobot-eval", words)
        job = LeRobotEvaluate(
            policy_path=request.checkpoint.path,
            env_type=measured.env_type,
            suites=tuple(measured.task_suite.split(",")),
            episodes=count,
            batch_size=min(request.batch_size, count),
            output_dir=request.folder,
            seed=request.seeds.start,
            extra=(*words, *_seeded("lerobot-eval", measured.env_type, words)),
        )
        return JobPlan(
            job=job,
            output_dir=request.folder,
            result_path=request.folder / EVAL_INFO,
            device=self._device(job.extra),
            on_existing="remove",
        )

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return what the evaluation measured, with every episode."""
        path = request.folder / EVAL_INFO
        raw = read_document(path)
        rate = success_rate(raw, source=str(path))
        outcomes = episode_outcomes(raw, request.seeds, source=str(path))
        of_task: dict[str, list[bool]] = {}
        for outcome in outcomes:
            of_task.setdefault(outcome.task, []).append(outcome.success)
        rates = {task: sum(found) / len(found) for task, found in of_task.items()}
        if outcomes:
            mean = sum(outcome.success for outcome in outcomes) / len(outcomes)
            if abs(mean - rate) > _TOLERANCE:
                raise EvalError(
                    f"{path}: expected the success rate of its episodes, {mean:.6f}, got "
                    f"{rate:.6f}."
                )
        return EvalReport(
            checkpoint=request.checkpoint.path,
            env_type=self._config.eval.env_type,
            task_suite=self._config.eval.task_suite,
            n_episodes=len(outcomes) or request.seeds.count,
            success_rate=rate,
            per_task=rates or _group_rates(raw),
            raw=raw,
            outcomes=outcomes,
        )

    def plan_harvest(self, request: HarvestRequest) -> JobPlan:
        """Return the job that collects successes where policies are measured."""
        measured, extra = self._config.eval, request.extra_args
        words = (*_new(self._shared_words, extra), *extra)
        names = {} if "renamemap" in map(flag_of, extra) else rename_map(measured.extra_args)
        job = LeRobotHarvest(
            policy_path=request.checkpoint.path,
            env_type=measured.env_type,
            suites=tuple(measured.task_suite.split(",")),
            episodes=request.episodes,
            out=request.folder / DATASET,
            repo_id=request.repo_id,
            device=request.device,
            seed=request.seeds.start,
            attempts=request.seeds.count,
            focus=request.focus or None,
            rename_map=names or None,
            task_text=request.task_text or None,
            result_json=request.folder / RESULT,
            extra=(*words, *_seeded("cadenza-lerobot-collect", measured.env_type, words)),
        )
        return JobPlan(
            job=job,
            output_dir=request.folder,
            result_path=job.result_json,
            device="cpu" if job.device == "cpu" else self._device(),
            on_existing="remove",
        )

    def read_harvest(self, request: HarvestRequest) -> Harvest:
        """Return what the collection brought."""
        path, seeds = request.folder / RESULT, request.seeds
        facts = read_document(path)
        try:
            played = cast("list[dict[str, Any]]", facts["episodes"])
            numbers = [int(entry["seed"]) for entry in played]
            kept = int(facts["kept"])
            harvest = Harvest(
                kept=kept,
                successes=facts["successes"],
                attempts=facts["attempts"],
                dataset=local_dataset(facts, request.repo_id) if kept else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ImproveError(
                f"{path}: expected the facts of a harvest, got {error!r}."
            ) from error
        if numbers != list(range(seeds.start, seeds.start + harvest.attempts)):
            raise ImproveError(
                f"{path}: expected attempts from seed {seeds.start} on, got {numbers[:3]}...; a "
                "harvest from other seeds may contain the test's."
            )
        if harvest.attempts > seeds.count:
            raise ImproveError(
                f"{path}: expected at most {seeds.count} attempts, got {harvest.attempts}."
            )
        return harvest

    def plan_merge(self, request: MergeRequest) -> JobPlan:
        """Return the job that joins; an `ImproveError` if sources are not local or differ.

        It calls LeRobot's Python functions: LeRobot's own command cannot name two folders before
        release 0.5.
        """
        roots = [_path(source.root) or _not_local(request, source) for source in request.sources]
        try:
            first, *others = map(dataset_interface, roots)
            for other in others:
                require_agreement(first, other)
                require_agreement(other, first)
        except (ConfigurationError, IntegrityError) as error:
            raise ImproveError(f"merge into {request.repo_id}: {error}") from error
        job = LeRobotMerge(
            source_ids=tuple(source.repo_id for source in request.sources),
            sources=tuple(roots),
            out=request.folder / DATASET,
            repo_id=request.repo_id,
            result_json=request.folder / RESULT,
        )
        return JobPlan(
            job=job,
            output_dir=request.folder,
            result_path=job.result_json,
            on_existing="remove",
        )

    def read_merge(self, request: MergeRequest) -> DatasetRef:
        """Return the joined dataset with its digest."""
        path = request.folder / RESULT
        facts = read_document(path)
        counts = [source.num_episodes for source in request.sources]
        wanted = None if None in counts else sum(count or 0 for count in counts)
        if facts.get("root") is None or facts.get("episodes") != (wanted or facts.get("episodes")):
            raise IntegrityError(
                f"{path}: expected a dataset of {wanted} episodes, got {facts.get('episodes')}."
            )
        return local_dataset(facts, request.repo_id, notes=f"{len(counts)} datasets joined")

    def check_features(self, dataset: DatasetRef, checkpoint: CheckpointRecord | None) -> None:
        """Raise unless dataset, policy and environment agree on names, shapes and image sizes.

        What the dataset has is what a policy will want of the environment.
        """
        _ = self._seeds
        policy = None if checkpoint is None else policy_interface(Path(checkpoint.path))
        data: Interface | None = None
        if dataset.root is not None:
            data = dataset_interface(Path(dataset.root))
            data = data.renamed(rename_map(self._config.train.extra_args))
        if policy is not None and data is not None:
            require_agreement(policy, data)
        wanted = policy or data
        if wanted is not None and self._environment is not None and self._measures:
            shown = environment_interface(self._environment, self._environment_words)
            require_agreement(wanted, shown.renamed(rename_map(self._config.eval.extra_args)))

    @cached_property
    def _environment(self) -> LeRobotEnvironment | None:
        if self._given is not None:
            return self._given
        try:
            return LeRobotEnvironment.find(self._environ)
        except MissingExtraError:
            return None

    @cached_property
    def _tools(self) -> LeRobotTools | None:
        """The flags of this release; None without LeRobot: further arguments are not checked."""
        return None if self._environment is None else probe(self._environment)

    @cached_property
    def _has_gpu(self) -> bool:
        """Whether jobs have one; with Slurm the nodes count, not where jobs are submitted."""
        jobs = self._config.jobs
        return jobs.slurm.gpus > 0 if jobs.runner == "slurm" else machine_has_gpu(self._environ)

    def _translated(self, tool: str, words: Sequence[str]) -> tuple[str, ...]:
        """Return further ``words`` in the names of this release."""
        return tuple(words) if self._tools is None else self._tools.translated(tool, words)

    @cached_property
    def _seeds(self) -> dict[str, str]:
        """What the seeds of the environment mean; nothing where it cannot be asked."""
        if self._environment is None or not self._measures:
            return {}
        file, facts = describe_environment(self._environment, self._environment_words)
        return require_seeds(facts, source=str(file))

    @property
    def _shared_words(self) -> tuple[str, ...]:
        """Words that change the environment of all commands; `env_args` may hold no others."""
        shared, extra = self._config.eval.env_args, self._config.eval.extra_args
        strangers = [word for word in shared if not word.startswith("--env.")]
        if strangers:
            raise ConfigurationError(
                f"eval.env_args: expected --env.key=value with LeRobot, got {strangers[0]!r}; give "
                "it to the commands that it is for, as extra_args."
            )
        return (*shared, *(word for word in extra if word.startswith("--env.")))

    @property
    def _environment_words(self) -> tuple[str, ...]:
        """What the environment that policies are measured in is described by."""
        measured, words = self._config.eval, self._shared_words
        named = (f"--env-type={measured.env_type}", f"--task={measured.task_suite}")
        return (*named, *words, *seeded_words(measured.env_type, words))

    @property
    def _seed_root(self) -> Path | None:
        root = self._config.seed_root
        return None if root is None else root.absolute()

    def _suite(self, request: DataRequest) -> str | None:
        """Return the suite to choose from; None where there is nothing to choose."""
        data, measured = self._config.data, self._config.eval
        if data.task_filter is not None:
            return data.task_filter
        known = data.instructions is not None or measured.env_type == _LIBERO
        single = "," not in measured.task_suite
        focus = _of_suite(request.proposal.focus, measured.task_suite)
        return measured.task_suite if known and single and focus else None

    def _steps(self, request: TrainRequest) -> int:
        return capped_steps(request, self._config.train.max_epochs)

    def _device(self, words: tuple[str, ...] = ()) -> Device:
        on_cpu = "--policy.device=cpu" in words
        return "gpu" if self._has_gpu and not on_cpu else "cpu"


def rename_map(words: Sequence[str]) -> dict[str, str]:
    """Return the new names of features, by the old, that further arguments give."""
    for word in words:
        if flag_of(word) == "renamemap":
            try:
                return TypeAdapter(dict[str, str]).validate_json(word.partition("=")[2])
            except ValidationError as error:
                raise ConfigurationError(
                    f"expected --rename_map as a JSON object, got {word!r}."
                ) from error
    return {}


def _seeded(program: str, env_type: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return what a command says beside ``words`` so that its seeds choose initial states."""
    for problem in unseeded_words(program, env_type, words):
        raise ConfigurationError(f"{problem}.")
    return seeded_words(env_type, words)


def _new(words: Sequence[str], beside: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``words`` whose flags are not among those of ``beside``."""
    given = set(map(flag_of, beside))
    return tuple(word for word in words if flag_of(word) not in given)


def _not_local(request: MergeRequest, source: DatasetRef) -> NoReturn:
    raise ImproveError(
        f"merge into {request.repo_id}: {source.repo_id}: expected a local dataset, got one "
        "without a folder."
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _of_suite(names: tuple[str, ...], suite: str) -> tuple[str, ...]:
    """Return the names that are tasks of ``suite``."""
    return tuple(name for name in names if name.startswith(f"{suite}_"))
