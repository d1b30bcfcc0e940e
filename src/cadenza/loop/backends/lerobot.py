"""The LeRobot back end: training, evaluation and rollouts by LeRobot in its own environment.

Data:      the seed dataset itself, or the part of it that a proposal asks for. A suite's episodes
           (``data.task_filter``), or more of the tasks that fail, are chosen by a job.
Training:  afresh or from given weights, with another seed every cycle. A killed training goes on
           from its last checkpoint.
Mix:       harvested episodes alone with ``improve.mix_ratio: 1``, as in LeAgents; otherwise joined
           with the data, episodes left out until the ratio holds.
Without an environment plans are made all the same, for dry runs and for runners of the user's;
further arguments are then not checked, nor what the environment shows.
"""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError, MissingExtraError
from cadenza.core.files import tree_digest
from cadenza.core.seeding import derive_substream
from cadenza.loop.backends.lerobot_commands import (
    RESULT,
    Setting,
    eval_command,
    harvest_command,
    merge_command,
    rename_map,
    select_command,
    train_command,
)
from cadenza.loop.backends.lerobot_features import (
    Interface,
    dataset_interface,
    describe_environment,
    environment_interface,
    policy_interface,
    require_agreement,
    require_seeds,
)
from cadenza.loop.backends.lerobot_probe import (
    LeRobotEnvironment,
    LeRobotTools,
    lerobot_programs,
    machine_has_gpu,
    probe,
)
from cadenza.loop.backends.lerobot_results import (
    EVAL_INFO,
    capped_steps,
    dataset_info,
    local_dataset,
    read_checkpoint,
    read_document,
    read_harvest,
    read_report,
    read_selection,
)
from cadenza.loop.config import LoopConfig
from cadenza.loop.config_backends import seeded_words
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    Device,
    EvalReport,
    EvalRequest,
    Harvest,
    HarvestRequest,
    JobPlan,
    MergeRequest,
    TrainRequest,
)
from cadenza.loop.errors import ImproveError

#: Suites whose instructions the package libero knows.
_LIBERO: Final = "libero"
#: Seeds that all of LeRobot's generators take lie below.
_SEED_LIMIT: Final = 2**32


class LeRobotBackend:
    """Commands of LeRobot, and readers of what they leave."""

    def __init__(
        self,
        config: LoopConfig,
        *,
        environment: LeRobotEnvironment | None = None,
        measures: bool = True,
    ) -> None:
        """Take the settings of a run.

        Args:
            config: The run's configuration.
            environment: Where LeRobot is; None looks for it.
            measures: Whether the configuration says where policies are measured. Otherwise nothing
                is compared with an environment, nor is one asked whether it follows its seeds.
        """
        self._config = config
        self._given = environment
        self._measures = measures

    @property
    def name(self) -> str:
        """Name in configurations."""
        return "lerobot"

    @property
    def capabilities(self) -> dict[str, str]:
        """Release and flag names of the installed LeRobot, its device, and what its seeds mean.

        Raises:
            ConfigurationError: The environment cannot be made, or does not follow its seeds.
        """
        device = "cuda" if self._setting.has_gpu else "cpu"
        if self._setting.tools is None:
            return {"lerobot": "not installed", "device": device}
        return {**self._setting.tools.capabilities, "device": device, **self._seeds}

    @property
    def programs(self) -> Mapping[str, tuple[str, ...]]:
        """Executables of LeRobot and of our scripts, for the runner.

        Raises:
            MissingExtraError: There is no LeRobot environment.
            ConfigurationError: There is no LeRobot in it.
        """
        return lerobot_programs(self._environment or LeRobotEnvironment.find())

    def plan_data(self, request: DataRequest) -> JobPlan | None:
        """Return the command that chooses episodes; None where all or the first ones are taken."""
        suite = self._suite(request)
        if suite is None:
            return None
        command = select_command(
            request,
            suite=suite,
            focus=_of_suite(request.proposal.focus, suite),
            root=self._seed_root,
            instructions=self._config.data.instructions,
        )
        return JobPlan(
            command=command, output_dir=request.folder, result_path=request.folder / RESULT
        )

    def read_data(self, request: DataRequest) -> DatasetRef:
        """Return the data of the cycle.

        Raises:
            ConfigurationError: The seed dataset is missing.
            DataError: No episodes were chosen.
            IntegrityError: The choice is missing.
        """
        proposal, root = request.proposal, self._seed_root
        notes, count = proposal.notes, proposal.num_episodes
        episodes: tuple[int, ...] | None = None
        suite = self._suite(request)
        if suite is not None:
            episodes, covered = read_selection(request.folder / RESULT)
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
        """Return the command that trains.

        Raises:
            ConfigurationError: A further argument is unknown, or given twice.
        """
        steps = self._steps(request)
        seed = self._training_seed(request.cycle)
        command = train_command(request, self._setting, steps=steps, seed=seed)
        return JobPlan(command=command, output_dir=request.folder, device=self._device(command))

    def read_train(self, request: TrainRequest) -> CheckpointRecord:
        """Return the trained policy with its digest.

        Raises:
            IntegrityError: There is none, or it was not trained to the end.
        """
        return read_checkpoint(
            request.folder, rung=request.rung, cycle=request.cycle, steps=self._steps(request)
        )

    def plan_eval(self, request: EvalRequest) -> JobPlan:
        """Return the command that evaluates.

        Raises:
            ConfigurationError: A further argument is unknown, or given twice.
        """
        command = eval_command(request, self._setting)
        return JobPlan(
            command=command,
            output_dir=request.folder,
            result_path=request.folder / EVAL_INFO,
            device=self._device(command),
            on_existing="remove",
        )

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return what the evaluation measured, with every episode.

        Raises:
            IntegrityError: Its file is missing or no strict JSON.
            EvalError: It measured nothing usable.
        """
        return read_report(request, self._config.eval)

    def plan_harvest(self, request: HarvestRequest) -> JobPlan:
        """Return the command that collects successes.

        Raises:
            ConfigurationError: A further argument is given twice.
        """
        command = harvest_command(request, self._setting)
        return JobPlan(
            command=command,
            output_dir=request.folder,
            result_path=request.folder / RESULT,
            device=self._device(command),
            on_existing="remove",
        )

    def read_harvest(self, request: HarvestRequest) -> Harvest:
        """Return what the collection brought.

        Raises:
            IntegrityError: Its result or its dataset is missing.
            ImproveError: It played from other seeds than asked.
        """
        return read_harvest(
            request.folder, repo_id=request.repo_id, seeds=request.seeds, result=RESULT
        )

    def plan_merge(self, request: MergeRequest) -> JobPlan:
        """Return the command that joins datasets.

        Raises:
            ImproveError: One is not local, or their features differ; a run goes on without it.
        """
        try:
            command = merge_command(request)
            first, *others = (dataset_interface(Path(str(one.root))) for one in request.sources)
            for other in others:
                require_agreement(first, other)
                require_agreement(other, first)
        except ConfigurationError as error:
            raise ImproveError(f"merge into {request.repo_id}: {error}") from error
        return JobPlan(
            command=command,
            output_dir=request.folder,
            result_path=request.folder / RESULT,
            on_existing="remove",
        )

    def read_merge(self, request: MergeRequest) -> DatasetRef:
        """Return the joined dataset with its digest.

        Raises:
            IntegrityError: It is missing, or has not all episodes of its sources.
        """
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

        Raises:
            ConfigurationError: They differ, or the environment does not follow its seeds.
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
            return LeRobotEnvironment.find()
        except MissingExtraError:
            return None

    @cached_property
    def _setting(self) -> Setting:
        environment = self._environment
        tools: LeRobotTools | None = None if environment is None else probe(environment)
        return Setting(eval=self._config.eval, tools=tools, has_gpu=machine_has_gpu(os.environ))

    @cached_property
    def _seeds(self) -> dict[str, str]:
        """What the seeds of the environment mean; nothing where it cannot be asked."""
        if self._environment is None or not self._measures:
            return {}
        file, facts = describe_environment(self._environment, self._environment_words)
        return require_seeds(facts, source=str(file))

    @property
    def _environment_words(self) -> tuple[str, ...]:
        measured, words = self._config.eval, self._setting.environment_words
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

    def _training_seed(self, cycle: int) -> int:
        stream = derive_substream("loop.lerobot.training", root_seed=self._config.seed)
        return stream.child(cycle).integer_seed() % _SEED_LIMIT

    def _device(self, command: tuple[str, ...]) -> Device:
        on_cpu = any(word in command for word in ("--policy.device=cpu", "--device=cpu"))
        return "gpu" if self._setting.has_gpu and not on_cpu else "cpu"


def _of_suite(names: tuple[str, ...], suite: str) -> tuple[str, ...]:
    """Return the names that are tasks of ``suite``."""
    return tuple(name for name in names if name.startswith(f"{suite}_"))
