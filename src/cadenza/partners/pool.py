"""Who plays one seat in N environments: a pool of partners, one of them in every row.

Members that play networks of equal shapes answer in one forward pass (`PolicyStack`); others answer
for their own rows, by their own class. What a row gets depends on its member, what it sees and its
own draws alone, not on who plays the others.

Frozen:  networks are checked when they are loaded (by digest, where a manifest or a spec tells one)
         and the weights that answer are hashed whenever a group of episodes begins.
Axes:    K = members, N = rows, n = some of them, A = action; a choice is one number, (N, 1).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.contracts import TaskContract
from cadenza.core.errors import InputError, IntegrityError
from cadenza.partners.interface import FrozenPartner, PartnerBase, read_state

if TYPE_CHECKING:
    from cadenza.learn.nn.portable import PortableNetwork
    from cadenza.learn.nn.portable_stack import PolicyStack


@runtime_checkable
class NetworkPlayer(Protocol):
    """A partner that plays a network of its robot's state."""

    @property
    def network(self) -> "PortableNetwork":
        """The policy, loaded if need be."""
        ...

    @property
    def uid(self) -> str:
        """Robot whose state it reads."""
        ...

    def noise(self, rows: Sequence[int]) -> Float32Array:
        """Return what draws the next actions of ``rows``, one generator each."""
        ...


class _Group(NamedTuple):
    """Members that answer together: their stack, and their numbers in the pool."""

    stack: "PolicyStack"
    members: NDArray[np.int64]


class PartnerPool:
    """Plays each of ``rows`` rows by one of ``members``.

    Attributes:
        members: The partners; each keeps its own state of the rows that it plays.
        chosen: Number of the member that plays each row, (N,).

    Raises:
        InputError: There is no member.
    """

    def __init__(self, members: Sequence[FrozenPartner], *, rows: int) -> None:
        if not members:
            raise InputError("PartnerPool: expected at least one member, got none.")
        self.members: list[PartnerBase] = [
            member if isinstance(member, PartnerBase) else _OnePerRow(member) for member in members
        ]
        self.chosen: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._content_ids = [member.spec.content_id for member in members]
        self._players: dict[int, NetworkPlayer] = {}
        self._groups: list[_Group] = []
        self._group: NDArray[np.int64] = np.full(len(members), -1)  # -1: in none
        self._place: NDArray[np.int64] = np.full(len(members), -1)  # in its group
        self._is_open = False

    @property
    def content_ids(self) -> Sequence[str]:
        """Identity of every member, (K,)."""
        return self._content_ids

    @property
    def playing_ids(self) -> list[str]:
        """Identity of the member that plays each row, (N,)."""
        return [self._content_ids[member] for member in self.chosen]

    def bind(self, action_space: "Box[Any] | Discrete[Any]") -> None:
        """Bind every member; see `PartnerBase.bind`."""
        for member in self.members:
            member.bind(action_space)

    def bind_contract(self, contract: TaskContract | None) -> None:
        """Bind every member; see `PartnerBase.bind_contract`."""
        for member in self.members:
            member.bind_contract(contract)

    def reset(self, *, seed: int | None = None) -> None:
        """Load every member and begin the episode of ``seed`` with it, in all rows.

        Raises:
            CheckpointError: Weights cannot be loaded, or are of another task contract.
            IntegrityError: Weights are not those that a manifest or a spec names, or have changed.
        """
        for member in self.members:
            member.reset(seed=seed)
        if self._is_open:
            self._require_frozen(range(len(self.members)))
        else:
            self._stack()
        self._is_open = True

    def begin(self, rows: Sequence[int], chosen: Sequence[int], seeds: Sequence[int]) -> None:
        """Let the members ``chosen`` begin the episodes of ``seeds`` in ``rows``.

        Each acts as a partner of one environment does after ``reset(seed=seed)``.

        Raises:
            CheckpointError: As `reset`, which the first call does.
            IntegrityError: As `reset`.
        """
        if not self._is_open and len(seeds):
            self.reset(seed=seeds[0])
        for row, member, seed in zip(rows, chosen, seeds, strict=True):
            self.chosen[row] = member
            self.members[member].reset_row(row, seed=seed)
        self._require_frozen(sorted(set(chosen)))

    def act(self, observation: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the actions of all rows, (N, A), for a batch of observations."""
        parts: list[tuple[NDArray[np.intp], Float32Array]] = []
        groups = self._group[self.chosen]
        for number, group in enumerate(self._groups):
            rows = np.flatnonzero(groups == number)
            if len(rows):
                parts.append((rows, self._stacked(group, rows, observation, deterministic)))
        alone: list[int] = np.unique(self.chosen[groups < 0]).tolist()
        for number in alone:
            rows = np.flatnonzero(self.chosen == number)
            player = self.members[number]
            parts.append((rows, player.act_rows(observation, rows, deterministic=deterministic)))
        actions = np.empty((len(self.chosen), parts[0][1].shape[1]), dtype=np.float32)
        for rows, told in parts:
            actions[rows] = told
        return actions

    def _stacked(
        self,
        group: _Group,
        rows: NDArray[np.intp],
        observation: Mapping[str, Any],
        deterministic: bool,
    ) -> Float32Array:
        """Return the actions of rows whose members answer together, (n, A)."""
        first = int(group.members[0])
        player, member = self._players[first], self.members[first]
        states = read_state(observation, player.uid)
        if states.shape[-1] != player.network.observation_dim:
            return member.act_rows(observation, rows)  # says what is wrong
        who, noise = self.chosen[rows], None
        if not deterministic:
            drawn: dict[int, Any] = {}
            for number in np.unique(who).tolist():
                own = rows[who == number].tolist()
                drawn |= dict(zip(own, self._players[number].noise(own), strict=True))
            noise = np.stack([drawn[row] for row in rows.tolist()])
        seen = np.ascontiguousarray(states[rows], dtype=np.float32)
        told = group.stack.act(seen, self._place[who], noise)
        return member.checked(told.reshape(len(rows), -1).astype(np.float32))

    def _stack(self) -> None:
        """Put the networks of equal shapes together."""
        players: dict[int, NetworkPlayer] = {
            k: member for k, member in enumerate(self.members) if isinstance(member, NetworkPlayer)
        }
        self._players, self._groups, self._group[:] = players, [], -1
        if not players:
            return
        from cadenza.learn.nn.portable_stack import PolicyStack, stack_key  # imports torch

        alike: dict[tuple[str, bytes], list[int]] = {}
        for number, player in players.items():
            key = stack_key(player.network)
            if key is not None:
                alike.setdefault((player.uid, key), []).append(number)
        for numbers in alike.values():
            self._group[numbers] = len(self._groups)
            self._place[numbers] = np.arange(len(numbers))
            stack = PolicyStack([players[number].network for number in numbers])
            self._groups.append(_Group(stack, np.array(numbers)))

    def _require_frozen(self, members: Sequence[int]) -> None:
        """Refuse weights that changed since they were loaded."""
        for group in self._groups:
            for number in np.intersect1d(group.members, members).tolist():
                place = int(self._place[number])
                digest = group.stack.digest(place)
                if digest != group.stack.digests[place]:
                    raise IntegrityError(
                        f"pool member {number}: expected frozen weights {self._content_ids[number]}"
                        f", got others ({digest[:12]}): something changed them after they were "
                        "loaded (ADR-009); find what trains them."
                    )
        for number in members:
            if self._group[number] < 0:
                self.members[number].verify_weights()


class _OnePerRow(PartnerBase):
    """A partner that knows no rows: a copy of it plays each."""

    def __init__(self, partner: FrozenPartner) -> None:
        super().__init__(partner.spec)
        self._make: Any = type(partner)
        self._copies: dict[int, FrozenPartner] = {}

    def reset(self, *, seed: int | None = None) -> None:
        """Do nothing: rows begin one by one."""

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row."""
        if row not in self._copies:
            self._copies[row] = self._make(self.spec)
        self._copies[row].reset(seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the actions of all rows, (N, A)."""
        return self.act_rows(obs, np.array(sorted(self._copies)), deterministic=deterministic)

    def act_rows(
        self, obs: Mapping[str, Any], rows: NDArray[np.intp], *, deterministic: bool = True
    ) -> Float32Array:
        """Return the actions of some rows, (n, A)."""
        told: list[NDArray[Any]] = []
        for row in rows.tolist():
            agents = {
                uid: {name: values[row] for name, values in channels.items()}
                for uid, channels in obs["agent"].items()
            }
            action = self._copies[row].act({"agent": agents}, deterministic=deterministic)
            told.append(np.asarray(action, dtype=np.float32).reshape(-1))
        return np.stack(told)
