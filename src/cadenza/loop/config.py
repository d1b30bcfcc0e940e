"""The configuration of one loop run: YAML in, frozen and checked sections out.

A LeAgents file loads unchanged once it says ``backend: lerobot``; sections and keys that LeAgents
does not have default to what keeps its behaviour where that was sound.

Units:  rates and deltas are shares of episodes in [0, 1]; hours of wall-clock time per device.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from cadenza.core.errors import ConfigurationError
from cadenza.core.yaml_files import read_yaml

#: Runs, stages and rungs name folders.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

_Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
_Positive = Annotated[int, Field(gt=0)]
BackendName: TypeAlias = Literal["native", "lerobot"]
#: What of an episode is compared.
Metric: TypeAlias = Literal["success", "score"]
#: Steps a person can be asked about.
Gate: TypeAlias = Literal["promote", "escalate"]


class Section(BaseModel):
    """Base of every section: immutable, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyRung(Section):
    """One policy type of the ladder.

    Attributes:
        name: Policy type of the back end.
        init: Weights to start from; None starts afresh.
    """

    name: _Name
    init: str | None = None


class BudgetConfig(Section):
    """What a run may spend.

    Attributes:
        max_cycles: Cycles.
        max_gpu_hours: Hours of jobs on a GPU; without a GPU, of all jobs.
        max_wall_hours: Hours of all jobs together; None for no limit.
    """

    max_cycles: Annotated[int, Field(gt=0, le=4096)] = 3
    max_gpu_hours: Annotated[float, Field(gt=0.0)] = 24.0
    max_wall_hours: Annotated[float, Field(gt=0.0)] | None = None


class ThresholdConfig(Section):
    """What a difference in success must be to mean something.

    Attributes:
        promote_delta: Smallest gain worth a promotion.
        regression_delta: Loss that counts as a regression.
        plateau_epsilon: Differences below it are none.
        plateau_cycles: Cycles without a difference that make a plateau.
        escalate_floor: Baseline below which a plateau does not escalate; 0 disables.
        min_promote: Success a first candidate needs to be blessed; below it is provisional.
        alpha: Probability, over the whole run, of promoting a candidate that is no better.
        warm_up_cycles: Cycles after an escalation in which a worse candidate is no regression.
    """

    promote_delta: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    regression_delta: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    plateau_epsilon: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    plateau_cycles: _Positive = 2
    escalate_floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    min_promote: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    alpha: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    warm_up_cycles: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="after")
    def _epsilon_below_deltas(self) -> Self:
        if self.plateau_epsilon > min(self.promote_delta, self.regression_delta):
            raise ValueError(
                "plateau_epsilon: expected at most promote_delta and regression_delta, got "
                f"{self.plateau_epsilon} > {min(self.promote_delta, self.regression_delta)}"
            )
        return self


class DataConfig(Section):
    """How much data a cycle gets.

    Attributes:
        initial_episodes: Episodes of cycle 0; None takes the whole seed dataset.
        growth: Factor from cycle to cycle, >= 1.
        max_episodes: Most a cycle gets; None for no limit.
        task_filter: Suite whose episodes alone are taken; None for all.
    """

    initial_episodes: _Positive | None = None
    growth: Annotated[float, Field(ge=1.0)] = 2.0
    max_episodes: _Positive | None = None
    task_filter: str | None = None


class TrainConfig(Section):
    """How a policy is trained.

    Attributes:
        steps: Gradient steps.
        batch_size: Samples per step.
        continue_from_blessed: Start from the blessed weights of the same policy type.
        max_epochs: Most passes over the data; fewer steps are made on small data. None for none.
        extra_args: Further arguments of the training command.
    """

    steps: _Positive = 20_000
    batch_size: _Positive = 64
    continue_from_blessed: bool = True
    max_epochs: Annotated[float, Field(gt=0.0)] | None = None
    extra_args: tuple[str, ...] = ()


class EvalConfig(Section):
    """How a policy is measured.

    Attributes:
        env_type: Environment of the back end.
        task_suite: Suite of tasks within it.
        n_episodes: Episodes of the first look.
        batch_size: Environments stepped at once.
        max_episodes: Most episodes per policy while undecided; ``n_episodes`` disables extension.
        extension_growth: Factor from look to look, > 1.
        metric: What of an episode is compared.
        extra_args: Further arguments of the evaluation command.
        env_args: Arguments that training, evaluation and harvest must share (image size, ...).
    """

    env_type: str = "libero"
    task_suite: str = "libero_spatial"
    n_episodes: _Positive = 10
    batch_size: _Positive = 10
    max_episodes: _Positive | None = None
    extension_growth: Annotated[float, Field(gt=1.0)] = 2.0
    metric: Metric = "success"
    extra_args: tuple[str, ...] = ()
    env_args: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _extension_is_no_cut(self) -> Self:
        if self.max_episodes is not None and self.max_episodes < self.n_episodes:
            raise ValueError(
                f"max_episodes: expected at least n_episodes = {self.n_episodes}, got "
                f"{self.max_episodes}"
            )
        return self


class ImproveConfig(Section):
    """Harvest of the blessed policy's own successes.

    Attributes:
        enabled: Whether to harvest after a promotion.
        episodes: Successful episodes wanted.
        adapt_steps: Gradient steps on the blend of data and harvest; 0 disables.
        mix_ratio: Share of samples that come from the harvest while adapting.
        device: Torch device of the harvest.
        task_text: Instruction stored with each frame; None for the back end's own.
        extra_args: Further arguments of the harvest command.
    """

    enabled: bool = False
    episodes: _Positive = 20
    adapt_steps: Annotated[int, Field(ge=0)] = 0
    mix_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    device: str = "cuda"
    task_text: str | None = None
    extra_args: tuple[str, ...] = ()


class CurationConfig(Section):
    """Proposals by propose, score and refine with a language model.

    Attributes:
        enabled: Whether to use it.
        candidates: Plans asked for.
        max_tokens: Most tokens of one reply.
    """

    enabled: bool = False
    candidates: Annotated[int, Field(gt=0, le=20)] = 3
    max_tokens: _Positive = 8192


class KnowledgeConfig(Section):
    """The pages that runs leave for later runs.

    Attributes:
        enabled: Whether to write them.
        root: Their folder.
    """

    enabled: bool = True
    root: Path = Path("knowledge")


class JobsConfig(Section):
    """How jobs are run.

    Attributes:
        runner: ``"local"`` processes of this machine, or a ``"ray"`` cluster.
        max_attempts: Attempts of a job that ends with an error.
        max_interruptions: Times a job may be killed from outside before that counts as an error.
        backoff_s: Pause before the second attempt, doubled each time, s.
        time_limit_s: Longest one attempt may take, s; None for no limit.
        grace_s: Time between SIGTERM and SIGKILL, s.
        ray_address: Address of the cluster; None starts or finds one on this machine.
    """

    runner: Literal["local", "ray"] = "local"
    max_attempts: _Positive = 3
    max_interruptions: _Positive = 100
    backoff_s: Annotated[float, Field(ge=0.0)] = 1.0
    time_limit_s: Annotated[float, Field(gt=0.0)] | None = None
    grace_s: Annotated[float, Field(ge=0.0)] = 10.0
    ray_address: str | None = None


class ApprovalConfig(Section):
    """Which decisions wait for a person.

    Attributes:
        gates: Decisions that wait.
        timeout_s: Seconds to wait; None waits for ever.
        on_timeout: ``"reject"`` treats silence as a no, ``"approve"`` as a yes, ``"stop"`` ends
            the run, to be resumed later.
    """

    gates: tuple[Gate, ...] = ()
    timeout_s: Annotated[float, Field(gt=0.0)] | None = None
    on_timeout: Literal["reject", "approve", "stop"] = "reject"


class LoopConfig(Section):
    """Everything that determines a run.

    Attributes:
        run_name: Name of the run; part of its id.
        seed_dataset: Dataset that runs start from; the only one proposers may use.
        seed_root: Folder of a local seed dataset; None for one that the back end finds or makes.
        backend: Training stack.
        seed: Root of the run's randomness: initial states, sampling, training.
        workdir: Folder of all runs; paths in it are relative to the current folder.
        store: SQLAlchemy URL of the job store; None for ``<workdir>/cadenza.db`` (SQLite).
        llm: Language model, ``"provider:model"``; None for none.
        constitution: File of the rules; None for the shipped ones.
        policy_ladder: Policy types, weakest first.
    """

    run_name: _Name
    seed_dataset: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    seed_root: Path | None = None
    backend: BackendName = "native"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    workdir: Path = Path("runs")
    store: str | None = None
    llm: str | None = None
    constitution: Path | None = None
    policy_ladder: tuple[PolicyRung, ...] = Field(min_length=1)
    knowledge: KnowledgeConfig = KnowledgeConfig()
    data: DataConfig = DataConfig()
    budgets: BudgetConfig = BudgetConfig()
    thresholds: ThresholdConfig = ThresholdConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    improve: ImproveConfig = ImproveConfig()
    curation: CurationConfig = CurationConfig()
    jobs: JobsConfig = JobsConfig()
    approval: ApprovalConfig = ApprovalConfig()

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """Return the configuration that the YAML file ``path`` holds.

        Raises:
            ConfigurationError: The file is missing, no YAML, or has an unknown key or bad value.
        """
        content = read_yaml(Path(path))
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
