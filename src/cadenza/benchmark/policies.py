"""Ego policies for evaluation: trained ones from checkpoints, and simple ones to compare with.

A policy is named by its source: a built-in name (``zero``, ``random``, ``goal_pd``) or the
``local://`` address of a file; jobs name one by its path. What it holds decides, not its name: a
policy file (see `cadenza.learn.nn.portable`), what `Agent.save` or a training of this package
wrote, or an actor that HARL saved. ONNX graphs end in ``.onnx``. Equal episode seeds give equal
actions.

Lanes:   policies that play many episodes at once are `LanePolicy`; of any other, `lane_policy`
         makes one per lane.

Adding one:  a class built from an `EgoSeat`, registered with `register_policy` in a module that the
             entry-point group ``cadenza.policies`` names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.aht.config import SafetyConfig
from cadenza.core.arrays import Float32Array, in_blocks
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    is_foreign,
    list_checkpoints,
    load_weights_file,
    read_metadata,
    resolve_uri,
    sidecar_path,
    stated_metadata,
)
from cadenza.core.checks import is_scalable
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import (
    CheckpointError,
    InputError,
    UnknownNameError,
    refuse,
)
from cadenza.core.files import is_safetensors, sha256_bytes, sha256_file
from cadenza.core.plug_ins import PlugIns
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import parse_json_object
from cadenza.core.types import Observation
from cadenza.learn.nn.gaussian_actor import (
    MAX_STANDARD_DEVIATION,
    STANDARD_DEVIATION_KEY,
    GaussianActor,
    named_activation,
)
from cadenza.learn.nn.portable import (
    POLICY_FACT,
    POLICY_KEY,
    SUFFIX,
    TRAINED_BEHIND,
    TRAINED_WITH,
    PortableNetwork,
    load_policy_file,
    policy_path,
)
from cadenza.partners.frozen import OnnxGraph, read_bytes

#: Folder of a training's files, and what the card of a run ends in.
_RUNS_FOLDER: Final = "artifacts"
_RUN_SUFFIX: Final = ".run.json"
#: The same folders of a training with several seeds.
_SEEDS: Final = f"training/*/{_RUNS_FOLDER}"
#: What an ONNX graph is called: its bytes do not say what they are.
ONNX_SUFFIX: Final = ".onnx"
#: Stiffness of `GoalPolicy`, 1/s^2: a goal 2 m away asks for the ego's full 2 m/s^2.
GOAL_STIFFNESS: Final = 1.0
#: Damping of `GoalPolicy`, 1/s: critical, 2 sqrt(stiffness), so it arrives without overshoot.
GOAL_DAMPING: Final = 2.0


class EgoPolicy(Protocol):
    """What plays the ego's seat during an evaluation; it never learns."""

    def reset(self, *, seed: int) -> None:
        """Forget the last episode; equal seeds and observations give equal actions."""
        ...

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the ego's action, float32, shape (A,)."""
        ...


@runtime_checkable
class LanePolicy(Protocol):
    """A policy that plays one episode in each of N lanes; no lane's actions depend on another's."""

    def reset(self, *, seed: int) -> None:
        """Forget all lanes."""
        ...

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start an episode in one lane, which then acts as one policy does after `reset`."""
        ...

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return the ego's actions, float32, (N, A), for its states in N lanes, (N, D)."""
        ...


class MemorylessPolicy:
    """Base of policies whose action depends on the observation alone."""

    def reset(self, *, seed: int) -> None:
        """Nothing to forget."""
        del seed

    def reset_row(self, row: int, *, seed: int) -> None:
        """Nothing to forget."""
        del row, seed


class _PolicyPerLane:
    """As many policies as there are lanes."""

    def __init__(self, make: Callable[[], EgoPolicy], uid: str) -> None:
        self._make, self._uid, self._policies = make, uid, dict[int, EgoPolicy]()

    def reset(self, *, seed: int) -> None:
        """See `LanePolicy`."""
        del seed

    def reset_row(self, row: int, *, seed: int) -> None:
        """See `LanePolicy`."""
        if row not in self._policies:
            self._policies[row] = self._make()
        self._policies[row].reset(seed=seed)

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """See `LanePolicy`."""
        seen = [{"agent": {self._uid: {"state": state}}} for state in states]
        return np.stack([self._policies[row].act(seen[row]) for row in range(len(seen))])


def lane_policy(make: Callable[[], EgoPolicy], uid: str) -> LanePolicy:
    """Return what plays the policy of ``make`` in the seat ``uid`` of every lane."""
    policy = make()
    return policy if isinstance(policy, LanePolicy) else _PolicyPerLane(make, uid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class EgoSeat:
    """The ego's place in an environment.

    Attributes:
        uid: Name of the ego robot.
        observation_dim: Length D of ``obs["agent"][uid]["state"]``.
        low: Smallest action, shape (A,).
        high: Largest action, shape (A,).
        chooses: Whether the actions are Discrete: one whole number, that of a choice.
        contract: What the numbers mean, if the environment says it.
    """

    uid: str
    observation_dim: int
    low: Float32Array
    high: Float32Array
    chooses: bool = False
    contract: TaskContract | None = None

    @property
    def action_dim(self) -> int:
        """Number of action components A."""
        return self.low.shape[0]


PolicyClass = TypeVar("PolicyClass", bound=Callable[[EgoSeat], EgoPolicy])
_BUILT_IN: dict[str, Callable[[EgoSeat], EgoPolicy]] = {}
_plug_ins: Final = PlugIns("cadenza.policies", ("cadenza.benchmark.scripted_egos",))


def ego_seat(env: Any, uid: str) -> EgoSeat:
    """Return the seat ``uid`` of ``env``, an environment or a batch of equal ones.

    Raises:
        InputError: The seat's state space is not a Box of rank 1, or its action space neither that
            nor Discrete.
    """
    single = "single_" if hasattr(env, "single_observation_space") else ""
    state_space = getattr(env, f"{single}observation_space")["agent"][uid]["state"]
    action_space: Any = getattr(env, f"{single}action_space")[uid]
    choice = action_space
    chooses = isinstance(action_space, spaces.Discrete)
    if chooses:
        first, last = choice.start, choice.start + choice.n - 1
        action_space = spaces.Box(float(first), float(last), (1,), np.float32)
    for name, space in (("state", state_space), ("action", action_space)):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise InputError(
                f"seat {uid!r}: expected the {name} space to be a gym.spaces.Box of rank 1, got "
                f"{space}."
            )
    return EgoSeat(
        uid=uid,
        observation_dim=state_space.shape[0],
        low=np.asarray(action_space.low, dtype=np.float32),
        high=np.asarray(action_space.high, dtype=np.float32),
        chooses=chooses,
        contract=contract_at(env, uid),
    )


def register_policy(name: str) -> Callable[[PolicyClass], PolicyClass]:
    """Return a decorator that makes a policy class available under ``name``.

    Raises:
        InputError: The name is taken.
    """
    if name in _BUILT_IN:
        raise InputError(f"register_policy: expected a new name, got {name!r}, which is taken.")

    def record(cls: PolicyClass) -> PolicyClass:
        _BUILT_IN[name] = cls
        return cls

    return record


def policy_weights_sha256(
    source: str, *, artifacts_root: Path, task: str | None = None
) -> str | None:
    """Return the digest of the file behind ``source``; None for a built-in policy.

    It is the content id of a policy file, else the SHA-256 of the bytes. Files that name another
    ``task`` are refused; those that name none are taken.
    """
    if not source.startswith(LOCAL_URI_SCHEME):
        _find(source)
        return None
    path = _played(resolve_uri(source, artifacts_root=artifacts_root))
    if is_safetensors(path):
        network = load_policy_file(path)
        trained, digest = _trained_on(network, task), network.content_id
    elif is_foreign(path):
        return sha256_file(path)
    else:
        metadata = read_metadata(uri=source, artifacts_root=artifacts_root)
        trained, digest = metadata.extra.get("task", task), metadata.sha256
    if task is not None and trained != task:
        raise CheckpointError(
            f"{source}: expected a policy of the task {task!r}, got one trained on {trained!r}; "
            "name a checkpoint of this task."
        )
    return digest


def _trained_on(network: PortableNetwork, task: str | None) -> str | None:
    """Return the task in a policy file, ``task`` if it names none; Gymnasium's id stands for it."""
    named = str(network.task.get("id", task))
    spec = gymnasium.registry.get(named)
    return named if spec is None else spec.kwargs.get("task", named)


def load_policy(
    source: str, *, seat: EgoSeat, artifacts_root: Path, weights_sha256: str | None = None
) -> EgoPolicy:
    """Return the policy that ``source`` names, for ``seat``.

    Args:
        source: Built-in name, or ``local://`` address of a file.
        seat: Where it will play.
        artifacts_root: Folder that addresses are relative to.
        weights_sha256: Digest the file must have; None takes any that matches its checksum.

    Raises:
        CheckpointError: Missing, damaged, not the expected one, or made for another seat.
        MissingExtraError: It is an ONNX graph and the extra ``onnx`` is not installed.
        UnknownNameError: ``source`` is neither an address nor a built-in name.
    """
    if not source.startswith(LOCAL_URI_SCHEME):
        return _find(source)(seat)
    policy, digest = read_policy(resolve_uri(source, artifacts_root=artifacts_root), seat=seat.uid)
    if weights_sha256 not in (None, digest):
        raise CheckpointError(
            f"{source}: expected the weights {weights_sha256[:16]}... that were planned, got "
            f"{digest[:16]}...; restore the checkpoint or plan a new evaluation."
        )
    return NetworkPolicy(policy, seat, source=source)


def read_policy(path: Path, *, seat: str = "ego") -> tuple[PortableNetwork | OnnxGraph, str]:
    """Return the policy in a file and its digest, whatever wrote it.

    ``seat`` is whose policy of a team's file it is.

    Raises:
        CheckpointError: The file is missing or damaged, or holds no policy.
        MissingExtraError: It is an ONNX graph and the extra ``onnx`` is not installed.
    """
    path = _played(path, seat)
    if is_safetensors(path):
        network = load_policy_file(path)
        return network, network.content_id
    if path.suffix == ONNX_SUFFIX:
        data = read_bytes("policy", path)
        return OnnxGraph(data, owner="policy", source=str(path)), sha256_bytes(data)
    payload, metadata, digest = load_weights_file(
        uri=LOCAL_URI_SCHEME + path.name, artifacts_root=path.parent
    )
    if POLICY_KEY in payload:
        return PortableNetwork.from_state_dict(payload[POLICY_KEY]), digest
    if {"header", "state"} <= payload.keys():
        kind = payload["header"]["algorithm"]
        raise CheckpointError(
            f"{path}: expected a policy, got an agent of {kind} without a policy file; write "
            f"cadenza.{kind}.load({path.name!r}, ...).export_policy({path.name!r}), or "
            "export_onnx where its network is your own, and name that file."
        )
    actor = actor_from_checkpoint(payload, source=str(path), is_foreign=metadata is None)
    return actor.network(), digest


def trained_with(path: Path, *, seat: str = "ego") -> tuple[str, ...] | None:
    """Return the partners that an ego trained beside, each as `PartnerSpec.known_as`.

    It is none for an ego that trained beside copies of itself alone, and None where its file, a
    policy file or a checkpoint with one beside it, does not say.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    path = _played(path, seat)
    told = load_policy_file(path).facts.get(TRAINED_WITH) if is_safetensors(path) else None
    return None if told is None else tuple(map(str, told))


def _played(path: Path, seat: str = "ego") -> Path:
    """Return the policy file beside a checkpoint whose sidecar names one, else ``path`` itself."""
    if is_safetensors(path) or not sidecar_path(path).is_file():
        return path
    told: Any = stated_metadata(path).extra.get(POLICY_FACT)
    if told is None:
        return path
    known = cast("dict[str, str]", told if isinstance(told, dict) else {"": told})
    name = seat if seat in known else ""
    found = load_policy_file(policy_path(path, name)).content_id
    if found != known.get(name):
        raise CheckpointError(
            f"{path}: expected beside it the policy {known.get(name)}, got {found}; bring the "
            "policy file along that was written with it."
        )
    return policy_path(path, name)


def saved_policies(path: Path) -> list[Path]:
    """Return the files of the policies in ``path``: itself, or those of a folder.

    Of a folder, the newest checkpoint of each training in it; else the best or last agent that was
    saved there; else its policy files, or those in its folder ``policies``.

    Raises:
        CheckpointError: There is nothing, or no policy in the folder.
    """
    if path.is_file():
        return [path]
    root = path.parent if path.name == _RUNS_FOLDER else path
    cards = sorted((root / _RUNS_FOLDER).glob(f"*{_RUN_SUFFIX}"))
    runs = [card.name.removesuffix(_RUN_SUFFIX) for card in cards]
    kept = [k for k in (list_checkpoints(run, artifacts_root=root) for run in runs) if k]
    if kept:
        return [resolve_uri(uris[max(uris)], artifacts_root=root) for uris in kept]
    agents = [path / name for name in ("best", "last") if (path / name).is_file()]
    files = [f for at in (path, path / "policies") for f in sorted(at.glob(f"*{SUFFIX}"))]
    if not (agents or files):
        got, do = "a folder without one" if path.is_dir() else "nothing", ""
        cards += path.glob(f"{_SEEDS}/*{_RUN_SUFFIX}")
        if any(_read_card(card)["status"] != "finished" for card in cards):
            got = "one whose training has not ended"
            do = "go on with the same `cadenza train` command and --resume"
        expected = "a policy, an agent, or a folder of a training with some"
        refuse(CheckpointError, str(path), expected=expected, got=got, do=do)
    return agents[:1] or files


def training_filter(path: Path) -> SafetyConfig:
    """Return the filter that the policy in ``path`` trained behind, by its file.

    Of a file that does not say it, by the card of its run; turned off where none is beside the
    file, or beside the policies of several seeds.

    Raises:
        CheckpointError: The policy file is missing or damaged.
        IntegrityError: The card is damaged.
    """
    file = _played(path)
    run = None
    if is_safetensors(file):
        facts = load_policy_file(file).facts
        if TRAINED_BEHIND in facts:
            return SafetyConfig.model_validate(facts[TRAINED_BEHIND])
        run = facts.get("run_id")
    elif sidecar_path(file).is_file():
        run = stated_metadata(file).run_id
    for folder in (path.parent, *path.parent.parent.glob(_SEEDS)):
        card = folder / f"{run}{_RUN_SUFFIX}"
        if card.is_file():
            return SafetyConfig.model_validate(_read_card(card)["config"]["safety"])
    return SafetyConfig()


def _read_card(path: Path) -> dict[str, Any]:
    return parse_json_object(path.read_bytes(), source=str(path))


def actor_from_checkpoint(
    payload: Mapping[str, Any], *, source: str, is_foreign: bool = False
) -> GaussianActor:
    """Return the actor inside a training checkpoint, or of a file that HARL itself wrote."""
    state = payload.get("actor", payload if is_foreign else None)
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"{source}: expected a training checkpoint with an 'actor', got the keys "
            f"{sorted(payload)}; name a checkpoint that training wrote."
        )
    bound = payload.get(STANDARD_DEVIATION_KEY, MAX_STANDARD_DEVIATION)
    if not isinstance(bound, float):
        raise CheckpointError(
            f"{source}: expected {STANDARD_DEVIATION_KEY!r} to be a number, got {bound!r}."
        )
    return GaussianActor.from_state_dict(
        cast("Mapping[str, torch.Tensor]", state),
        max_standard_deviation=bound,
        activation=named_activation(source, payload, {}, is_foreign=is_foreign),
    )


#: States (N, D) and what is remembered of them, (N, S), to actions and what is remembered next.
_Acting: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


class NetworkPolicy:
    """Plays the policy of a file without chance: one state, or rows of them.

    Attributes:
        memory: What it remembers of each row's episode, (N, S); S is 0 without a memory.
    """

    def __init__(
        self, policy: PortableNetwork | OnnxGraph, seat: EgoSeat, *, source: str = "policy"
    ) -> None:
        wanted = int(seat.high[0] - seat.low[0]) + 1
        if seat.contract is not None:
            seat.contract.require_match(source, policy.contract)
        if isinstance(policy, OnnxGraph):
            sizes, choices, first = policy.sizes, wanted, float(seat.low[0])
            graph = partial(in_blocks, policy.actions)
            self._act: _Acting = lambda states, memory: (graph(states), memory)
        else:
            table, self._act = policy.output.choices, policy.step
            choices, sizes = policy.num_choices, (policy.observation_dim, policy.action_dim)
            first = None if table is None else float(table.min())
        if sizes != (seat.observation_dim, seat.action_dim):
            raise CheckpointError(
                f"{source}: expected a policy for {seat.observation_dim} observations and "
                f"{seat.action_dim} actions (seat {seat.uid!r}), got one for {sizes[0]} and "
                f"{sizes[1]}; it was trained on another task or number of robots."
            )
        if seat.chooses and (choices, first) != (wanted, seat.low[0]):
            raise CheckpointError(
                f"{source}: expected a policy of {wanted} choices from {seat.low[0]:g} (seat "
                f"{seat.uid!r}), got one of {choices or 'continuous actions'}"
                f"{'' if first is None else f' from {first:g}'}; it was trained on another task."
            )
        self._uid = seat.uid
        width = 0 if isinstance(policy, OnnxGraph) else policy.state_width
        self.memory: Float32Array = np.zeros((0, width), dtype=np.float32)

    def reset(self, *, seed: int) -> None:
        """Forget all episodes."""
        del seed
        self.memory = self.memory[:0]

    def reset_row(self, row: int, *, seed: int) -> None:
        """Forget the episode in one lane."""
        del seed
        self.memory[row : row + 1] = 0.0

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the action, float32, shape (A,), or the number of a choice, (1,)."""
        return self.act_rows(obs["agent"][self._uid]["state"][None])[0]

    def act_rows(self, states: NDArray[Any]) -> Float32Array:
        """Return actions (N, A), float32, for states (N, D).

        None depends on how many there are, nor on the others.
        """
        if len(self.memory) < len(states):
            new = (len(states) - len(self.memory), self.memory.shape[1])
            self.memory = np.concatenate((self.memory, np.zeros(new, dtype=np.float32)))
        actions, self.memory[: len(states)] = self._act(states, self.memory[: len(states)])
        return actions.reshape(len(states), -1).astype(np.float32)


@register_policy("zero")
class ZeroPolicy(MemorylessPolicy):
    """Never acts, or makes choice 0: the floor that says what the partner does alone."""

    def __init__(self, seat: EgoSeat) -> None:
        self._action = np.zeros(seat.action_dim, dtype=np.float32)

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return zeros, shape (A,)."""
        del obs
        return self._action.copy()

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return zeros, shape (N, A)."""
        return np.zeros((len(states), len(self._action)), dtype=np.float32)


@register_policy("random")
class RandomPolicy:
    """Acts uniformly within the action bounds, or chooses uniformly."""

    def __init__(self, seat: EgoSeat) -> None:
        if not is_scalable(seat.low, seat.high):
            raise InputError(
                f"random policy: expected finite action bounds, got {seat.low} and {seat.high}."
            )
        self._low, self._high, self._chooses = seat.low, seat.high, seat.chooses
        self._rng = _episode_generator(0)
        self._lanes: dict[int, np.random.Generator] = {}

    def reset(self, *, seed: int) -> None:
        """Start the episode's own random stream."""
        self._rng, self._lanes = _episode_generator(seed), {}

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start the episode's own random stream in one lane."""
        self._lanes[row] = _episode_generator(seed)

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return a uniform draw, float32, shape (A,)."""
        del obs
        return self._draw(self._rng)

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return a draw of each lane's own stream, (N, A)."""
        return np.stack([self._draw(self._lanes[row]) for row in range(len(states))])

    def _draw(self, rng: np.random.Generator) -> NDArray[Any]:
        if self._chooses:
            return np.floor(rng.uniform(self._low, self._high + 1.0)).astype(np.float32)
        return rng.uniform(self._low, self._high).astype(np.float32)


def _episode_generator(seed: int) -> np.random.Generator:
    return derive_substream("evaluation.policy.random", root_seed=seed).default_rng()


@register_policy("goal_pd")
class GoalPolicy(MemorylessPolicy):
    """Drives straight at its goal and ignores everyone: what a filter must guard.

    Reads the layout of the crossing task: own position, own velocity, goal minus position, in the
    plane, then the others; acts by accelerations.
    """

    #: Own position, own velocity and goal, two components each.
    _OWN_STATE: Final = 6

    def __init__(self, seat: EgoSeat) -> None:
        if seat.observation_dim < self._OWN_STATE or seat.action_dim != 2:
            raise InputError(
                f"goal_pd policy: expected the crossing task ({self._OWN_STATE} or more "
                f"observations, 2 actions), got {seat.observation_dim} and {seat.action_dim}."
            )
        self._uid, self._low, self._high = seat.uid, seat.low, seat.high

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return a critically damped pull towards the goal, clipped to the bounds, shape (2,)."""
        return self.act_rows(obs["agent"][self._uid]["state"])

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return the same for states (N, D), shape (N, 2)."""
        return np.clip(goal_pull(states), self._low, self._high).astype(np.float32)


def goal_pull(state: NDArray[Any]) -> NDArray[Any]:
    """Return a critically damped pull to the goal of crossing, (..., 2), m/s^2, not clipped."""
    return GOAL_STIFFNESS * state[..., 4:6] - GOAL_DAMPING * state[..., 2:4]


def policy_names() -> list[str]:
    """Return the names of the built-in policies."""
    _plug_ins.load()
    return list(_BUILT_IN)


def _find(name: str) -> Callable[[EgoSeat], EgoPolicy]:
    _plug_ins.load()
    try:
        return _BUILT_IN[name]
    except KeyError:
        raise UnknownNameError(
            f"policy {name!r}: expected {LOCAL_URI_SCHEME}... or one of {', '.join(_BUILT_IN)}."
        ) from None


def open_policy(path: Path, *, task: str) -> tuple[str, Callable[[EgoSeat], EgoPolicy]]:
    """Return the digest of the checkpoint ``path``, a policy of ``task``, and what seats it."""
    source = LOCAL_URI_SCHEME + path.name
    digest = policy_weights_sha256(source, artifacts_root=path.parent, task=task)

    def seated(seat: EgoSeat) -> EgoPolicy:
        return load_policy(source, seat=seat, artifacts_root=path.parent, weights_sha256=digest)

    return cast("str", digest), seated  # an address always has weights
