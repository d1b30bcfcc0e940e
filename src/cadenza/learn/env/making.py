"""Vector environments for learners: made from an id, a function or an environment.

Those made here come back from a checkpoint exactly (`ReplayableEnv`), reset within the step, and
show flat observations where the original is no Box.

Axes:  N = environments, O = observation.
"""

import json
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Final, TypeAlias, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import (
    AutoresetMode,
    SyncVectorEnv,
    VectorActionWrapper,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.wrappers import FlattenObservation, NormalizeObservation
from gymnasium.wrappers import vector as vector_wrappers
from numpy.typing import NDArray

from cadenza.core.arrays import MASK, legal_choices, require_legal
from cadenza.core.checks import shown, whole_number
from cadenza.core.contracts import TaskContract, contract_at, registered_for
from cadenza.core.environments import (
    CheckedEnv,
    advice_on,
    autoreset_mode,
    known_id,
    made_by_id,
    require_call,
)
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, refuse
from cadenza.learn.env.stepping import ReplayableEnv, choices_of
from cadenza.learn.nn.encoders import AnySpace, is_dict, parts_of

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]
AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
#: An id that Gymnasium knows, a function that makes an environment, or an environment.
EnvLike: TypeAlias = str | Callable[[], AnyEnv] | AnyEnv | AnyVectorEnv

#: What is said of ids that make no batches beside partners.
_SEATS: Final = "an id that takes partners, e.g. 'cadenza/Crossing-v1'"
#: What stands beside a mask that infos tell.
SEEN: Final = "observation"
#: Observations that can be made flat arrays of numbers.
_NUMBERS: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_CHOICES: Final = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_WRAPPERS: Final = (gymnasium.Wrapper, VectorWrapper)
#: Wrappers behind which numbers mean something else, and that need not change a space.
_CHANGING: Final = (
    *(gymnasium.ObservationWrapper, gymnasium.ActionWrapper),
    *(VectorObservationWrapper, VectorActionWrapper),
)
_EXPECTED: Final = (
    "expected the id of a Gymnasium environment, a function that makes one, a gymnasium.Env or a "
    "gymnasium.vector.VectorEnv"
)


#: What is said of a function that returns one environment twice.
ONE_AND_THE_SAME: Final = "expected a function that makes another environment in every call"
#: What is said of an agent from a file that tells no id.
LOADED_WITHOUT: Final = (
    "evaluate: expected env=..., because the agent was loaded without environments; write "
    "evaluate(env=...) or load(path, env)."
)


@dataclass(frozen=True, slots=True)
class SavedWorlds:
    """What a file tells of the environments: id, if any, spaces, task contracts by seat."""

    id: str
    spaces: Any
    contracts: Mapping[str, TaskContract] = field(default_factory=dict[str, TaskContract])


@dataclass(frozen=True, slots=True)
class SavedCompany:
    """What a file tells of the partners: the keywords that make the batch beside them again."""

    keywords: Mapping[str, Any]


class Environments:
    """The environments a learner trains in, and how to make one more to judge it in.

    Those of a file are made when they are first needed, if they have an id. Those in a ready
    SyncVectorEnv are replaced in it by checked ones (`CheckedEnv`), once however many learners use
    it.

    With ``partners`` they are made as one batch, whose maker takes them and how they are drawn
    (``sampler``): ``gymnasium.make_vec(id, partners=..., sampler=...)``. So are those of an id that
    makes batches where something is asked of a ``partner``, with whom they have, or where a
    ``seat`` is to be open: its keywords.

    Attributes:
        id: Gymnasium's id of each, if it was made by id.
        contracts: The task contract of each under "", if there is one.
        space: What each shows.
        layout: That, and beside it the mask of legal actions if ``masked`` and only infos have it.
        features: What is learned from: ``space`` without a mask.
        masks: M, its size; 0 without.
        partner_spaces: What a partner observes and does, which infos tell; None if nobody asks.
        companions: How those are known who play beside the ego; None if nobody says.

    Raises:
        ConfigurationError: ``source`` is something else, or ready while ``count`` is given; it has
            other sizes than its task contract says; there can be no masks; or nothing is told of a
            partner.
    """

    def __init__(
        self,
        source: EnvLike | SavedWorlds,
        *,
        count: int | None,
        default: int,
        seed: int,
        group_size: int = 1,
        masked: bool = False,
        partner: bool = False,
        partners: Any = None,
        sampler: Any = None,
        seat: Mapping[str, Any] | None = None,
    ) -> None:
        self._masked, self._asks, self._seat = masked, partner, seat
        self.partner_spaces: tuple[AnySpace, AnySpace] | None = None
        self.companions: Sequence[str] | None = None
        self._partners, self._sampler = partners, sampler
        self._count, self._seed, self._group_size = count or default, seed, group_size
        self._vector: AnyVectorEnv | None = None
        saved = source if isinstance(source, SavedWorlds) else None
        self._source: EnvLike | None = (saved.id or None) if saved else cast("EnvLike", source)
        self._own = [unwrapped(env) for env in getattr(source, "envs", [source])]
        if len({id(env) for env in self._own}) < len(self._own):
            raise ConfigurationError(
                f"env: {ONE_AND_THE_SAME}, got {source} with one of them twice."
            )
        if (partners, sampler) != (None, None):
            self._require_id(partners)
        self._make = None if self._source is None else self._judging_maker(self._source)
        self.can_make: bool = self._make is not None
        self.id: str | None = self._source if isinstance(self._source, str) else None
        self.contracts: Mapping[str, TaskContract] = saved.contracts if saved else {}
        if saved is not None:
            self._describe(*map(space_from, saved.spaces))
            self.num_envs: int = self._count
            return
        is_ready = isinstance(source, gymnasium.Env | VectorEnv)
        if is_ready and count is not None:
            raise ConfigurationError(
                f"num_envs: expected None beside a ready environment, got {count}; pass an id or a "
                "function that makes one."
            )
        self._vector = self._opened()
        self.num_envs = whole_number("env: num_envs", self._vector.num_envs, least=1)

    @property
    def vector(self) -> AnyVectorEnv:
        """Them all.

        Raises:
            InputError: They are of a file, and have no id to make them by.
            CheckpointError: Made by their id, they have other spaces than the file says.
        """
        if self._vector is None:
            learned, told = (self.space, self.action_space), self.spaces
            vector = self._opened()
            if (self.space, self.action_space) != learned:
                raise CheckpointError(
                    f"{self.id}: expected an environment with {told}, got one with {self.spaces}."
                )
            self._vector = vector
        return self._vector

    @property
    def is_made(self) -> bool:
        """Whether there are any yet."""
        return self._vector is not None

    def _opened(self) -> AnyVectorEnv:
        source = self._source
        if source is None:
            raise InputError(
                "learn: expected environments, but the agent was loaded without; write "
                "load(path, env) with an environment, or a function that makes one."
            )
        makes_batches = getattr(gymnasium.registry.get(str(source)), "vector_entry_point", None)
        if self._partners is not None:
            source = made_batch(str(source), self._count, self._company)
        elif self._seat is not None and isinstance(source, str):
            open_seat = "a task that can leave the partner's seat open"
            source = made_batch(source, self._count, self._seat, expected=open_seat)
        elif self._asks and isinstance(source, str) and makes_batches:
            source = made_batch(source, self._count, {})  # where infos tell of partners
        if isinstance(source, VectorEnv):
            batch = cast("Any", source)
            self._describe(batch.single_observation_space, batch.single_action_space)
            if self.layout is not self.space:
                raise ConfigurationError(
                    f"env: expected a vector environment that shows '{MASK}' as a part of its "
                    f"observations, got {self.space}; or pass what makes one environment."
                )
            inner: Any = batch.unwrapped
            if isinstance(inner, SyncVectorEnv):  # which takes every text for True or a number
                inner.envs = [
                    one if isinstance(one, CheckedEnv) else CheckedEnv(one) for one in inner.envs
                ]
            self._learn_contract(batch)
            self._learn_partner(batch)
            is_flat = isinstance(self.space, spaces.Box)
            mode = autoreset_mode(batch, ConfigurationError)
            if not is_flat and mode is AutoresetMode.SAME_STEP:
                raise ConfigurationError(
                    "env: expected a vector environment that resets within the step to show arrays "
                    f"or images, got {self.space}; use autoreset_mode=NEXT_STEP, or pass a "
                    "function that makes one environment."
                )
            return batch if is_flat else vector_wrappers.FlattenObservation(batch)
        is_ready = isinstance(source, gymnasium.Env)
        first = CheckedEnv(cast("AnyEnv", source)) if is_ready else self._another()
        self._describe(first.observation_space, first.action_space)
        self._learn_contract(first)
        self._learn_partner(first)
        if any(isinstance(layer, NormalizeObservation) for layer in _layers(first)):
            warnings.warn(
                "env: NormalizeObservation has moments of its own in every environment, which "
                "evaluations and files do not get; use normalize_observations=True instead.",
                UserWarning,
                stacklevel=2,
            )
        if not is_ready:
            first.close()
        size = self._group_size
        made = [
            lambda index=index: ReplayableEnv(
                flat(self.told(first if is_ready else self._another())),
                root_seed=self._seed,
                index=index,
                group=index // size if size > 1 else None,
            )
            for index in range(1 if is_ready else self._count)
        ]
        return SyncVectorEnv(made, autoreset_mode=AutoresetMode.SAME_STEP)

    def _describe(self, space: AnySpace, action_space: AnySpace, *partner: AnySpace) -> None:
        """Note what is observed and done."""
        if partner:
            self.partner_spaces = partner[0], partner[1]
        require_numbers(space)
        self.space: AnySpace = space
        self.layout: AnySpace = space
        self.features: AnySpace = space
        self.action_space: AnySpace = action_space
        self.masks: int = 0
        if not self._masked:
            return
        counts, told = choices_of(action_space), cast("Any", space)
        self.masks, self._choices = sum(counts), counts
        if not counts:
            raise ConfigurationError(
                f"action_masks: expected choices, got actions of {action_space}; switch it off."
            )
        if not (is_dict(space) and MASK in told.spaces):
            self.layout = spaces.Dict({MASK: spaces.MultiBinary(self.masks), SEEN: told})
            return
        rest = {name: part for name, part in told.spaces.items() if name != MASK}
        self.features = spaces.Dict(rest)
        require_numbers(self.features)
        mask = told[MASK]
        is_array = isinstance(mask, spaces.Box | spaces.MultiBinary)
        if not is_array or spaces.flatdim(mask) != self.masks:
            raise ConfigurationError(
                f"action_masks: expected observation['{MASK}'] to be an array of {self.masks} "
                f"numbers, one for each action, got {mask}."
            )

    def told(self, env: AnyEnv) -> AnyEnv:
        """Return ``env`` with observations of `layout`."""
        return env if self.layout is self.space else MaskInObservation(env, self.layout)

    def rows(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return flat observations of `layout`, (N, ...), as rows; the mask comes last."""
        rows = observations.reshape(len(observations), -1)
        return rows[:, self.order] if self.masks else rows

    @property
    def order(self) -> NDArray[np.intp]:
        """Columns of flat observations in the order of `rows`."""
        parts = parts_of(self.layout)
        names = np.repeat([name == MASK for name in parts], [*map(spaces.flatdim, parts.values())])
        return np.argsort(names, kind="stable")

    def require_legal(self, rows: NDArray[Any], owner: str) -> None:
        """Refuse `rows` whose mask is no mask, or leaves no legal action.

        Raises:
            InputError: There is one.
        """
        legal = legal_choices(owner, rows[:, -self.masks :], len(rows), self.masks)
        require_legal(owner, legal, self._choices)

    def _learn_contract(self, env: Any) -> None:
        """Note the task contract of ``env``, which is that of a file, if both have one."""
        found = contract_of(env)
        self.contracts = agreed({} if found is None else {"": found}, self.contracts, "agent")
        self.companions = _found_in(env, "companions")

    def _learn_partner(self, env: Any) -> None:
        """Note what ``env`` says a partner observes and does, if that is asked for."""
        if not self._asks:
            return
        seen, done = (_found_in(env, f"partner_{what}_space") for what in ("observation", "action"))
        is_known = isinstance(seen, spaces.Box) and isinstance(done, (*_CHOICES, spaces.Box))
        if not is_known:
            expected = (
                "environments that tell of a partner: partner_observation_space, a Box, and "
                "partner_action_space, a Box or choices"
            )
            refuse(ConfigurationError, "env", expected=expected, got=f"{seen} and {done} of {env}")
        if self.partner_spaces not in (None, (seen, done)):
            expected, got = f"partners of {self.partner_spaces}", f"of {seen} and {done}"
            refuse(CheckpointError, "env", expected=expected, got=got)
        self.partner_spaces = seen, done

    def _require_id(self, partners: Any) -> None:
        """Refuse partners where nothing can take them, and a sampler without any."""
        if partners is None or not isinstance(self._source, str):
            expected = "partners beside a sampler" if partners is None else "the id of a task"
            got = "a sampler alone" if partners is None else "something else"
            do = "make the batch yourself: gymnasium.make_vec(id, num_envs=..., partners=...)"
            refuse(ConfigurationError, "partners", expected=expected, got=got, do=do)

    def _judging_maker(self, source: EnvLike) -> Callable[[], AnyEnv] | None:
        """Return what makes one environment; None if ``source`` cannot be made again."""
        if self._partners is None:
            return _maker(source)
        company = {name: each for name, each in self._company.items() if name != "sampler"}
        return lambda: made_by_id(str(source), **company)  # judged beside all of them alike

    @property
    def _company(self) -> dict[str, Any]:
        """What makes the batch beside its partners."""
        if isinstance(self._partners, SavedCompany):
            sampler = {} if self._sampler is None else {"sampler": self._sampler}
            return {**self._partners.keywords, **sampler}
        return {"partners": self._partners, "sampler": self._sampler}

    @property
    def company(self) -> str:
        """The same as a file holds it, JSON, members by address and digest; "" without partners."""
        if self._partners is None:
            return ""
        batch: Any = None if self._vector is None else self._vector.unwrapped
        return json.dumps(self._company if batch is None else batch.made_with)

    def saved(self) -> Any:
        """Return their spaces as a file holds them; see `SavedWorlds`."""
        told = (self.space, self.action_space, *(self.partner_spaces or ()))
        return [space_state(space) for space in told]

    @property
    def spaces(self) -> str:
        """What is observed and done, in words."""
        return f"observations of {self.space} and actions of {self.action_space}"

    @property
    def task(self) -> str:
        """The id in quotes, or in angle brackets the environment, or its spaces without one."""
        if self.id is not None:
            return repr(self.id)
        return f"<{self.spaces}>" if self._vector is None else str(self._own[-1])

    def make(self, env: EnvLike | None = None) -> AnyEnv:
        """Return an environment to judge in, its observations as they are.

        Raises:
            CheckpointError: It has another task contract.
            InputError: It is the learner's own or None, and that came ready made.
        """
        made = self._made(env)
        if env is not None and self.contracts and (found := contract_of(made)) is not None:
            found.require_match("evaluate", self.contracts[""])
        return made

    def _made(self, env: EnvLike | None) -> AnyEnv:
        given: Any = env
        if isinstance(env, gymnasium.Env) and not self._is_own(given):
            return given
        make = self._make if env is None else _maker(given)
        if make is None:
            if env is None and self._source is None:
                raise InputError(LOADED_WITHOUT)
            raise InputError(
                "evaluate: expected env=..., because the agent's own environment is in use; pass "
                "one, or make the agent from an id or a function."
            )
        made = make()
        if not isinstance(cast("object", made), gymnasium.Env):
            raise ConfigurationError(
                f"env: {_EXPECTED}, got one that makes {_told(made)}{advice_on(made)}."
            )
        if self._is_own(made):
            raise InputError(
                f"env: {ONE_AND_THE_SAME}, got one that returns {made} again, which the agent "
                "learns in; make a new one in each call."
            )
        return made

    def several(self, env: EnvLike | None, count: int | None) -> list[AnyEnv]:
        """Return ``count`` environments to judge in, or one.

        Raises:
            InputError: As `make`, or ``env`` is only one.
        """
        count = 1 if count is None else whole_number("evaluate.num_envs", count, least=1)
        made = [self.make(env) for _ in range(count)]
        if len({id(unwrapped(each)) for each in made}) < count:
            raise InputError(f"evaluate: with num_envs, {ONE_AND_THE_SAME}, got {made[0]} twice.")
        return made

    def batch(self, env: AnyVectorEnv, count: int | None) -> AnyVectorEnv:
        """Return a vector environment to judge in, checked like one to learn in.

        Raises:
            InputError: The learner learns in it, or it has other observations or another number of
                environments than ``count``.
        """
        inner: Any = env.unwrapped
        if any(self._is_own(each) for each in (inner, *getattr(inner, "envs", ()))):
            raise InputError(
                f"evaluate: expected another vector environment, got {env}, which the agent learns "
                "in; make a new one."
            )
        found = Environments(env, count=None, default=1, seed=0)
        widths = [spaces.flatdim(space) for space in (self.layout, found.space)]
        if widths[0] != widths[1] or found.num_envs != (count or found.num_envs):
            raise InputError(
                f"evaluate: expected {count or 'any number of'} environments with observations of "
                f"{self.layout}, got {found.num_envs} of {found.space}; pass others."
            )
        return found.vector

    def method(self, name: str) -> Callable[..., Any] | None:
        """Return the method of the first of them, or of their outermost wrapper that has it."""
        return _found_in(self.vector, name)

    def _another(self) -> AnyEnv:
        """Return a new environment to learn in."""
        made = self.make()
        self._own.append(unwrapped(made))
        return CheckedEnv(made)

    def _is_own(self, env: AnyEnv) -> bool:
        return any(unwrapped(env) is own for own in self._own)


class MaskInObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose ``info["action_mask"]``, (M,), stands beside its observation."""

    def __init__(self, env: AnyEnv, layout: AnySpace) -> None:
        super().__init__(env)
        self.observation_space = layout

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset it."""
        given = {} if options is None else {"options": options}
        observation, info = self.env.reset(seed=seed, **given)
        return self._seen(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step it."""
        observation, reward, ended, cut, info = self.env.step(action)
        return self._seen(observation, info), reward, ended, cut, info

    def _seen(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        size, mask = spaces.flatdim(cast("Any", self.observation_space)[MASK]), info.get(MASK)
        if mask is None or np.size(mask) != size:
            raise InputError(
                f"env: expected info['{MASK}'] from reset and step with a number for each of "
                f"{size} actions, got {'none' if mask is None else np.size(mask)}; give it, or "
                "switch action_masks off."
            )
        (legal,) = legal_choices(f"env: info['{MASK}']", mask, 1, size)
        return {MASK: legal.astype(np.int8), SEEN: observation}


def unwrapped(env: Any) -> Any:
    """Return ``env`` without its wrappers."""
    return getattr(env, "unwrapped", env)


def contract_of(env: Any) -> TaskContract | None:
    """Return the task contract of what ``env``, one or a vector, shows and takes.

    It is the one that it carries, or that is registered for its id. A wrapper that changes
    observations or actions has none unless it carries one itself.

    Raises:
        ConfigurationError: The contract tells other sizes.
    """
    seen, done = _spaces_of(env)
    for layer in _layers(env):
        if _spaces_of(layer) != (seen, done):
            return None
        found = contract_at(layer)
        if found is None and not isinstance(layer, _WRAPPERS):
            found = registered_for(getattr(getattr(layer, "spec", None), "id", ""))
        if found is not None:
            sizes, told = (_size(seen), _size(done)), (found.obs_dim, found.action_dim)
            if sizes != told:
                raise ConfigurationError(
                    f"{env}: expected a task contract of {sizes[0]} observed and {sizes[1]} acting "
                    f"numbers, got {found.title} of {told[0]} and {told[1]}; correct it."
                )
            return found
        if isinstance(layer, _CHANGING):
            return None
    return None


def _layers(env: Any) -> Iterator[Any]:
    """Yield ``env`` and what it wraps, outermost first; of a vector the first one comes last."""
    layer: Any = env
    while layer is not None:
        yield layer
        if isinstance(layer, SyncVectorEnv):
            layer = layer.envs[0]
        else:
            layer = cast("Any", layer).env if isinstance(layer, _WRAPPERS) else None


def _found_in(env: Any, name: str) -> Any:
    """Return the attribute of the outermost layer of ``env`` that has it; None without one."""
    found = (getattr(layer, name, None) for layer in _layers(env))
    return next((each for each in found if each is not None), None)


def _spaces_of(env: Any) -> tuple[Any, Any]:
    if hasattr(env, "single_observation_space"):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _size(space: Any) -> int:
    """Return how many numbers an element of ``space`` is, a choice one and a mask none."""
    if space.shape is None:
        return sum(_size(part) for name, part in parts_of(space).items() if name != MASK)
    return math.prod(space.shape)


def agreed(
    found: Mapping[str, TaskContract], saved: Mapping[str, TaskContract], source: str
) -> Mapping[str, TaskContract]:
    """Return contracts by seat; those ``found`` at environments are those ``saved``, if both are.

    Raises:
        CheckpointError: The numbers of a seat mean something else.
    """
    for seat, contract in found.items():
        contract.require_match(source, saved.get(seat))
    return {**saved, **found}


def space_state(space: AnySpace) -> Any:
    """Return what `space_from` makes an equal space of: tensors and plain values."""
    told: Any = space
    kinds: Any = (*_NUMBERS, spaces.Dict, spaces.Tuple)
    kind = next(kind for kind in kinds if isinstance(told, kind))
    if kind is spaces.Box:
        arguments: list[Any] = [torch.tensor(told.low), torch.tensor(told.high), str(told.dtype)]
    elif kind is spaces.Discrete:
        arguments = [int(told.n), int(told.start)]
    elif kind is spaces.MultiDiscrete:
        arguments = [torch.tensor(told.nvec), torch.tensor(told.start), str(told.dtype)]
    elif kind is spaces.MultiBinary:
        arguments = [list(told.shape)]
    else:
        arguments = [[name, space_state(part)] for name, part in parts_of(space).items()]
    return [kind.__name__, *arguments]


def space_from(state: Any) -> AnySpace:
    """Return the space that `space_state` was given."""
    kind, *arguments = state
    match kind:
        case "Box":
            low, high, dtype = arguments
            return spaces.Box(low.numpy(), high.numpy(), dtype=np.dtype(dtype).type)
        case "Discrete":
            return spaces.Discrete(arguments[0], start=arguments[1])
        case "MultiDiscrete":
            counts, start, dtype = arguments
            return spaces.MultiDiscrete(counts.numpy(), np.dtype(dtype).type, start=start.numpy())
        case "MultiBinary":
            return spaces.MultiBinary(arguments[0] if len(arguments[0]) > 1 else arguments[0][0])
        case _:
            parts = OrderedDict((name, space_from(part)) for name, part in arguments)
            return spaces.Dict(parts) if kind == "Dict" else spaces.Tuple(tuple(parts.values()))


def flat(env: AnyEnv) -> AnyEnv:
    """Return ``env`` with observations that are one array each."""
    is_box = isinstance(env.observation_space, spaces.Box)
    return env if is_box else FlattenObservation(env)


def has_numbers(space: AnySpace) -> bool:
    """Return whether observations are arrays of numbers, or dicts and tuples of such."""
    try:
        require_numbers(space)
    except ConfigurationError:
        return False
    return True


def require_numbers(space: AnySpace) -> None:
    """Refuse observations that are no arrays of numbers, or dicts and tuples of such.

    Raises:
        ConfigurationError: ``space`` is of another kind, e.g. text, or has such a part.
    """
    kind = type(space)
    if issubclass(kind, spaces.Dict | spaces.Tuple) and parts_of(space):
        for part in parts_of(space).values():
            require_numbers(part)
    elif not issubclass(kind, _NUMBERS) or not spaces.flatdim(space):
        raise ConfigurationError(
            "env: expected observations of Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or "
            f"Tuple of such, none empty, got {shown(space)}; turn them into numbers by "
            "gymnasium.wrappers.TransformObservation."
        )


def flat_rows(observations: Any, space: AnySpace) -> NDArray[Any]:
    """Return observations, one or N side by side, as rows, (N, O), as memories hold them."""
    if space.shape is None:  # made of others
        parts = [flat_rows(observations[name], part) for name, part in parts_of(space).items()]
        return np.concatenate(parts, axis=1)
    values = np.asarray(observations)
    if not isinstance(space, spaces.Box):
        values = values.reshape(-1, *(space.shape or ()))
        rows: list[Any] = [spaces.flatten(space, value) for value in values]
        return np.stack(rows)
    return values.reshape(-1, spaces.flatdim(space))


def _told(value: Any) -> str:
    """Return a value for a message; by its name where its repr would be an address."""
    kind = cast("type[Any]", type(value))
    if kind.__repr__ is not object.__repr__:
        return shown(value)
    return kind.__name__ if kind.__str__ is object.__str__ else str(value)


def made_batch(
    name: str, count: int, company: Mapping[str, Any], *, expected: str = _SEATS
) -> AnyVectorEnv:
    """Return a batch of ``count`` environments whose id takes the keywords ``company``.

    Raises:
        ConfigurationError: It does not, or cannot be made; ``expected`` says what can.
    """
    known, keywords = known_id(name)
    spec, got = gymnasium.registry.get(known), repr(name)
    if spec is not None and (foreign := _foreign(spec.vector_entry_point, company)):
        refuse(ConfigurationError, "env", expected=expected, got=f"{got}, which takes no {foreign}")
    try:
        return gymnasium.make_vec(known, num_envs=count, **keywords, **company)
    except (gymnasium.error.Error, TypeError) as error:  # that of an option of another kind
        refuse(ConfigurationError, "env", expected=expected, got=f"{got}: {error}")


def _foreign(entry: Any, names: Iterable[str]) -> str | None:
    """Return the first of the keywords that a maker of batches, if there is one, does not take."""
    make = load_env_creator(entry) if isinstance(entry, str) else entry
    known = () if make is None else signature(make).parameters.values()
    is_open = any(each.kind is each.VAR_KEYWORD for each in known)
    taken = {each.name for each in known}
    return None if is_open else next((name for name in names if name not in taken), None)


def _maker(source: EnvLike) -> Callable[[], AnyEnv] | None:
    """Return what makes one environment; None if ``source`` is one that cannot be made again."""
    if isinstance(source, str):
        return lambda: made_by_id(source)
    if isinstance(source, VectorEnv):  # its spec does not tell how it was wrapped
        return None
    if isinstance(source, gymnasium.Env):
        spec = source.spec
        if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
            return None
        return lambda: gymnasium.make(spec)
    if not callable(source):
        raise ConfigurationError(f"env: {_EXPECTED}, got {_told(source)}{advice_on(source)}.")
    require_call(source, "a function without arguments that makes one", "write lambda: make(...)")
    return source
