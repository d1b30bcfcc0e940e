"""An evaluation cell by cell: the immutable plan, the files of finished cells, and what runs them.

A cell is (policy, condition, partner, seed, block of episodes) on the plan's task. Its key hashes
its whole description with the code and the weights, so a stored cell is reused only by a plan that
would compute the same bytes.

Pairing:  episode ``i`` of seed ``s`` starts from the state that `initial_state_seed(s, i)` selects,
          for every policy, condition and partner.
Index:    ``episode_idx = partner_index * episodes_per_seed + i``: unique within (policy,
          condition, seed), equal across policies and conditions.
Engine:   lanes (`cadenza.benchmark.lanes`), or the scalar loop where there is no batch: for links,
          tasks without lanes, and options of the filter that only one environment follows. The plan
          says which for each condition, and the sizes of blocks, for both are part of the bits;
          the number of lanes is not. A batch of cells shares policy, condition and partner.
Layout:   ``cells/<key>.jsonl``, one atomic write: a header line that names the cell, one line per
          episode, and a last line with the number of episodes and the SHA-256 of all bytes before.
          The header tells how networks round where the cell was played (`network_fingerprint`).
Resume:   a set difference: a cell whose file is whole is done; any other is run again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
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
from cadenza.benchmark.lanes import (
    DEFAULT_LANES,
    FILTER_ROWS,
    LaneWorld,
    open_lanes,
    play_lanes,
    record_in_lanes,
)
from cadenza.benchmark.output_folder import require_same_kind, require_same_request
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, load_policy
from cadenza.benchmark.tasks import OptionValue, TaskSpec, adopt
from cadenza.core.arrays import BLOCK_ROWS
from cadenza.core.device import network_fingerprint, single_torch_thread
from cadenza.core.errors import CadenzaError, ConfigurationError, IntegrityError, UnknownNameError
from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import parse_json_object
from cadenza.evaluation.results import EpisodeResult, episode_line, first_problem
from cadenza.partners.varied_body import INNER

#: Version of the plan's layout; part of every key.
PLAN_SCHEMA_VERSION: Final = 2
#: File name of a plan.
PLAN_NAME: Final = "plan.json"
#: What plays cells.
LANES: Final = "lanes/1"
SCALAR: Final = "scalar/1"
_SIZES: Final = (BLOCK_ROWS, FILTER_ROWS)
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
    """An ego policy: built-in name (``zero``, ``random``, ``goal_pd``) or ``local://`` address.

    Policies of one ``method`` that differ in their ``training_seed`` are one result; both are left
    out where they are not given.
    """

    name: Name
    source: str = Field(min_length=1)
    method: Name | None = None
    training_seed: int | None = Field(default=None, ge=0)

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        absent = {n for n in ("method", "training_seed") if getattr(self, n) is None}
        return {name: value for name, value in fields.items() if name not in absent}

    @model_validator(mode="after")
    def _names_both_or_none(self) -> Self:
        if (self.method is None) != (self.training_seed is None):
            raise ValueError("expected method and training_seed together, got one of them")
        return self


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
    """One condition: the safety filter, the link, and what else is different in it.

    What follows ``safety`` is left out where it is not given, so that older plans keep their bytes.

    Attributes:
        name: How results call it.
        safety: Filter settings; ``enabled=False``, the default, executes the policy's actions.
        link: What the ego hears of the others; the bare name of a preset is enough. None lets it
            see the truth.
        options: Settings of the task's environment on top of the evaluation's.
        condition_id: The one of the task's conditions; None takes the evaluation's.
        wrapper: Partner class that each partner plays inside, with its options, e.g. `varied_body`;
            the bare name is enough.
    """

    name: Name
    safety: SafetyConfig = Field(default_factory=SafetyConfig)
    link: Annotated[LinkConfig, from_name("profile")] | None = None
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    condition_id: str | None = None
    wrapper: PartnerConfig | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        absent = ("link", "options", "condition_id", "wrapper")
        return {k: v for k, v in fields.items() if k not in absent or getattr(self, k)}

    def env_of(self, env: EnvConfig) -> EnvConfig:
        """Return the environment of an evaluation as it is in this condition."""
        own = {"condition_id": self.condition_id} if self.condition_id else {}
        return env.model_copy(update={"options": {**env.options, **self.options}, **own})

    def partner_of(self, partner: PartnerConfig) -> PartnerConfig:
        """Return a partner as it plays in this condition; weights stay those of the inner one."""
        if self.wrapper is None:
            return partner
        inner = {INNER + key: value for key, value in partner.extra.items() if key != "uid"}
        uid = {key: value for key, value in partner.extra.items() if key == "uid"}
        extra = {**uid, **inner, "partner": partner.class_name, **self.wrapper.extra}
        return partner.model_copy(update={"class_name": self.wrapper.class_name, "extra": extra})


class EngineEntry(PlanModel):
    """How cells are played; part of their bits.

    Attributes:
        conditions: ``lanes/1`` or ``scalar/1`` by the name of the condition.
        block_rows: Rows of every product of a network in lanes.
        filter_rows: Most lanes that the filter decides in one pass.
    """

    conditions: dict[str, Literal["lanes/1", "scalar/1"]]
    block_rows: int = Field(default=BLOCK_ROWS, gt=0)
    filter_rows: int = Field(default=FILTER_ROWS, gt=0)

    def of(self, condition: str) -> dict[str, Any]:
        """Return what plays the cells of ``condition``, as JSON values."""
        name = self.conditions[condition]
        if name == SCALAR:
            return {"name": name}
        return {"name": name, "block_rows": self.block_rows, "filter_rows": self.filter_rows}


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
    """Everything that determines the results of an evaluation.

    Plans of schema 1 have no ``engine``: the scalar loop plays them.
    """

    schema_version: Literal[1, 2] = PLAN_SCHEMA_VERSION
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
    engine: EngineEntry | None = None

    @model_serializer(mode="wrap")
    def _without_absent_engine(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.engine is None:
            fields.pop("engine", None)
        return fields

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
        trained = [(p.method, p.training_seed) for p in self.policies if p.method is not None]
        if len(set(trained)) != len(trained):
            raise ValueError(f"policies: expected each training seed once, got {trained}")
        if self.env.num_envs != 1:
            raise ValueError(f"env.num_envs: expected 1, got {self.env.num_envs}")
        engine = self.engine
        if (engine is None) != (self.schema_version == 1):
            raise ValueError("engine: expected one in schema 2 and none in schema 1")
        if engine is not None and set(engine.conditions) != {c.name for c in self.conditions}:
            raise ValueError(f"engine: expected every condition, got {[*engine.conditions]}")
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

    def plays_in_lanes(self, cell: Cell) -> bool:
        """Return whether lanes play ``cell``; otherwise the scalar loop does."""
        return self.engine is not None and self.engine.conditions[cell.condition] == LANES

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
            raise IntegrityError(
                f"{source}: expected an evaluation plan, got another object: {first_problem(error)}"
            ) from error
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
        if self.engine is not None:
            description["engine"] = self.engine.of(cell.condition)
        return sha256_bytes(canonical_json(description))[:CELL_KEY_DIGITS]


def partner_classes(
    partners: Iterable[PartnerEntry], conditions: Iterable[ConditionEntry]
) -> list[str]:
    """Return the classes of partners and of what they play inside."""
    inside = [entry.wrapper.class_name for entry in conditions if entry.wrapper is not None]
    return [*(entry.partner.class_name for entry in partners), *inside]


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
        ConfigurationError: The folder holds another plan, and what differs is named, or no
            evaluation.
        IntegrityError: What it holds is no plan, or was changed.
        StorageError: The file system refused.
    """
    path, data = folder / PLAN_NAME, plan.to_bytes()
    require_same_kind(path)
    stored = path.read_bytes() if path.exists() else b""
    if not stored:
        atomic_write_bytes(path, data)
    elif stored != data:
        before, now = (parse_json_object(x, source=str(path)) for x in (stored, data))
        require_same_request(folder, before, now)
        raise IntegrityError(f"{path}: expected the bytes of this plan, got others; restore it.")


#: Folder of finished cells inside an evaluation's output folder.
CELLS_FOLDER: Final = "cells"
#: Key of the fingerprint in a cell's header.
NETWORK_KEY: Final = "network_sha256"
#: Kind and version of a cell file.
_KIND: Final = "cadenza-cell/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """What a folder of cells holds of a plan.

    Attributes:
        done: Keys whose files are whole, in plan order.
        missing: Keys still to run, in plan order; includes the damaged ones.
        damaged: Why a file that exists cannot be used, by key.
        networks: `network_fingerprint` of where the whole cells were played.
    """

    done: tuple[str, ...]
    missing: tuple[str, ...]
    damaged: dict[str, str]
    networks: frozenset[str]


def cell_path(folder: Path, key: str) -> Path:
    """Return where the cell ``key`` is stored below the output folder ``folder``."""
    return folder / CELLS_FOLDER / f"{key}.jsonl"


def write_cell(folder: Path, key: str, cell: Cell, episodes: Sequence[EpisodeResult]) -> None:
    """Store a finished cell in one durable step.

    Raises:
        StorageError: The file system refused; an earlier file is unchanged.
    """
    store_cell(folder, key, encode_cell(key, cell, episodes))


def store_cell(folder: Path, key: str, data: bytes) -> None:
    """Write the bytes of `encode_cell` in one durable step; raises StorageError."""
    atomic_write_bytes(cell_path(folder, key), data)


def encode_cell(key: str, cell: Cell, episodes: Sequence[EpisodeResult]) -> bytes:
    """Return the file of a cell that was played here."""
    lines = [episode_line(episode) for episode in episodes]
    header = {**_header(key, cell), NETWORK_KEY: network_fingerprint()}
    body = b"".join([canonical_json(header) + b"\n", *lines])
    return body + _closing_line(body, len(episodes)) + b"\n"


def read_cell(folder: Path, key: str, plan: EvaluationPlan) -> list[EpisodeResult]:
    """Return the episodes of the stored cell ``key``.

    Raises:
        FileNotFoundError: The cell was never finished.
        IntegrityError: The file is torn, was changed, or belongs to another cell.
    """
    path, (_, lines) = cell_path(folder, key), _read_lines(folder, key, plan)
    episodes = [_parse_episode(line, f"{path.name}, line {n}") for n, line in enumerate(lines, 2)]
    check_cell_episodes(plan, plan.cells[key], episodes)
    return episodes


def _read_lines(folder: Path, key: str, plan: EvaluationPlan) -> tuple[str, list[bytes]]:
    """Return a stored cell's fingerprint and the lines of its episodes, whole but not parsed.

    Raises:
        FileNotFoundError: As `read_cell`.
        IntegrityError: As `read_cell`.
    """
    path = cell_path(folder, key)
    data = path.read_bytes()
    body, closing_line = _split_last_line(data, path)
    header, *lines = body.split(b"\n")[:-1]
    if closing_line != _closing_line(body, len(lines)):
        raise IntegrityError(f"{path}: expected the recorded SHA-256, got other bytes.")
    cell = plan.cells[key]
    facts = parse_json_object(header, source=str(path))
    network = facts.pop(NETWORK_KEY, "")  # older files have none
    if facts != _header(key, cell):
        raise IntegrityError(f"{path}: expected the file of {cell.label}, got another one.")
    if len(lines) != cell.n_episodes:
        raise IntegrityError(
            f"{path}: expected {cell.n_episodes} episodes of {cell.label}, got {len(lines)}."
        )
    return str(network), lines


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
    """Return which cells of ``plan`` are whole in ``folder`` and which must run.

    Checksums tell; episodes are parsed when they are read.
    """
    done: list[str] = []
    missing: list[str] = []
    damaged: dict[str, str] = {}
    networks = set[str]()
    for key in plan.cells:
        try:
            networks.add(_read_lines(folder, key, plan)[0])
        except FileNotFoundError:
            missing.append(key)
        except IntegrityError as error:
            missing.append(key)
            damaged[key] = str(error)
        else:
            done.append(key)
    return ResumeState(
        done=tuple(done),
        missing=tuple(missing),
        damaged=damaged,
        networks=frozenset(networks - {""}),
    )


def _header(key: str, cell: Cell) -> dict[str, Any]:
    return {"kind": _KIND, "key": key, "cell": cell.model_dump(mode="json")}


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
        raise IntegrityError(
            f"{source}: expected an episode, got another object: {first_problem(error)}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRunnerFactory:
    """Builds the runner of one process; travels to workers as plain values.

    Attributes:
        plan: Bytes of the plan.
        artifacts_root: Where each worker finds the weights.
        task: The plan's task, and what registers the rest.
        modules: Modules that register the partners when they are imported.
        lanes: Most lanes of a batch; no byte depends on it.
    """

    plan: bytes
    artifacts_root: Path
    task: TaskSpec
    modules: tuple[str, ...] = ()
    lanes: int = DEFAULT_LANES

    def __call__(self) -> "CellRunner":
        """Return a runner for the plan."""
        adopt(self.task, self.modules)
        plan = EvaluationPlan.from_bytes(self.plan)
        return CellRunner(plan=plan, artifacts_root=self.artifacts_root, lanes=self.lanes)


class CellRunner:
    """Plays cells."""

    def __init__(
        self, *, plan: EvaluationPlan, artifacts_root: Path, lanes: int = DEFAULT_LANES
    ) -> None:
        self._plan, self._artifacts_root, self._lanes = plan, artifacts_root, lanes
        engine = plan.engine
        if engine is not None and (engine.block_rows, engine.filter_rows) != _SIZES:
            raise ConfigurationError(
                f"plan: expected (block_rows, filter_rows) = {_SIZES}, got {engine.block_rows} and "
                f"{engine.filter_rows}; play it with the release that wrote it."
            )

    def __call__(self, key: str, /) -> bytes:
        """Play the cell ``key`` and return its file.

        Raises:
            CadenzaError: As an episode raises; the message names the episode.
        """
        cell = self._plan.cells[key]
        try:
            ((_, data),) = self.batch((key,))
        except CadenzaError as error:
            raise self._located(cell, error) from error
        return data

    def batch(self, keys: Sequence[str], /) -> Iterator[tuple[str, bytes]]:
        """Play cells of one policy, condition and partner; yield key and file as each ends."""
        cells = [self._plan.cells[key] for key in keys]
        if not self._plan.plays_in_lanes(cells[0]):
            for key, cell in zip(keys, cells, strict=True):
                with single_torch_thread(), self._world(cell) as world:
                    episodes = [run_episode(world, tag) for tag in self._tags(cell)]
                yield key, encode_cell(key, cell, episodes)
            return
        whose = [n for n, cell in enumerate(cells) for _ in range(cell.n_episodes)]
        firsts = [whose.index(n) for n in range(len(cells))]
        played: list[dict[int, EpisodeResult]] = [{} for _ in cells]
        tags = [tag for cell in cells for tag in self._tags(cell)]
        with single_torch_thread(), self._lane_world(cells[0], len(tags)) as world:
            for index, result in play_lanes(world, tags):
                n = whose[index]
                played[n][index - firsts[n]] = result
                if len(played[n]) == cells[n].n_episodes:
                    episodes = [played[n][i] for i in range(cells[n].n_episodes)]
                    yield keys[n], encode_cell(keys[n], cells[n], episodes)
                    played[n] = {}

    def replay(self, cell: Cell, episode: int) -> tuple[EpisodeResult, Trajectory]:
        """Play one episode of ``cell`` again and also return where everyone was."""
        tag = self._tag(cell, episode)
        with single_torch_thread():
            if self._plan.plays_in_lanes(cell):
                with self._lane_world(cell, 1) as world:
                    return record_in_lanes(world, tag)[:2]
            with self._world(cell) as world:
                return record_episode(world, tag)

    def _located(self, cell: Cell, error: CadenzaError) -> CadenzaError:
        """Return ``error`` with the name of the first episode that raises it alone."""
        if str(error).startswith("episode "):
            return error
        for tag in self._tags(cell):
            try:
                self._play_alone(cell, tag)
            except CadenzaError as found:
                label = "" if str(found).startswith("episode ") else f"{tag.label}: "
                return type(found)(f"{label}{found}")
        return error

    def _play_alone(self, cell: Cell, tag: EpisodeTag) -> None:
        with single_torch_thread():
            if self._plan.plays_in_lanes(cell):
                with self._lane_world(cell, 1) as world:
                    list(play_lanes(world, [tag]))
            else:
                with self._world(cell) as world:
                    run_episode(world, tag)

    def _world(self, cell: Cell) -> AbstractContextManager[EpisodeWorld]:
        link = self._plan.condition(cell.condition).link
        return open_world(link=link, root_seed=cell.seed, **self._parts(cell))

    def _lane_world(self, cell: Cell, episodes: int) -> AbstractContextManager[LaneWorld]:
        """Return lanes for so many episodes."""
        return open_lanes(lanes=min(self._lanes, episodes), **self._parts(cell))

    def _parts(self, cell: Cell) -> dict[str, Any]:
        """Return what takes part in a cell's episodes, alone or in lanes."""
        partner = self._plan.partner(cell.partner)
        condition = self._plan.condition(cell.condition)
        return {
            "env": condition.env_of(self._plan.env),
            "partner": condition.partner_of(partner.partner),
            "weights_sha256": partner.weights_sha256,
            "safety": condition.safety,
            "make_policy": partial(self._policy, cell.policy),
        }

    def _policy(self, name: str, seat: EgoSeat) -> EgoPolicy:
        entry = self._plan.policy(name)
        return load_policy(
            entry.source,
            seat=seat,
            artifacts_root=self._artifacts_root,
            weights_sha256=entry.weights_sha256,
        )

    def _tags(self, cell: Cell) -> list[EpisodeTag]:
        indices = range(cell.first_episode, cell.first_episode + cell.n_episodes)
        return [self._tag(cell, index) for index in indices]

    def _tag(self, cell: Cell, episode: int) -> EpisodeTag:
        return EpisodeTag(
            seed=cell.seed,
            episode_idx=self._plan.episode_idx(cell, episode),
            initial_state_seed=initial_state_seed(cell.seed, episode),
            policy=cell.policy,
            condition=cell.condition,
            partner=cell.partner,
        )


def batches(
    plan: EvaluationPlan, keys: Sequence[str], *, episodes: int
) -> Iterator[tuple[str, str, str]]:
    """Yield (key, configuration, batch) for each of ``keys``: what is played together.

    A configuration shares environment and partner; a batch, policy and condition as well, and holds
    about so many ``episodes``, of several blocks and seeds. The scalar loop's cells are alone.
    """
    before: dict[str, int] = {}
    for key in keys:
        cell = plan.cells[key]
        condition = plan.condition(cell.condition)
        changed = condition.options or condition.condition_id or condition.wrapper
        configuration = f"{cell.partner} / {cell.condition}" if changed else cell.partner
        if not plan.plays_in_lanes(cell):
            yield key, configuration, key
            continue
        group = f"{cell.policy} / {cell.condition} / {cell.partner}"
        count = before.get(group, 0)
        before[group] = count + cell.n_episodes
        yield key, configuration, f"{group} / {count // episodes}"
