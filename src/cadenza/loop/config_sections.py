"""The sections of a loop's configuration: types, ranges, and the defaults of LeAgents.

Units:  rates and deltas are shares of episodes in [0, 1], or scores where `EvalConfig.metric` says
        so; hours of wall-clock time per device.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

#: Runs, stages and rungs name folders.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

#: Torch devices.
DEVICE_PATTERN: Final = r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$"

_Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
_Positive = Annotated[int, Field(strict=True, gt=0)]
#: Seeds that one purpose has in one cycle, and so the most episodes that one policy plays for it.
MAX_EPISODES: Final = 2**16
_Episodes = Annotated[int, Field(strict=True, gt=0, le=MAX_EPISODES)]
_Whole = Annotated[int, Field(strict=True, ge=0)]
_Truth = Annotated[bool, Field(strict=True)]
_Share = Annotated[float, Field(strict=True, ge=0.0, le=1.0)]
_Above0 = Annotated[float, Field(strict=True, gt=0.0)]
_AtLeast0 = Annotated[float, Field(strict=True, ge=0.0)]
_Number = Annotated[float, Field(strict=True)]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]
_Word = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,10000}$")]
BackendName: TypeAlias = Literal["native", "lerobot"]
#: What of an episode is compared.
Metric: TypeAlias = Literal["success", "score"]
#: Steps a person can be asked about.
Gate: TypeAlias = Literal["promote", "escalate"]


class Section(BaseModel):
    """Base of every section: immutable, unknown keys refused, NaN and infinity refused.

    Its errors do not quote what was given: it may hold a password.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


class PolicyRung(Section):
    """One policy type of the ladder.

    Attributes:
        name: Policy type of the back end.
        init: Weights to start from; None starts afresh.
    """

    name: _Name
    init: _Text | None = None


class BudgetConfig(Section):
    """What a run may spend.

    Attributes:
        max_cycles: Cycles.
        max_gpu_hours: Hours of jobs on a GPU; without a GPU, of all jobs.
        max_wall_hours: Hours of all jobs together; None for no limit.
    """

    max_cycles: Annotated[int, Field(strict=True, gt=0, le=4096)] = 3
    max_gpu_hours: _Above0 = 24.0
    max_wall_hours: _Above0 | None = None


class ThresholdConfig(Section):
    """What a difference must be to mean something, in units of the metric.

    Attributes:
        promote_delta: Smallest gain worth a promotion.
        regression_delta: Loss that counts as a regression.
        plateau_epsilon: Differences below it are none.
        plateau_cycles: Cycles without a difference that make a plateau.
        escalate_floor: Baseline below which a plateau does not escalate; 0 disables it for success.
        min_promote: Success, or score, that the first policy to be blessed must be shown to reach;
            until one is, candidates are provisional. 0 disables it for success.
        alpha: Probability, over the whole run, of promoting a candidate that is no better than the
            blessed policy, and again of a first blessing below ``min_promote``.
        warm_up_cycles: Cycles after an escalation in which a worse candidate is no regression.
    """

    promote_delta: _AtLeast0 = 0.05
    regression_delta: _AtLeast0 = 0.05
    plateau_epsilon: _AtLeast0 = 0.01
    plateau_cycles: _Positive = 2
    escalate_floor: _Number = 0.05
    min_promote: _Number = 0.05
    alpha: Annotated[float, Field(strict=True, gt=0.0, lt=0.5)] = 0.05
    warm_up_cycles: _Whole = 1

    @model_validator(mode="after")
    def _epsilon_below_deltas(self) -> Self:
        if self.plateau_epsilon > min(self.promote_delta, self.regression_delta):
            raise ValueError(
                "plateau_epsilon: expected at most promote_delta and regression_delta, got "
                f"{self.plateau_epsilon} > {min(self.promote_delta, self.regression_delta)}"
            )
        return self


#: Thresholds in units of the metric.
_OF_THE_METRIC: Final = (
    "promote_delta",
    "regression_delta",
    "plateau_epsilon",
    "escalate_floor",
    "min_promote",
)


def misfit_thresholds(thresholds: ThresholdConfig, metric: Metric) -> list[str]:
    """Return the thresholds that do not fit the metric, one sentence each.

    Those of success are shares of episodes. Those of scores have no defaults: nobody but you knows
    what a gain of one means.

    Args:
        thresholds: The thresholds.
        metric: What of an episode is compared.
    """
    if metric == "success":
        return [
            f"thresholds.{name}: expected a share of episodes in [0, 1], got {value}; mend it, or "
            "set eval.metric: score"
            for name in _OF_THE_METRIC
            if not 0.0 <= (value := getattr(thresholds, name)) <= 1.0
        ]
    return [
        f"thresholds.{name}: expected a value in units of the score with eval.metric: score, got "
        "none; name it"
        for name in _OF_THE_METRIC
        if name not in thresholds.model_fields_set
    ]


class DataConfig(Section):
    """How much data a cycle gets.

    Attributes:
        initial_episodes: Episodes of cycle 0; None takes the seed dataset, up to ``max_episodes``.
        growth: Factor from cycle to cycle, >= 1.
        max_episodes: Most a cycle gets; None for no limit.
        task_filter: Suite whose episodes alone are taken; None for all.
        instructions: JSON file of suites, each with the instructions of its tasks in order, for
            suites that LeRobot does not know.
    """

    initial_episodes: _Positive | None = None
    growth: Annotated[float, Field(strict=True, ge=1.0)] = 2.0
    max_episodes: _Positive | None = None
    task_filter: _Text | None = None
    instructions: Path | None = None

    @model_validator(mode="after")
    def _start_within_the_cap(self) -> Self:
        if self.max_episodes is not None and (self.initial_episodes or 0) > self.max_episodes:
            raise ValueError(
                f"initial_episodes: expected at most max_episodes = {self.max_episodes}, got "
                f"{self.initial_episodes}"
            )
        return self


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
    continue_from_blessed: _Truth = True
    max_epochs: _Above0 | None = None
    extra_args: tuple[_Word, ...] = ()


class EvalConfig(Section):
    """How a policy is measured.

    Attributes:
        env_type: Environment of the back end.
        task_suite: Suite of tasks within it.
        n_episodes: Episodes of the first look; LeRobot plays as many in each task.
        batch_size: With LeRobot, environments stepped at once; natively, episodes between two
            saves, on which no figure depends.
        max_episodes: Most episodes per policy while undecided, with LeRobot in each task;
            ``n_episodes`` disables extension. None for 480 over all tasks.
        extension_growth: Factor from look to look, > 1.
        metric: What of an episode is compared.
        extra_args: Further arguments of the evaluation command.
        env_args: Arguments that training, evaluation and harvest must share (image size, ...).
    """

    env_type: _Name = "libero"
    task_suite: _Text = "libero_spatial"
    n_episodes: _Episodes = 10
    batch_size: _Positive = 10
    max_episodes: _Episodes | None = None
    extension_growth: Annotated[float, Field(strict=True, gt=1.0)] = 2.0
    metric: Metric = "success"
    extra_args: tuple[_Word, ...] = ()
    env_args: tuple[_Word, ...] = ()

    @model_validator(mode="after")
    def _extension_is_no_cut(self) -> Self:
        if self.max_episodes is not None and self.max_episodes < self.n_episodes:
            raise ValueError(
                f"max_episodes: expected at least n_episodes = {self.n_episodes}, got "
                f"{self.max_episodes}"
            )
        return self


class ImproveConfig(Section):
    """Harvest of the blessed policy's own successes, or of what it fails at.

    Attributes:
        enabled: Whether to harvest: own successes after a promotion, failed starts in every cycle.
        starts: ``"solved"`` keeps the policy's own successes, ``"failed"`` what the task's expert
            shows from initial states at which the policy failed; natively only.
        episodes: Successful episodes wanted.
        adapt_steps: Gradient steps on the blend of data and harvest; 0 disables.
        mix_ratio: Share of samples that come from the harvest while adapting.
        device: Torch device of the harvest.
        task_text: Instruction stored with each frame; None for the back end's own.
        extra_args: Further arguments of the harvest command.
    """

    enabled: _Truth = False
    starts: Literal["solved", "failed"] = "solved"
    episodes: _Episodes = 20
    adapt_steps: _Whole = 0
    mix_ratio: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.5
    device: Annotated[str, StringConstraints(pattern=DEVICE_PATTERN)] = "cuda"
    task_text: _Text | None = None
    extra_args: tuple[_Word, ...] = ()


class CurationConfig(Section):
    """Proposals by propose, score and refine with a language model.

    Attributes:
        enabled: Whether to use it.
        candidates: Plans asked for.
        max_tokens: Most tokens of one reply.
    """

    enabled: _Truth = False
    candidates: Annotated[int, Field(strict=True, gt=0, le=20)] = 3
    max_tokens: _Positive = 8192


class LLMCallsConfig(Section):
    """What calls of the language model may take, and what they cost.

    Attributes:
        timeout_s: Longest one call may take, s.
        retries: Further calls after a failure that may pass.
        max_prompt_chars: Longest prompt with its instructions, characters; about four are a token.
            Pages are cut first to keep to it.
        max_reply_tokens: Longest reply, tokens, with those that a model thinks with; of curated
            plans ``curation.max_tokens`` says it.
        usd_per_million_input: Price of a million tokens of prompts, US dollars; None if not known.
        usd_per_million_output: Price of a million tokens of replies, US dollars; None if not known.
        max_cost_usd: Most that the calls of a run may cost, US dollars. A call that could cost more
            than is left is not made, and the loop goes on as without a model. None for no limit.
    """

    timeout_s: _Above0 = 120.0
    retries: Annotated[int, Field(strict=True, ge=0, le=10)] = 2
    max_prompt_chars: Annotated[int, Field(strict=True, ge=8000, le=10_000_000)] = 50_000
    max_reply_tokens: _Positive = 4096
    usd_per_million_input: _AtLeast0 | None = None
    usd_per_million_output: _AtLeast0 | None = None
    max_cost_usd: _Above0 | None = None

    @model_validator(mode="after")
    def _limit_with_prices(self) -> Self:
        prices = (self.usd_per_million_input, self.usd_per_million_output)
        if None in prices and prices != (None, None):
            missing = "input" if prices[0] is None else "output"
            raise ValueError(
                f"usd_per_million_{missing}: expected a price beside the other one, got none; name "
                "both, or neither"
            )
        if self.max_cost_usd is not None and None in prices:
            raise ValueError(
                "max_cost_usd: expected usd_per_million_input and usd_per_million_output beside "
                f"it, got {self.max_cost_usd} without prices; name them, or set no limit"
            )
        return self


class KnowledgeConfig(Section):
    """The pages that runs leave for later runs.

    Attributes:
        enabled: Whether to write them.
        root: Their folder; a relative path counts from the current folder.
    """

    enabled: _Truth = True
    root: Path = Path("knowledge")


class JobsConfig(Section):
    """How jobs are run.

    Attributes:
        runner: ``"local"`` processes of this machine, or a ``"ray"`` cluster.
        max_attempts: Attempts of a job that ends with an error.
        max_interruptions: Times a job may be killed from outside before that counts as an error.
        max_kills: Times in a row that its command alone may be killed (SIGKILL) without getting
            further before that counts as an error: most likely it needs too much memory. Where the
            kernel tells that it killed for want of memory, that is an error at once.
        backoff_s: Pause before the second attempt, doubled each time, s.
        time_limit_s: Longest one attempt may take, s; None for no limit.
        silent_limit_s: Longest that one attempt may leave no trace, neither in its log nor in its
            folder, before it counts as hung and is ended, s; None only tells of it.
        grace_s: Time between SIGTERM and SIGKILL, s.
        ray_address: Address of the cluster; None starts or finds one on this machine.
    """

    runner: Literal["local", "ray"] = "local"
    max_attempts: _Positive = 3
    max_interruptions: _Positive = 100
    max_kills: _Positive = 5
    backoff_s: _AtLeast0 = 1.0
    time_limit_s: _Above0 | None = None
    silent_limit_s: _Above0 | None = None
    grace_s: _AtLeast0 = 10.0
    ray_address: _Text | None = None

    @model_validator(mode="after")
    def _address_of_a_cluster_in_use(self) -> Self:
        if self.ray_address is not None and self.runner != "ray":
            raise ValueError(
                f"ray_address: expected null with runner {self.runner!r}, got "
                f"{self.ray_address!r}; set runner: ray"
            )
        return self


class ApprovalConfig(Section):
    """Which decisions wait for a person.

    Attributes:
        gates: Decisions that wait.
        timeout_s: Seconds to wait; None waits for ever.
        on_timeout: ``"reject"`` treats silence as a no, ``"approve"`` as a yes, ``"stop"`` ends
            the run, to be resumed later.
    """

    gates: tuple[Gate, ...] = ()
    timeout_s: _Above0 | None = None
    on_timeout: Literal["reject", "approve", "stop"] = "reject"


def unread_approval(approval: ApprovalConfig) -> list[str]:
    """Return the settings of approvals that change nothing, one sentence each."""
    if approval.timeout_s is not None and not approval.gates:
        return [
            f"approval.timeout_s: expected null where no decision waits, got {approval.timeout_s}; "
            "name decisions in approval.gates, or remove it"
        ]
    if approval.on_timeout != "reject" and approval.timeout_s is None:
        return [
            "approval.on_timeout: expected a time beside it after which it counts, got "
            f"{approval.on_timeout!r} alone; set approval.timeout_s, or remove it"
        ]
    return []
