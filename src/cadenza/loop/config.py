"""The configuration of one loop run: YAML in, frozen and checked sections out.

A LeAgents file loads unchanged once it says ``backend: lerobot``, unless its further arguments
repeat flags that the loop sets. Defaults that differ with ``backend: native`` are in
`cadenza.loop.config_backends`.

Paths:  relative ones count from the current folder, here and in every section.
Units:  rates and deltas are shares of episodes in [0, 1], or scores where `EvalConfig.metric` says
        so; hours of wall-clock time per device.
Model:  ``anthropic:<model>``, ``openai:<model>[@<address>]``, ``gemini:<model>[@<address>]``. The
        text is stored and shown: what a client proves itself with stands in the environment.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, cast, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from cadenza.core.errors import ConfigurationError
from cadenza.core.key_values import apply_settings
from cadenza.core.yaml_files import YamlDocument, read_yaml_document
from cadenza.loop.config_backends import (
    LEAGENTS_RULES,
    flag_of,
    misplaced_names,
    unseeded_words,
    with_backend_defaults,
)
from cadenza.loop.constitution.kinds import DATASET_PATTERN, DEVICE_PATTERN
from cadenza.loop.validation import problems

#: Providers, and whether an address may follow the model.
_TAKES_ADDRESS: Final = {"anthropic": False, "gemini": True, "openai": True}
#: Marks of a user, a query and a fragment in an address; each may hold a password or key.
_MAY_HOLD_SECRETS: Final = "@?#"
#: Where each provider's client looks for what must not stand in the text.
_INSTEAD: Final = {
    "anthropic": "a key in ANTHROPIC_API_KEY, or the whole address in ANTHROPIC_BASE_URL",
    "gemini": "a key in GEMINI_API_KEY",
    "openai": "a key in OPENAI_API_KEY, or the whole address in OPENAI_BASE_URL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A language model of a provider; `address` is None for the service's own."""

    provider: str
    model: str
    address: str | None = None

    @property
    def shown(self) -> str:
        """The text that names it."""
        place = "" if self.address is None else f"@{self.address}"
        return f"{self.provider}:{self.model}{place}"


def parse_spec(text: str) -> ModelSpec:
    """Return the model that ``text`` names.

    Raises:
        ConfigurationError: The provider is unknown, the model is missing, or the address may hold
            a password or key, which the message does not quote.
    """
    provider, _, rest = text.partition(":")
    if provider not in _TAKES_ADDRESS:
        raise ConfigurationError(
            f"llm: expected provider:model with a provider of {', '.join(_TAKES_ADDRESS)}, got "
            f"provider {provider!r}; correct it, or set llm to null."
        )
    place = re.split("@|//", rest, maxsplit=1)[1:]  # the latter: the model was forgotten
    if any(mark in text for text in place for mark in _MAY_HOLD_SECRETS):
        raise ConfigurationError(
            f"llm: expected an address without user, password and query, got one with '@', '?' or "
            f"'#', which would be stored and shown; give {_INSTEAD[provider]}, as an environment "
            "variable."
        )
    model, address = rest, ""
    if _TAKES_ADDRESS[provider]:
        model, _, address = rest.partition("@")
    if not model:
        raise ConfigurationError(
            f"llm: expected provider:model, got no model after {provider!r}; name one, e.g. "
            f"'{provider}:<model>'."
        )
    return ModelSpec(provider=provider, model=model, address=address or None)


#: Runs, stages and rungs name folders.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

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
_Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
BackendName: TypeAlias = Literal["native", "lerobot"]
#: What of an episode is compared.
Metric: TypeAlias = Literal["success", "score", "wins"]
#: Steps a person can be asked about.
Gate: TypeAlias = Literal["promote", "escalate"]


class Section(BaseModel):
    """Base of every section: immutable, unknown keys refused, NaN and infinity refused.

    Its errors do not quote what was given: it may hold a password.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


class PolicyRung(Section):
    """One policy type of the ladder; ``init`` are weights to start from, None starts afresh."""

    name: _Name
    init: _Text | None = None


class BudgetConfig(Section):
    """What a run may spend; hours on a GPU are those of all jobs without one. None: no limit."""

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
            blessed policy, and again of a first blessing below ``min_promote``; at most 0.2.
        warm_up_cycles: Cycles after an escalation in which a worse candidate is no regression.
    """

    promote_delta: _AtLeast0 = 0.05
    regression_delta: _AtLeast0 = 0.05
    plateau_epsilon: _AtLeast0 = 0.01
    plateau_cycles: _Positive = 2
    escalate_floor: _Number = 0.05
    min_promote: _Number = 0.05
    alpha: Annotated[float, Field(strict=True, gt=0.0, le=0.2)] = 0.05
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

    Those of success and of wins are shares of episodes. Those of scores have no defaults: nobody
    but you knows what a gain of one means.
    """
    if metric != "score":
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


def misfit_range(measured: "EvalConfig", thresholds: ThresholdConfig) -> list[str]:
    """Return what is wrong with the range of scores, one sentence each."""
    given = measured.score_range
    if measured.metric != "score":
        if given is None:
            return []
        return [
            f"eval.score_range: expected none with eval.metric: {measured.metric}, which asks for "
            f"no mean score, got {[*given]}; remove it, or set metric: score"
        ]
    if given is None:
        return [
            "eval.score_range: expected [least, most] with eval.metric: score; a mean without a "
            "range cannot be judged: one loss that was never seen may outweigh all. Name the "
            "range, or set metric: wins"
        ]
    least, most = given
    if not (least < most and math.isfinite(most - least)):
        return [
            f"eval.score_range: expected [least, most] with least < most and a finite width, got "
            f"{[*given]}; name the least and the largest score that an episode can have"
        ]
    found = [
        f"thresholds.{name}: expected less than the width {most - least:g} of eval.score_range, "
        f"got {value:g}; no difference is as large"
        for name in ("promote_delta", "regression_delta")
        if name in thresholds.model_fields_set
        and (value := getattr(thresholds, name)) >= most - least
    ]
    if "min_promote" in thresholds.model_fields_set and thresholds.min_promote >= most:
        found.append(
            f"thresholds.min_promote: expected less than {most:g}, the most of eval.score_range, "
            f"got {thresholds.min_promote:g}; no mean can be shown to reach it"
        )
    return found


class DataConfig(Section):
    """How much data a cycle gets.

    Attributes:
        initial_episodes: Episodes of cycle 0; None takes the seed dataset, up to ``max_episodes``.
        growth: Factor from cycle to cycle, >= 1.
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
        n_episodes: Episodes before a candidate may be given up; LeRobot plays as many in each task.
        batch_size: With LeRobot, environments stepped at once; natively, episodes between two
            saves, on which no figure depends.
        max_episodes: Most episodes per policy while undecided, with LeRobot in each task. None for
            480 over all tasks, or ``n_episodes`` in each if that is more.
        episodes_per_job: Episodes that a job plays of one policy, with LeRobot in each task; None
            for ``n_episodes``. Decisions do not depend on it: fewer cost more starts of jobs, more
            cost episodes that are played past the stop.
        extension_growth: Factor from look to look at which a candidate may be given up, > 1.
        metric: What of an episode is compared: its success, its score by the mean, or by who has
            the higher one more often (``"wins"``; bars on a policy alone are then on its success).
        score_range: Least and most score of an episode; what lies outside is clipped and counted.
        extra_args: Further arguments of the evaluation command.
        env_args: Arguments that training, evaluation and harvest must share (image size, ...).
    """

    env_type: _Name = "libero"
    task_suite: _Text = "libero_spatial"
    n_episodes: _Episodes = 10
    batch_size: _Positive = 10
    max_episodes: _Episodes | None = None
    episodes_per_job: _Episodes | None = None
    extension_growth: Annotated[float, Field(strict=True, gt=1.0)] = 1.5
    metric: Metric = "success"
    score_range: tuple[_Number, _Number] | None = None
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
    """

    enabled: _Truth = False
    starts: Literal["solved", "failed"] = "solved"
    episodes: _Episodes = 20
    adapt_steps: _Whole = 0
    mix_ratio: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.5
    device: Annotated[str, StringConstraints(pattern=f"^({DEVICE_PATTERN})$")] = "cuda"
    task_text: _Text | None = None
    extra_args: tuple[_Word, ...] = ()


class CurationConfig(Section):
    """Proposals by propose, score and refine with a language model that is asked for plans."""

    enabled: _Truth = False
    candidates: Annotated[int, Field(strict=True, gt=0, le=20)] = 3
    max_tokens: _Positive = 8192


class LLMCallsConfig(Section):
    """What calls of the language model may take, and what they cost.

    Attributes:
        retries: Further calls after a failure that may pass.
        max_prompt_chars: Longest prompt with its instructions, characters; about four are a token.
            Pages are cut first to keep to it.
        max_reply_tokens: Longest reply, tokens, with those that a model thinks with; of curated
            plans ``curation.max_tokens`` says it.
        usd_per_million_input: Price of a million tokens of prompts, US dollars; None if not known.
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
    """The pages that runs leave for later runs, and whether to write them."""

    enabled: _Truth = True
    root: Path = Path("knowledge")


#: Options of ``sbatch`` that are set for every job, or by another key.
_SET_FOR_SLURM: Final = frozenset(
    {"array", "chdir", "export", "input", "job-name", "nodes", "no-requeue", "ntasks", "open-mode"}
    | {"output", "parsable", "requeue", "signal", "test-only", "wait", "wrap"}
    | {"account", "cpus-per-task", "mem", "partition", "time"}
)
_SlurmOption = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z-]{1,49}$")]


class SlurmConfig(Section):
    """What a batch job of Slurm asks for; None leaves it to the cluster.

    Attributes:
        gpus: GPUs of a job that can use one; with 0 all jobs run on processors. A ``gres`` among
            the options is asked for instead, always.
        cpus: Processors of a job.
        memory: Memory of a job, as ``32G``.
        time: Longest one attempt may take, as Slurm writes it: ``"4:00:00"``, ``"1-12"``.
        options: Further options of ``sbatch`` by their long names; true for one without a value.
    """

    partition: _Text | None = None
    account: _Text | None = None
    gpus: Annotated[int, Field(strict=True, ge=0)] = 1
    cpus: _Positive | None = None
    memory: Annotated[str, StringConstraints(pattern=r"^\d+[KMGT]?$")] | None = None
    time: Annotated[str, StringConstraints(pattern=r"^(\d+-\d+|\d+)(:\d+){0,2}$")] | None = None
    options: Mapping[_SlurmOption, bool | int | _Text] = {}

    @model_validator(mode="after")
    def _options_of_no_other_key(self) -> Self:
        taken = sorted(_SET_FOR_SLURM & self.options.keys())
        if taken:
            raise ValueError(f"options: expected none that is set already, got {', '.join(taken)}")
        return self


class JobsConfig(Section):
    """How jobs are run.

    Attributes:
        runner: ``"local"`` processes of this machine, a ``"ray"`` cluster, or one with ``"slurm"``.
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
        environment: Names of variables that jobs get beside the usual ones, a token's for example.
        ray_address: Address of the cluster; None starts or finds one on this machine.
        slurm: What Slurm is asked for.
    """

    runner: Literal["local", "ray", "slurm"] = "local"
    max_attempts: _Positive = 3
    max_interruptions: _Positive = 100
    max_kills: _Positive = 5
    backoff_s: _AtLeast0 = 1.0
    time_limit_s: _Above0 | None = None
    silent_limit_s: _Above0 | None = None
    grace_s: _AtLeast0 = 10.0
    environment: tuple[_Variable, ...] = ()
    ray_address: _Text | None = None
    slurm: SlurmConfig = SlurmConfig()

    @model_validator(mode="after")
    def _settings_of_the_runner_in_use(self) -> Self:
        if self.ray_address is not None and self.runner != "ray":
            raise ValueError(
                f"ray_address: expected null with runner {self.runner!r}, got "
                f"{self.ray_address!r}; set runner: ray"
            )
        if self.slurm != SlurmConfig() and self.runner != "slurm":
            raise ValueError(
                f"slurm: expected nothing with runner {self.runner!r}; set runner: slurm, or "
                "remove it"
            )
        return self


class ApprovalConfig(Section):
    """Which decisions wait for a person.

    Attributes:
        timeout_s: Seconds to wait; None waits for ever.
        on_timeout: ``"reject"`` treats silence as a no, ``"approve"`` as a yes, ``"stop"`` ends
            the run, to be resumed later.
    """

    gates: tuple[Gate, ...] = ()
    timeout_s: _Above0 | None = None
    on_timeout: Literal["reject", "approve", "stop"] = "reject"


#: What a person can be told of.
Occasion: TypeAlias = Literal["promoted", "approval", "failed", "finished", "budget", "disk"]
#: What stands for the rest of an address that may hold a key; such a one can be read from a store.
HIDDEN: Final = "/***"


class NotifyConfig(Section):
    """Whom a run tells of what happens to it; see `cadenza.loop.notify`.

    Attributes:
        command: Program with arguments, which gets the news as JSON; empty for none.
        webhook: Address that gets it, https or of this machine; shown and stored without its path.
        events: What is told.
        timeout_s: Longest one attempt to tell may take, s.
    """

    command: tuple[_Word, ...] = ()
    webhook: SecretStr | None = None
    events: tuple[Occasion, ...] = get_args(Occasion)
    timeout_s: Annotated[float, Field(strict=True, gt=0.0, le=600.0)] = 10.0

    @field_validator("webhook")
    @classmethod
    def _safe_address(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook is not None and not _is_safe(webhook.get_secret_value()):
            raise ValueError(
                "notify.webhook: expected https://..., or http://localhost..., no spaces, got "
                "another address; it is not quoted, as it may hold a key"
            )
        return webhook

    @field_serializer("webhook")
    def _without_key(self, webhook: SecretStr | None) -> str | None:
        if webhook is None:
            return None
        parts = urlsplit(webhook.get_secret_value())
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{HIDDEN}"


def _is_safe(address: str) -> bool:
    """Return whether nobody on the way can read what is sent to an address."""
    try:
        parts = urlsplit(address)
        plain = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        sound = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    safe = plain or parts.scheme == "https"
    return safe and sound and re.fullmatch(r"[!-~]+", address) is not None


class RetentionConfig(Section):
    """What of ended cycles is removed between cycles, by default nothing; see `..retention`.

    Attributes:
        older_than: Age from which on it is removed, for example ``36h`` or ``14d``.
        keep_cycles: Newest ended cycles that keep all they have.
        max_size: Size of a run above which the oldest is removed, for example ``50GB``.
    """

    older_than: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,6}[mhd]$")] | None = None
    keep_cycles: _Whole | None = None
    max_size: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}[kMGT]B$")] | None = None


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


def _default_rules(fields: dict[str, Any]) -> Path | None:
    """Return the file of rules that a configuration means without naming one."""
    return LEAGENTS_RULES if fields.get("backend") == "lerobot" else None


class LoopConfig(Section):
    """Everything that determines a run; sections say what their parts of it mean.

    Attributes:
        run_name: Name of the run; part of its id.
        seed_dataset: Dataset that runs start from; the only one proposers may use.
        seed_root: Folder of a local seed dataset; None for one that the back end finds or makes.
        seed: Root of the run's randomness: initial states, sampling, training.
        workdir: Folder of all runs.
        store: SQLAlchemy URL of the job store; None for ``<workdir>/cadenza.db`` (SQLite).
        llm: Language model, ``"provider:model"``; None for none.
        constitution: File of the rules; None for the shipped ones, which also stand in for the
            default of LeAgents where the key is absent and no file lies there.
        policy_ladder: Policy types, weakest first.
        reference: Policy that candidates are compared with from cycle 0: weights, or an earlier run
            of the same store, whose blessed policy is meant; None for the weights on this machine
            that rungs start from, of several the one that plays best; ``"none"`` for none.
    """

    run_name: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    seed_dataset: Annotated[str, StringConstraints(pattern=f"^({DATASET_PATTERN})$")]
    seed_root: Path | None = None
    backend: BackendName = "native"
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0
    workdir: Path = Path("runs")
    store: str | None = None
    llm: str | None = None
    constitution: Path | None = Field(default_factory=_default_rules)
    policy_ladder: tuple[PolicyRung, ...] = Field(min_length=1)
    reference: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    llm_calls: LLMCallsConfig = LLMCallsConfig()
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
    notify: NotifyConfig = NotifyConfig()
    retention: RetentionConfig = RetentionConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults_of_the_backend(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        return with_backend_defaults(cast("dict[str, Any]", document))

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        found = misplaced_names(
            backend=self.backend,
            named="backend" in self.model_fields_set,
            rungs=[rung.name for rung in self.policy_ladder],
            env_type=self.eval.env_type,
            seed_dataset=self.seed_dataset,
        )
        if not found:  # else the back end is the wrong one, and so would be what follows
            found += self._problems_with_the_backend()
        found += self._problems_of_the_model()
        found += unread_approval(self.approval)
        found += misfit_thresholds(self.thresholds, self.eval.metric)
        found += misfit_range(self.eval, self.thresholds)
        if len(set(self.policy_ladder)) < len(self.policy_ladder):
            found.append("policy_ladder: expected different rungs, got one of them twice")
        if self.improve.adapt_steps and "enabled" not in self.improve.model_fields_set:
            found.append(
                "improve.enabled: expected true or false beside improve.adapt_steps, got nothing; "
                "without a harvest there is nothing to adapt to"
            )
        if self.improve.starts == "failed" and self.backend == "lerobot":
            found.append(
                "improve.starts: expected 'solved' with LeRobot, which has no expert to show the "
                "rest, got 'failed'; correct it, or set backend: native"
            )
        if found:
            raise ValueError(*found)
        return self

    def _problems_with_the_backend(self) -> list[str]:
        """Return which settings the back end does not take, one sentence each."""
        if self.backend == "native":
            heeded_by_lerobot = {
                "data.instructions": (self.data.instructions, None),
                "improve.device": (self.improve.device, "cpu"),
                "improve.task_text": (self.improve.task_text, None),
            }
            return [
                f"{key}: expected {neutral or 'nothing'} with the native back end, got "
                f"{str(value)!r}; remove it, or set backend: lerobot"
                for key, (value, neutral) in heeded_by_lerobot.items()
                if value != neutral
            ]
        own = {
            "train.extra_args": self.train.extra_args,
            "eval.extra_args": self.eval.extra_args,
            "improve.extra_args": self.improve.extra_args,
        }
        shared, env_type = self.eval.env_args, self.eval.env_type
        words = {"eval.env_args": shared, **own}
        found = [one for key in words for one in unseeded_words(key, env_type, words[key])]
        given = set(map(flag_of, shared)) - {None}
        return found + [
            f"{key}: expected nothing that eval.env_args says to all commands, got {word} again"
            for key, extra in own.items()
            for word in extra
            if flag_of(word) in given
        ]

    def _problems_of_the_model(self) -> list[str]:
        """Return what is wrong with the language model, one sentence each."""
        found: list[str] = []
        if self.llm:
            try:
                parse_spec(self.llm)
            except ConfigurationError as error:
                found.append(str(error).removesuffix("."))
            return found
        if self.curation.enabled:
            found.append(
                "curation.enabled: expected false without a language model, got true; name one in "
                "llm, or remove it"
            )
        return found + [
            f"llm_calls.{name}: expected nothing without a language model, got {value}; name one "
            "in llm, or remove it"
            for name, value in self.llm_calls.model_dump().items()
            if value != getattr(LLMCallsConfig(), name)
        ]

    @classmethod
    def from_yaml(cls, path: Path | str, settings: Sequence[str] = ()) -> Self:
        """Return the configuration that the YAML file ``path`` holds, ``KEY=VALUE`` applied.

        Raises:
            ConfigurationError: The file is missing, empty, no YAML, or has an unknown key or bad
                value; the message has one line per problem, with its place in the file.
        """
        document = read_yaml_document(Path(path))
        if document.content is None:
            raise ConfigurationError(
                f"{path}: expected a configuration of the loop, got an empty file; "
                "`cadenza configs list` names the shipped ones."
            )
        content: Any = document.content
        if not (settings and isinstance(content, dict)):
            return cls._validated(content, str(path), document)
        return cls._validated(apply_settings(cast("Any", content), settings), str(path), None)

    @classmethod
    def from_document(cls, document: object, *, source: str) -> Self:
        """Return the configuration that ``document`` describes; messages call it ``source``.

        Raises:
            ConfigurationError: An unknown key or bad value; one line per problem.
        """
        return cls._validated(document, source, None)

    @classmethod
    def _validated(cls, content: object, source: str, document: YamlDocument | None) -> Self:
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            lines = "".join(f"\n  {line}" for line in problems(error, cls, document))
            raise ConfigurationError(
                f"{source}: expected a configuration of the loop, got these problems:{lines}"
            ) from error
