"""What a partner is: the Protocol, the shielded base class, its card, and how it reads its state.

A partner is a black box that the ego is judged against, so nothing may train it: `PartnerBase`
refuses the names of `_FORBIDDEN_ATTRS` on lookup, on assignment and in subclasses.

States come as numpy arrays or torch tensors, for one environment, shape (D,), or for N of them,
shape (N, D). The rank is kept: a batch of one, (1, D), is answered by a batch of one action.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NoReturn,
    Protocol,
    cast,
    runtime_checkable,
)

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.contracts import TaskContract
from cadenza.core.errors import InputError
from cadenza.core.seeding import Substream, derive_substream
from cadenza.partners.spec import PartnerSpec

#: Names under which machine-learning code changes parameters.
_FORBIDDEN_ATTRS: Final = frozenset(
    {
        "train",
        "learn",
        "update",
        "update_params",
        "fit",
        "set_weights",
        "load_state_dict",
        "named_parameters",
    }
)


@runtime_checkable
class FrozenPartner(Protocol):
    """A team-mate that acts and never learns; stateless across episodes."""

    @property
    def spec(self) -> PartnerSpec:
        """Identity the partner was built from."""
        ...

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the last episode.

        Args:
            seed: Episode seed; equal seeds and observations give equal actions.
        """
        ...

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> NDArray[Any]:
        """Return the partner's action.

        Args:
            obs: Nested observation; only ``obs["agent"][own uid]`` and ``obs["comm"]`` are read.
            deterministic: False lets a stochastic policy sample, from its own generator.

        Returns:
            Action, float32, shape (A,), or (N, A) for batched observations.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerCard:
    """What a person choosing a partner wants to know.

    Attributes:
        summary: One line: how it behaves.
        tasks: Ids of the tasks it plays.
        leaves_way: Whether an ego that waits is left a way to its goal; False for a hunter.
        options: Option key to one-line description.
    """

    summary: str
    tasks: tuple[str, ...] = ()
    leaves_way: bool = True
    options: Mapping[str, str] = field(default_factory=dict[str, str])


class PartnerBase:
    """Base of every concrete partner: keeps the spec, blocks training, guards actions.

    Subclasses implement ``reset`` and ``act`` and read their options in ``__init__`` without input
    or output; weights are loaded on the first ``reset`` or ``act``. An ``act`` returns
    ``self.checked(action)``.

    Attributes:
        card: Description shown by listings; set it in the subclass.
        chooses: Whether the bound space is Discrete, so that an action is the number of a choice.
    """

    card: ClassVar[PartnerCard | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse subclasses that offer a forbidden name, inherited from a mixin or own."""
        super().__init_subclass__(**kwargs)
        require_no_training_surface(cls)

    def __init__(self, spec: PartnerSpec) -> None:
        self._spec = spec
        self._low: NDArray[Any] | None = None
        self._high: NDArray[Any] | None = None
        self.chooses: bool = False
        self._automatic_root, self._automatic_episodes = spec.seed, 0

    def __getattr__(self, name: str) -> NoReturn:
        """Raise for a name that normal lookup did not find; for a forbidden one cite ADR-009."""
        raise AttributeError(
            _forbidden_message(type(self).__name__, name) if name in _FORBIDDEN_ATTRS else name
        )

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; a forbidden name cannot be attached from outside either."""
        if name in _FORBIDDEN_ATTRS:
            raise AttributeError(_forbidden_message(type(self).__name__, name))
        object.__setattr__(self, name, value)

    @property
    def spec(self) -> PartnerSpec:
        """Identity the partner was built from."""
        return self._spec

    @property
    def playing_ids(self) -> str | Sequence[str]:
        """Identity of the partner that plays every row, or of each row drawn so far."""
        return self._spec.partner_id

    @property
    def stratum(self) -> str | None:
        """Kind of this episode's behaviour, for partners that have several; results record it."""
        return None

    def stratum_of(self, row: int) -> str | None:
        """Return the `stratum` of the episode in one row of a batch."""
        del row
        return self.stratum

    def bind(self, action_space: "Box[Any] | Discrete[Any]") -> None:
        """From now on check every action's shape and finiteness and clip it to ``action_space``.

        That is the Box of this partner's robot, or its Discrete, for which an action is the number
        of a choice, (1,).

        Raises:
            InputError: The Box is not of rank 1.
        """
        self.chooses = isinstance(action_space, Discrete)
        if isinstance(action_space, Discrete):
            first, last = int(action_space.start), int(action_space.start + action_space.n - 1)
            self._low, self._high = np.array([[first], [last]], dtype=np.float32)
            return
        if len(action_space.shape) != 1:
            raise InputError(
                f"{type(self).__name__}.bind: expected an action space of shape (A,), "
                f"got {action_space.shape}; pass the space of one robot in one environment."
            )
        self._low = np.asarray(action_space.low, dtype=np.float32)
        self._high = np.asarray(action_space.high, dtype=np.float32)

    def bind_contract(self, contract: TaskContract | None) -> None:
        """Play where numbers mean what ``contract`` says; None if nobody says it.

        Partners that play a file refuse one that was trained for another contract.
        """

    def checked(self, action: Float32Array) -> Float32Array:
        """Return ``action``, (A,) or (N, A), clipped to the bound space if there is one.

        Raises:
            InputError: The action is not finite, or its length differs from the bound space's.
        """
        require_finite(f"{type(self).__name__} action", action)
        if self._low is None or self._high is None:
            return action
        if action.shape[-1:] != self._low.shape:
            raise InputError(
                f"{type(self).__name__}: expected actions of length {self._low.shape[0]}, got "
                f"shape {action.shape}; check the partner's options against the environment."
            )
        return np.minimum(np.maximum(action, self._low), self._high)

    def verify_weights(self) -> str | None:
        """Return the SHA-256 of the weights in memory; None for a partner without any.

        Raises:
            IntegrityError: A weight has changed since it was loaded.
        """
        return None

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row of a batch, for environments that reset by themselves.

        After it, the row acts as a scalar partner does after ``reset(seed=seed)``. Partners whose
        action depends only on the current observation have nothing to forget.
        """

    if TYPE_CHECKING:  # what subclasses implement; a name that is missing is told by __getattr__

        def reset(self, *, seed: int | None = None) -> None:
            """See `FrozenPartner.reset`."""

        def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> NDArray[Any]:
            """See `FrozenPartner.act`."""
            ...

    def act_rows(
        self, obs: Mapping[str, Any], rows: NDArray[np.intp], *, deterministic: bool = True
    ) -> NDArray[Any]:
        """Return the actions of some rows of a batch, (n, A), for the observations of all.

        The other rows may be moved on, too: their next episode here begins with `reset_row`.
        """
        return self.act(obs, deterministic=deterministic)[rows]

    def episode_stream(self, seed: int | None) -> Substream:
        """Return the partner's own random stream for the episode of ``seed``.

        None counts on from the last seed, or before any from the partner's own spec seed, so that
        unseeded episodes differ from each other and repeat from run to run.
        """
        name = f"partner.{self._spec.partner_id}.episode"
        if seed is not None:
            self._automatic_root, self._automatic_episodes = seed, 0
            return derive_substream(name, root_seed=seed)
        self._automatic_episodes += 1
        automatic = derive_substream(f"{name}.automatic", root_seed=self._automatic_root)
        return automatic.child(self._automatic_episodes - 1)


def require_no_training_surface(cls: type) -> None:
    """Raise if instances of ``cls`` would offer a name of `_FORBIDDEN_ATTRS`.

    Raises:
        TypeError: Some class in the method resolution order defines one; cites ADR-009.
    """
    for owner in cls.__mro__:
        offered = sorted(_FORBIDDEN_ATTRS.intersection(vars(owner)))
        if offered:
            raise TypeError(_forbidden_message(cls.__name__, offered[0]))


def _forbidden_message(class_name: str, attribute: str) -> str:
    return (
        f"{class_name}.{attribute}: a partner is frozen and must not offer {attribute!r} "
        "(ADR-009); train the ego, or train a new partner elsewhere and load its weights."
    )


class RowGenerators:
    """One random generator per row of a batch, made when the row first draws.

    Row 0 of an episode draws what a single environment draws, from the episode's stream, row k > 0
    from its k-th child; a restarted row draws from the stream of its own episode.
    """

    def __init__(self, episode: Substream) -> None:
        self._episode = episode
        self._streams: dict[int, Substream] = {}
        self._generators: dict[int, np.random.Generator] = {}

    def __getitem__(self, row: int) -> np.random.Generator:
        """Return the generator of ``row``, as far as it has been drawn from."""
        if row not in self._generators:
            begun = self._episode if row == 0 else self._episode.child(row)
            self._generators[row] = self._streams.get(row, begun).default_rng()
        return self._generators[row]

    def restart(self, row: int, stream: Substream) -> None:
        """Let ``row`` draw from the beginning of ``stream``."""
        self._streams[row] = stream
        self._generators.pop(row, None)


class DrawingPartner(PartnerBase):
    """Base of partners that draw while they act, from one generator per row."""

    _opened: RowGenerators | None = None

    def reset(self, *, seed: int | None = None) -> None:
        """Open the random stream of the episode that ``seed`` selects."""
        self._opened = RowGenerators(self.episode_stream(seed))

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        self.generators.restart(row, self.episode_stream(seed))

    @property
    def generators(self) -> RowGenerators:
        """The rows' generators; acting before the first reset plays automatic episodes."""
        if self._opened is None:
            self._opened = RowGenerators(self.episode_stream(None))
        return self._opened


def read_state(obs: Mapping[str, Any], uid: str) -> NDArray[Any]:
    """Return ``obs["agent"][uid]["state"]`` as a numpy array, (D,) or (N, D).

    It is never a copy of a numpy input, so do not write to it.

    Raises:
        InputError: The entry is missing, not an array of numbers or of another rank.
    """
    state = find_state(obs, uid)
    if state is None:
        found = type(_entry(obs, "agent", uid, "state")).__name__
        raise InputError(
            f"obs['agent'][{uid!r}]['state']: expected an array of numbers of shape (D,) or "
            f"(N, D), got {found}; check the option 'uid' against the robots of the environment."
        )
    return state


def find_state(obs: Mapping[str, Any], uid: str) -> NDArray[Any] | None:
    """As `read_state`, with None instead of an error."""
    state = as_numbers(_entry(obs, "agent", uid, "state"))
    return state if state is not None and state.ndim in (1, 2) else None


def find_position(obs: Mapping[str, Any], uid: str) -> NDArray[Any] | None:
    """Return ``obs["comm"]["pose"][uid]["xyz"]`` as numbers, (>= 2,) or (N, >= 2), or None."""
    xyz = as_numbers(_entry(obs, "comm", "pose", uid, "xyz"))
    return xyz if xyz is not None and xyz.ndim in (1, 2) and xyz.shape[-1] >= 2 else None


def as_numbers(value: object) -> NDArray[Any] | None:
    """Return an array, tensor, tuple or list of real numbers as a numpy array, else None."""
    torch: Any = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        value = cast("Any", value).detach().cpu().double().numpy()
    if not isinstance(value, np.ndarray | tuple | list):
        return None
    try:
        array: NDArray[Any] = np.asarray(cast("Sequence[object]", value))
    except ValueError:  # ragged nesting
        return None
    return array if array.dtype.kind in "fiu" else None


def batch_rows(obs: Mapping[str, Any], uid: str) -> int | None:
    """Return N of a batch of observations; None for one environment's.

    A ``state`` of rank 2, or without one an image of rank 4, means a batch.
    """
    channels = _entry(obs, "agent", uid)
    if not isinstance(channels, Mapping):
        return None
    told = cast("Mapping[str, Any]", channels)
    shapes = [np.shape(told["state"])] if "state" in told else [*map(np.shape, told.values())]
    rank = 2 if "state" in told else 4
    return next((shape[0] for shape in shapes if len(shape) == rank), None)


def _entry(obs: object, *path: str) -> object:
    """Walk nested mappings; None where the path ends early."""
    node = obs
    for key in path:
        if not isinstance(node, Mapping):
            return None
        node = cast("Mapping[str, object]", node).get(key)
    return node
