"""An evaluation cell by cell: the immutable plan, the files of finished cells, and what runs them.

A cell is (policy, condition, partner, seed, block of episodes) on the plan's task. Its key hashes
its whole description with the code and the weights, so a stored cell is reused only by a plan that
would compute the same bytes.

Pairing:  episode ``i`` of seed ``s`` starts from the state that `initial_state_seed(s, i)` selects,
          for every policy, condition and partner.
Index:    ``episode_idx = partner_index * episodes_per_seed + i``: unique within (policy,
          condition, seed), equal across policies and conditions.
Layout:   ``cells/<key>.jsonl``, one atomic write: a header line that names the cell, one line per
          episode, and a last line with the number of episodes and the SHA-256 of all bytes before.
Resume:   a set difference: a cell whose file is whole is done; any other is run again.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.ego_link import LinkConfig
from cadenza.benchmark.episodes import (
    EpisodeTag,
    EpisodeWorld,
    Trajectory,
    open_world,
    record_episode,
    run_episode,
)
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, load_policy
from cadenza.benchmark.tasks import TaskSpec, adopt
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError, IntegrityError, UnknownNameError
from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import parse_json_object
from cadenza.evaluation.results import EpisodeResult, episode_line

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

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
_Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
_T = TypeVar("_T")
_Entry = TypeVar("_Entry", "PolicyEntry", "PartnerEntry", "ConditionEntry")


def _require_distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    if not values or len(set(values)) != len(values):
        raise ValueError(f"expected at least one value and no repetition, got {values}")
    return values


def from_name(*keys: str) -> BeforeValidator:
    """Accept a bare string where a mapping with the value of ``keys`` is meant."""

    def expand(value: object) -> object:
        return dict.fromkeys(keys, value) if isinstance(value, str) else value

    return BeforeValidator(expand)


class PlanModel(BaseModel):
    """Immutable, unknown keys and non-finite numbers refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False
    )


class PolicyChoice(PlanModel):
    """An ego policy: built-in name (``zero``, ``random``, ``goal_pd``) or ``local://`` address."""

    name: Name
    source: str = Field(min_length=1)


class PolicyEntry(PolicyChoice):
    """One ego policy, with the digest of its checkpoint's bytes; None for a built-in one."""

    weights_sha256: _Sha256 | None = None


class PartnerEntry(PlanModel):
    """One partner: registered class and parameters, and the digest of its weights, if any.

    ``seen`` tells whether the evaluated ego trained with it.
    """

    name: Name
    partner: PartnerConfig
    seen: bool = False
    weights_sha256: _Sha256 | None = None


class ConditionEntry(PlanModel):
    """One condition: the safety filter with its settings, or none, and a link, or none.

    Attributes:
        name: How results call it.
        safety: Filter settings; ``enabled=False``, the default, executes the policy's actions.
        link: What the ego hears of the others; the bare name of a preset is enough. None lets it
            see the truth and is left out, so that plans without links keep their bytes.
    """

    name: Name
    safety: SafetyConfig = Field(default_factory=SafetyConfig)
    link: Annotated[LinkConfig, from_name("profile")] | None = None

    @model_serializer(mode="wrap")
    def _without_absent_link(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.link is None:
            fields.pop("link", None)
        return fields


class Cell(PlanModel):
    """One unit of evaluation: consecutive episodes of one combination."""

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


class EvaluationPlan(PlanModel):
    """Everything that determines the results of an evaluation."""

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


#: Folder of finished cells inside an evaluation's output folder.
CELLS_FOLDER: Final = "cells"
#: Kind and version of a cell file.
_KIND: Final = "cadenza-cell/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """What a folder of cells holds of a plan.

    Attributes:
        done: Keys whose files are whole, in plan order.
        missing: Keys still to run, in plan order; includes the damaged ones.
        damaged: Why a file that exists cannot be used, by key.
    """

    done: tuple[str, ...]
    missing: tuple[str, ...]
    damaged: dict[str, str]


def cell_path(folder: Path, key: str) -> Path:
    """Return where the cell ``key`` is stored below the output folder ``folder``."""
    return folder / CELLS_FOLDER / f"{key}.jsonl"


def write_cell(folder: Path, key: str, cell: Cell, episodes: Sequence[EpisodeResult]) -> None:
    """Store a finished cell in one durable step.

    Raises:
        StorageError: The file system refused; an earlier file is unchanged.
    """
    lines = [episode_line(episode) for episode in episodes]
    body = b"".join([_header_line(key, cell) + b"\n", *lines])
    data = body + _closing_line(body, len(episodes)) + b"\n"
    atomic_write_bytes(cell_path(folder, key), data)


def read_cell(folder: Path, key: str, plan: EvaluationPlan) -> list[EpisodeResult]:
    """Return the episodes of the stored cell ``key``.

    Raises:
        FileNotFoundError: The cell was never finished.
        IntegrityError: The file is torn, was changed, or belongs to another cell.
    """
    path = cell_path(folder, key)
    data = path.read_bytes()
    body, closing_line = _split_last_line(data, path)
    header, *lines = body.split(b"\n")[:-1]
    if closing_line != _closing_line(body, len(lines)):
        raise IntegrityError(f"{path}: expected the recorded SHA-256, got other bytes.")
    cell = plan.cells[key]
    if header != _header_line(key, cell):
        raise IntegrityError(f"{path}: expected the file of {cell.label}, got another one.")
    episodes = [_parse_episode(line, f"{path.name}, line {n}") for n, line in enumerate(lines, 2)]
    check_cell_episodes(plan, cell, episodes)
    return episodes


def check_cell_episodes(
    plan: EvaluationPlan, cell: Cell, episodes: Sequence[EpisodeResult]
) -> None:
    """Raise unless ``episodes`` are exactly the planned ones of ``cell``, in order.

    Raises:
        IntegrityError: An episode is missing, foreign, or started from another state than planned.
    """
    indices = range(cell.first_episode, cell.first_episode + cell.n_episodes)
    expected = [
        (cell.seed, plan.episode_idx(cell, i), initial_state_seed(cell.seed, i)) for i in indices
    ]
    got = [(e.seed, e.episode_idx, e.initial_state_seed) for e in episodes]
    if got != expected:
        raise IntegrityError(
            f"{cell.label}: expected (seed, episode_idx, initial_state_seed) "
            f"{expected[0]} ... {expected[-1]} ({len(expected)} episodes), "
            f"got {len(got)} episodes that differ."
        )
    for episode in episodes:
        stamp = (episode.metadata.get("policy"), episode.condition, episode.partner)
        if stamp != (cell.policy, cell.condition, cell.partner):
            raise IntegrityError(f"{cell.label}: expected its own episodes, got one of {stamp}.")


def find_missing_cells(folder: Path, plan: EvaluationPlan) -> ResumeState:
    """Return which cells of ``plan`` are whole in ``folder`` and which must run."""
    done: list[str] = []
    missing: list[str] = []
    damaged: dict[str, str] = {}
    for key in plan.cells:
        try:
            read_cell(folder, key, plan)
        except FileNotFoundError:
            missing.append(key)
        except IntegrityError as error:
            missing.append(key)
            damaged[key] = str(error)
        else:
            done.append(key)
    return ResumeState(done=tuple(done), missing=tuple(missing), damaged=damaged)


def _header_line(key: str, cell: Cell) -> bytes:
    return canonical_json({"kind": _KIND, "key": key, "cell": cell.model_dump(mode="json")})


def _closing_line(body: bytes, n_episodes: int) -> bytes:
    return canonical_json({"episodes": n_episodes, "sha256": sha256_bytes(body)})


def _split_last_line(data: bytes, path: Path) -> tuple[bytes, bytes]:
    """Return (everything before the last line, the last line without its newline)."""
    end = data.rfind(b"\n", 0, -1)
    if end < 0 or not data.endswith(b"\n"):
        raise IntegrityError(f"{path}: expected complete lines, got a truncated file.")
    return data[: end + 1], data[end + 1 : -1]


def _parse_episode(line: bytes, source: str) -> EpisodeResult:
    content = parse_json_object(line, source=source)
    try:
        return EpisodeResult.model_validate(content)
    except ValidationError as error:
        raise IntegrityError(f"{source}: expected an episode, got {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRunnerFactory:
    """Builds the runner of one process; travels to workers as plain values."""

    folder: Path
    artifacts_root: Path
    plan_sha256: str
    task: TaskSpec
    modules: tuple[str, ...] = ()

    def __call__(self) -> "CellRunner":
        """Return a runner for the stored plan."""
        plan = EvaluationPlan.from_bytes((self.folder / PLAN_NAME).read_bytes())
        if plan.digest != self.plan_sha256:
            raise IntegrityError(
                f"{self.folder / PLAN_NAME}: expected plan {self.plan_sha256[:16]}, got "
                f"{plan.digest[:16]}; another run has replaced it."
            )
        adopt(self.task, self.modules)
        return CellRunner(plan=plan, folder=self.folder, artifacts_root=self.artifacts_root)


class CellRunner:
    """Plays the episodes of a cell and stores them; holds what cells of one process share."""

    def __init__(self, *, plan: EvaluationPlan, folder: Path, artifacts_root: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._artifacts_root = artifacts_root
        self._policies: dict[str, EgoPolicy] = {}

    def __call__(self, key: str, /) -> None:
        """Run the cell ``key`` and store it."""
        cell = self._plan.cells[key]
        write_cell(self._folder, key, cell, self.play(cell))

    def play(self, cell: Cell) -> list[EpisodeResult]:
        """Return the episodes of ``cell``."""
        indices = range(cell.first_episode, cell.first_episode + cell.n_episodes)
        with single_torch_thread(), self._world(cell) as world:
            return [run_episode(world, self._tag(cell, index)) for index in indices]

    def replay(self, cell: Cell, episode: int) -> tuple[EpisodeResult, Trajectory]:
        """Play one episode of ``cell`` again and also return where everyone was."""
        with single_torch_thread(), self._world(cell) as world:
            return record_episode(world, self._tag(cell, episode))

    @contextmanager
    def _world(self, cell: Cell) -> Generator[EpisodeWorld]:
        partner = self._plan.partner(cell.partner)
        condition = self._plan.condition(cell.condition)
        with open_world(
            env=self._plan.env,
            partner=partner.partner,
            weights_sha256=partner.weights_sha256,
            safety=condition.safety,
            link=condition.link,
            root_seed=cell.seed,
            make_policy=lambda seat: self._policy(cell.policy, seat),
        ) as world:
            yield world

    def _policy(self, name: str, seat: EgoSeat) -> EgoPolicy:
        if name not in self._policies:
            entry = self._plan.policy(name)
            self._policies[name] = load_policy(
                entry.source,
                seat=seat,
                artifacts_root=self._artifacts_root,
                weights_sha256=entry.weights_sha256,
            )
        return self._policies[name]

    def _tag(self, cell: Cell, episode: int) -> EpisodeTag:
        return EpisodeTag(
            seed=cell.seed,
            episode_idx=self._plan.episode_idx(cell, episode),
            initial_state_seed=initial_state_seed(cell.seed, episode),
            policy=cell.policy,
            condition=cell.condition,
            partner=cell.partner,
        )
