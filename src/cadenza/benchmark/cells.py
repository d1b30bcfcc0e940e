"""The immutable plan of an evaluation: what is run, cell by cell, and under which identity.

A cell is (policy, condition, partner, seed, block of episodes) on the plan's task. Its key hashes
its whole description with the code and the weights, so a stored cell is reused only by a plan that
would compute the same bytes.

Pairing:  episode ``i`` of seed ``s`` starts from the state that `initial_state_seed(s, i)` selects,
          for every policy, condition and partner.
Index:    ``episode_idx = partner_index * episodes_per_seed + i``: unique within (policy,
          condition, seed), equal across policies and conditions.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from cadenza.aht.config_models import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.ego_link import LinkConfig
from cadenza.core.errors import ConfigurationError, IntegrityError, UnknownNameError
from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import parse_json_object

#: Version of the plan's layout; part of every key.
PLAN_SCHEMA_VERSION: Final = 1
#: File name of a plan.
PLAN_NAME: Final = "plan.json"
#: Hex digits of a cell key: 128 bits.
CELL_KEY_DIGITS: Final = 32
#: What names of policies, partners and conditions may look like: policies name folders.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
#: A SHA-256 in lower-case hex.
SHA256_PATTERN: Final = r"^[0-9a-f]{64}$"

_Name = Annotated[str, Field(pattern=NAME_PATTERN)]
_Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
_T = TypeVar("_T")
_Entry = TypeVar("_Entry", "PolicyEntry", "PartnerEntry", "ConditionEntry")


def _require_distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    if not values or len(set(values)) != len(values):
        raise ValueError(f"expected at least one value and no repetition, got {values}")
    return values


class _PlanModel(BaseModel):
    """Immutable, unknown keys and non-finite numbers refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyEntry(_PlanModel):
    """One ego policy.

    Attributes:
        name: How results call it.
        source: Name of a built-in policy or ``local://`` address of a checkpoint.
        weights_sha256: Digest of the checkpoint's bytes; None for a built-in policy.
    """

    name: _Name
    source: str = Field(min_length=1)
    weights_sha256: _Sha256 | None = None


class PartnerEntry(_PlanModel):
    """One partner.

    Attributes:
        name: How results call it.
        partner: Registered class and parameters.
        seen: Whether the evaluated ego trained with it.
        weights_sha256: Digest of its weights' bytes; None for a scripted partner.
    """

    name: _Name
    partner: PartnerConfig
    seen: bool = False
    weights_sha256: _Sha256 | None = None


class ConditionEntry(_PlanModel):
    """One condition: the safety filter with its settings, or none, and a link, or none.

    Attributes:
        name: How results call it.
        safety: Filter settings; ``enabled=False`` executes the policy's actions as they are.
        link: What the ego hears of the others; None lets it see the truth. Left out then, so that
            plans without links keep their bytes.
    """

    name: _Name
    safety: SafetyConfig
    link: LinkConfig | None = None

    @model_serializer(mode="wrap")
    def _without_absent_link(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.link is None:
            fields.pop("link", None)
        return fields


class Cell(_PlanModel):
    """One unit of evaluation: consecutive episodes of one combination.

    Attributes:
        policy: Name of the policy.
        condition: Name of the condition.
        partner: Name of the partner.
        seed: Evaluation seed.
        first_episode: Index of the first episode within the seed.
        n_episodes: Number of episodes.
    """

    policy: str
    condition: str
    partner: str
    seed: int
    first_episode: int
    n_episodes: int

    @property
    def label(self) -> str:
        """Name of the cell for people."""
        last = self.first_episode + self.n_episodes - 1
        return (
            f"cell {self.policy} / {self.condition} / {self.partner} / seed {self.seed} / "
            f"episodes {self.first_episode}-{last}"
        )


class EvaluationPlan(_PlanModel):
    """Everything that determines the results of an evaluation.

    Attributes:
        schema_version: Version of this layout.
        task_version: Version of the task named in ``env``.
        env: Task and its settings; one environment, not a batch.
        policies: Ego policies.
        partners: Partners.
        conditions: Conditions.
        seeds: Evaluation seeds: the clusters of the statistics.
        episodes_per_seed: Episodes per policy, condition, partner and seed.
        block_size: Episodes per cell, at most.
        code_sha256: Digest of the source of the package and of the plug-ins that take part.
        package_version: Version of the package.
    """

    schema_version: Literal[1] = PLAN_SCHEMA_VERSION
    task_version: int = Field(ge=0)
    env: EnvConfig
    policies: tuple[PolicyEntry, ...] = Field(min_length=1)
    partners: tuple[PartnerEntry, ...] = Field(min_length=1)
    conditions: tuple[ConditionEntry, ...] = Field(min_length=1)
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, strict=True)], ...], AfterValidator(_require_distinct)
    ]
    episodes_per_seed: int = Field(gt=0)
    block_size: int = Field(gt=0)
    code_sha256: _Sha256
    package_version: str

    @model_validator(mode="after")
    def _check_names_and_env(self) -> Self:
        for kind, entries in (
            ("policies", self.policies),
            ("partners", self.partners),
            ("conditions", self.conditions),
        ):
            names = [entry.name for entry in entries]
            if len(set(names)) != len(names):
                raise ValueError(f"{kind}: expected distinct names, got {names}")
        if self.env.num_envs != 1:
            raise ValueError(f"env.num_envs: expected 1, got {self.env.num_envs}")
        return self

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Cells by key, in plan order."""
        return {self._key(cell): cell for cell in self._iterate_cells()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical bytes."""
        return sha256_bytes(self.to_bytes())

    @property
    def n_episodes(self) -> int:
        """Number of episodes of the whole plan."""
        return sum(cell.n_episodes for cell in self.cells.values())

    def policy(self, name: str) -> PolicyEntry:
        """Return the policy called ``name``."""
        return _named("policy", self.policies, name)

    def partner(self, name: str) -> PartnerEntry:
        """Return the partner called ``name``."""
        return _named("partner", self.partners, name)

    def condition(self, name: str) -> ConditionEntry:
        """Return the condition called ``name``."""
        return _named("condition", self.conditions, name)

    def episode_idx(self, cell: Cell, episode: int) -> int:
        """Return the index of ``episode`` (within the seed) that results of ``cell`` carry."""
        partner_index = [entry.name for entry in self.partners].index(cell.partner)
        return partner_index * self.episodes_per_seed + episode

    def to_bytes(self) -> bytes:
        """Return the plan as canonical JSON: equal plans, equal bytes."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = PLAN_NAME) -> "EvaluationPlan":
        """Return the plan that ``data`` holds.

        Raises:
            IntegrityError: ``data`` is not the canonical form of a plan.
        """
        content = parse_json_object(data, source=source)
        try:
            plan = cls.model_validate(content)
        except ValidationError as error:
            raise IntegrityError(f"{source}: expected an evaluation plan, got {error}") from error
        if plan.to_bytes() != data:
            raise IntegrityError(f"{source}: expected the canonical form of its plan, got another.")
        return plan

    def _iterate_cells(self) -> Iterator[Cell]:
        combinations = product(self.policies, self.partners, self.seeds, self.conditions)
        for policy, partner, seed, condition in combinations:
            for first in range(0, self.episodes_per_seed, self.block_size):
                yield Cell(
                    policy=policy.name,
                    condition=condition.name,
                    partner=partner.name,
                    seed=seed,
                    first_episode=first,
                    n_episodes=min(self.block_size, self.episodes_per_seed - first),
                )

    def _key(self, cell: Cell) -> str:
        description = {
            "schema_version": self.schema_version,
            "task_version": self.task_version,
            "env": self.env.model_dump(mode="json"),
            "policy": self.policy(cell.policy).model_dump(mode="json"),
            "partner": self.partner(cell.partner).model_dump(mode="json"),
            "condition": self.condition(cell.condition).model_dump(mode="json"),
            "seed": cell.seed,
            "first_episode": cell.first_episode,
            "n_episodes": cell.n_episodes,
            "first_episode_idx": self.episode_idx(cell, cell.first_episode),
            "code_sha256": self.code_sha256,
        }
        return sha256_bytes(canonical_json(description))[:CELL_KEY_DIGITS]


def _named(kind: str, entries: tuple[_Entry, ...], name: str) -> _Entry:
    for entry in entries:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in entries)
    raise UnknownNameError(f"{kind} {name!r}: expected one the plan names: {known}.")


def initial_state_seed(seed: int, episode: int) -> int:
    """Return the reset seed of ``episode`` under evaluation seed ``seed``, in [0, 2^31 - 1)."""
    return derive_substream(f"evaluation.episode.{episode}", root_seed=seed).integer_seed()


def store_plan(folder: Path, plan: EvaluationPlan) -> None:
    """Write ``plan`` into ``folder``, or check that the folder already holds the same plan.

    Raises:
        ConfigurationError: The folder holds another plan.
        StorageError: The file system refused.
    """
    path = folder / PLAN_NAME
    if not path.exists():
        atomic_write_bytes(path, plan.to_bytes())
        return
    if path.read_bytes() != plan.to_bytes():
        raise ConfigurationError(
            f"{path}: expected the plan of this evaluation, got another one (other settings, code "
            "or weights); choose another output folder or start over with --overwrite."
        )
