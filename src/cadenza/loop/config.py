"""The configuration of one loop run: YAML in, frozen and checked sections out.

A LeAgents file loads unchanged once it says ``backend: lerobot``, unless its further arguments
repeat flags that the loop sets. Sections and keys that LeAgents does not have default to what keeps
its behaviour where that was sound. With ``backend: native`` some defaults differ; they are in
`cadenza.loop.config_backends`.

Paths:  relative ones count from the current folder, here and in every section.
"""

from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import Field, StringConstraints, ValidationError, model_validator

from cadenza.core.errors import ConfigurationError
from cadenza.core.yaml_files import YamlDocument, read_yaml_document
from cadenza.loop.config_backends import (
    LEAGENTS_RULES,
    clashing_flags,
    flags_against_seeds,
    misplaced_names,
    settings_without_effect,
    with_backend_defaults,
)
from cadenza.loop.config_sections import (
    NAME_PATTERN,
    ApprovalConfig,
    BackendName,
    BudgetConfig,
    CurationConfig,
    DataConfig,
    EvalConfig,
    Gate,
    ImproveConfig,
    JobsConfig,
    KnowledgeConfig,
    LLMCallsConfig,
    Metric,
    PolicyRung,
    Section,
    ThresholdConfig,
    TrainConfig,
    misfit_thresholds,
    unread_approval,
)
from cadenza.loop.llm.spec import parse_spec
from cadenza.loop.validation import problems

__all__ = [
    "NAME_PATTERN",
    "ApprovalConfig",
    "BackendName",
    "BudgetConfig",
    "CurationConfig",
    "DataConfig",
    "EvalConfig",
    "Gate",
    "ImproveConfig",
    "JobsConfig",
    "KnowledgeConfig",
    "LLMCallsConfig",
    "LoopConfig",
    "Metric",
    "PolicyRung",
    "Section",
    "ThresholdConfig",
    "TrainConfig",
]

#: ``name`` or ``owner/name``, as data sets are called everywhere.
_DATASET_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$"


def _default_rules(fields: dict[str, Any]) -> Path | None:
    """Return the file of rules that a configuration means without naming one."""
    return LEAGENTS_RULES if fields.get("backend") == "lerobot" else None


class LoopConfig(Section):
    """Everything that determines a run.

    Attributes:
        run_name: Name of the run; part of its id.
        seed_dataset: Dataset that runs start from; the only one proposers may use.
        seed_root: Folder of a local seed dataset; None for one that the back end finds or makes.
        backend: Training stack.
        seed: Root of the run's randomness: initial states, sampling, training.
        workdir: Folder of all runs.
        store: SQLAlchemy URL of the job store; None for ``<workdir>/cadenza.db`` (SQLite).
        llm: Language model, ``"provider:model"``; None for none.
        constitution: File of the rules; None for the shipped ones, which also stand in for the
            default of LeAgents where the key is absent and no file lies there.
        policy_ladder: Policy types, weakest first.
        reference: Policy that candidates are compared with from cycle 0: weights, or an earlier run
            of the same store, whose blessed policy is meant; None for the weights on this machine
            that the first rung starts from, ``"none"`` for none.
        llm_calls: What calls of that model may take, and what they cost.
        knowledge: Pages for later runs.
        data: Data of a cycle.
        budgets: What the run may spend.
        thresholds: What a difference must be to mean something.
        train: Training.
        eval: Measurement.
        improve: Harvest of the policy's own successes.
        curation: Proposals with a language model.
        jobs: How commands run.
        approval: Decisions that wait for a person.
    """

    run_name: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    seed_dataset: Annotated[str, StringConstraints(pattern=_DATASET_PATTERN)]
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
        settings = {
            "data.instructions": self.data.instructions,
            "improve.device": self.improve.device,
            "improve.task_text": self.improve.task_text,
        }
        extra = {
            "train.extra_args": self.train.extra_args,
            "eval.extra_args": self.eval.extra_args,
            "improve.extra_args": self.improve.extra_args,
        }
        return [
            *settings_without_effect(self.backend, settings),
            *clashing_flags(self.backend, extra, self.eval.env_args),
            *flags_against_seeds(self.backend, self.eval.env_type, extra, self.eval.env_args),
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
    def from_yaml(cls, path: Path | str) -> Self:
        """Return the configuration that the YAML file ``path`` holds.

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
        return cls._validated(document.content, str(path), document)

    @classmethod
    def from_document(cls, document: object, *, source: str) -> Self:
        """Return the configuration that ``document``, a parsed file, describes.

        Args:
            document: Mapping of keys to values.
            source: How messages call the document.

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
