"""Worlds whose partner's seat is open, for egos that train beside copies of themselves.

`OpenSeatEnv` is the ego's seat of a batch; whoever takes the other one (`seat_partner`) begins,
acts and ends with every episode. `VariedTask` draws options of its task anew for every episode:
one partner, many environments (arXiv:2504.12714).

Episodes:  copy i plays the numbers s + i + e d of `cadenza.envs.vector_base.EpisodeBatch`. A varied
           episode k takes its options from the stream ``benchmark.variation.{k}``, so they are
           drawn per copy and episode, and a number repeats an episode.
Resume:    what both robots did since the longest running episode began is kept; it brings every
           copy back to the bit.
Axes:      E = environments, D = entries of a state, A = action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from pydantic import Field, model_validator

from cadenza.benchmark.tasks import EnvRequest, OptionValue, TaskSpec, get_task
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError, refuse
from cadenza.core.files import sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.envs.process_batch import ProcessBatch
from cadenza.learn.agents.cec import Range
from cadenza.learn.agents.self_play import PartnerPlayer
from cadenza.learn.settings import FrozenModel

#: Draws that may fall into held-out layouts before a variation is refused.
_MOST_DRAWS: Final = 1_000


class Variation(FrozenModel):
    """What is drawn for every episode.

    Attributes:
        ranges: Of options of the task: both ends of numbers, or the texts to choose from.
        held_out: Layouts to evaluate on, by name, as ranges of options within ``ranges``. What
            lies in all ranges of one is never drawn in training.
        layout: Draw from this held-out layout instead; None trains.
    """

    ranges: dict[str, Range] = Field(min_length=1)
    held_out: dict[str, dict[str, Range]] = Field(default_factory=dict[str, dict[str, Range]])
    layout: str | None = None

    @model_validator(mode="after")
    def _layouts_are_of_these_ranges(self) -> "Variation":
        for name, layout in self.held_out.items():
            unknown = sorted(layout.keys() - self.ranges.keys())
            if unknown or not layout:
                raise ValueError(
                    f"held_out.{name}: expected options of ranges ({', '.join(self.ranges)}), got "
                    f"{', '.join(unknown) or 'none'}."
                )
        if self.layout is not None and self.layout not in self.held_out:
            raise ValueError(
                f"layout: expected one of {', '.join(self.held_out) or 'no layouts'}, got "
                f"{self.layout!r}."
            )
        return self

    def draw(self, task: TaskSpec, episode: int, *, root_seed: int) -> dict[str, OptionValue]:
        """Return the varied options of an episode.

        Raises:
            ConfigurationError: The held-out layouts leave next to nothing to draw.
        """
        stream = derive_substream(f"benchmark.variation.{episode}", root_seed=root_seed)
        rng, layout = stream.default_rng(), self.layout
        ranges = self.ranges if layout is None else {**self.ranges, **self.held_out[layout]}
        for _ in range(_MOST_DRAWS):
            drawn = {name: _drawn(task, name, ends, rng) for name, ends in ranges.items()}
            if layout is not None or not self._is_held_out(drawn):
                break
        else:
            expected = "ranges that held-out layouts do not fill"
            refuse(ConfigurationError, "variation", expected=expected, got=repr(self.ranges))
        return drawn

    def _is_held_out(self, drawn: Mapping[str, OptionValue]) -> bool:
        return any(
            all(_lies_in(drawn[name], ends) for name, ends in layout.items())
            for layout in self.held_out.values()
        )


def _drawn(task: TaskSpec, name: str, ends: Range, rng: np.random.Generator) -> OptionValue:
    option = (task.options or {}).get(name)
    if any(isinstance(end, str) for end in ends):
        return cast("str", ends[int(rng.integers(len(ends)))])
    low, high = cast("tuple[float, float]", ends)
    if option is not None and isinstance(option.default, int):
        return int(rng.integers(int(low), int(high), endpoint=True))
    return float(rng.uniform(low, high))


def _lies_in(value: OptionValue, ends: Range) -> bool:
    if isinstance(value, str):
        return value in ends
    low, high = cast("tuple[float, float]", ends)
    return low <= value <= high


class VariedTask:
    """One environment of a task, made anew for every episode with options drawn for it.

    Raises:
        ConfigurationError: An option is unknown or out of range, or changes what robots see or do.
    """

    def __init__(self, task: str, request: EnvRequest, variation: Variation) -> None:
        self._task, self._request, self._variation = get_task(task), request, variation
        for name, ends in variation.ranges.items():
            for end in ends:
                wanted = (self._task.options or {}).get(name)
                whole = wanted is not None and isinstance(wanted.default, int)
                value = int(end) if whole and not isinstance(end, str) else end
                self._task.complete_options({**request.options, name: value})
        self.options: dict[str, OptionValue] = {}
        self._env: Any = self._made(0)

    def _made(self, episode: int) -> Any:
        options = self._variation.draw(self._task, episode, root_seed=self._request.root_seed)
        self.options = self._task.complete_options({**self._request.options, **options})
        return self._task.make_env(replace(self._request, options=self.options))

    def __getattr__(self, name: str) -> Any:
        """Return what the environment of the running episode says."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, *, seed: int) -> Any:
        """Draw the options of the episode ``seed``, and begin it."""
        before = self._env
        self._env = self._made(seed)
        if self._sizes(self._env) != self._sizes(before):
            expected = "options that leave observations and actions as they are"
            got = ", ".join(self._variation.ranges)
            refuse(ConfigurationError, "variation", expected=expected, got=got)
        before.close()
        return self._env.reset(seed=seed)

    def _sizes(self, env: Any) -> Any:
        """Return the numbers that robots see, and what they do."""
        robots = env.observation_space["agent"]
        return [robots[uid]["state"].shape for uid in env.agent_uids], env.action_space

    def step(self, action: Mapping[str, Any]) -> Any:
        """Step it."""
        return self._env.step(action)

    def close(self) -> None:
        """Close it."""
        self._env.close()


def open_seat(
    num_envs: int,
    *,
    task: str,
    episode_length: int | None = None,
    root_seed: int = 0,
    variation: Variation | None = None,
    options: Mapping[str, OptionValue] | None = None,
) -> "OpenSeatEnv":
    """Return ``num_envs`` environments of ``task`` whose partner's seat is open.

    With a ``variation`` they are stepped one by one, in this process.
    """
    found = get_task(task)
    request = EnvRequest(
        episode_length=episode_length or found.episode_length,
        root_seed=root_seed,
        options=found.complete_options(options or {}),
        condition_id=next(iter(found.conditions), None),
    )
    if variation is not None:
        make = partial(VariedTask, task, request, variation)
        return OpenSeatEnv(ProcessBatch(make, num_envs, workers=0), swaps=True)
    batch = found.make_env(replace(request, num_envs=num_envs, batched=True))
    return OpenSeatEnv(batch, swaps=True)


class OpenSeatEnv(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """The ego's seat in E environments; a `PartnerPlayer` sits beside it.

    With ``swaps``, for robots that observe and act alike, who sits where is drawn for every episode
    from the stream ``benchmark.stream.seats`` of its number; nobody notices but the task.

    Attributes:
        partner_observation_space: What the partner sees in one environment.
        partner_action_space: What it does there.

    Raises:
        ConfigurationError: There are more than two robots.
    """

    def __init__(self, env: Any, *, swaps: bool = False) -> None:
        if len(env.agent_uids) > 2:
            expected, got = "two robots", f"{len(env.agent_uids)} of them"
            refuse(ConfigurationError, "open seat", expected=expected, got=got)
        self.ego_uid, self._partner_uid = env.agent_uids
        self._env, self.num_envs = env, int(env.num_envs)
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
        seen, done = env.single_observation_space["agent"], env.single_action_space
        self.single_observation_space: Any = seen[self.ego_uid]["state"]
        self.single_action_space: Any = done[self.ego_uid]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.partner_observation_space: Any = seen[self._partner_uid]["state"]
        self.partner_action_space: Any = done[self._partner_uid]
        self._swaps = swaps and seen[self.ego_uid] == seen[self._partner_uid]
        self._swaps &= done[self.ego_uid] == done[self._partner_uid]
        self._swapped: NDArray[np.bool_] = np.zeros((self.num_envs, 1), np.bool_)
        self._partner: PartnerPlayer | None = None
        self._seen: Mapping[str, Any] | None = None
        self._episodes: NDArray[np.int64] = np.arange(self.num_envs, dtype=np.int64)
        self._ages: NDArray[np.int64] = np.zeros(self.num_envs, np.int64)
        self._returns: NDArray[np.float64] = np.zeros(self.num_envs)
        self._record: list[tuple[NDArray[Any], NDArray[Any]]] = []  # what both did, by step

    @property
    def task_contract(self) -> TaskContract | None:
        """What the ego's numbers mean, if the batch inside says it."""
        return contract_at(self._env, self.ego_uid)

    @property
    def companions(self) -> list[str]:
        """Nobody but whoever takes the seat."""
        return []

    def seat_partner(self, partner: PartnerPlayer) -> None:
        """Let ``partner`` play the other seat, from the next `reset` on."""
        self._partner = partner

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Any = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode in every environment; ``seed`` as of `EpisodeBatch.reset`.

        Raises:
            NotReadyError: Nobody sits beside the ego.
        """
        del options
        rows = np.arange(self.num_envs, dtype=np.int64)
        if seed is None:
            self._episodes = rows if self._seen is None else self._episodes + self._env.stride
        else:
            self._episodes = rows + seed if isinstance(seed, int) else np.array(seed, np.int64)
        observation, info = self._env.reset(seed=self._episodes.tolist())
        self._seen = observation
        self._record.clear()
        self._begin(rows)
        return self._state(observation), dict(info)

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance every environment; the info tells of the partner what only learning may read.

        Raises:
            NotReadyError: Nobody sits beside the ego, or `reset` was never called.
        """
        partner = self._seated()
        told = self._state(cast("Mapping[str, Any]", self._seen), partner=True).copy()
        move = partner.act(told)
        observation, reward, ended, cut, info = self._moved(np.asarray(actions), move)
        self._seen = observation
        self._record.append((np.array(actions), move))
        self._ages += 1
        self._returns += reward
        over = np.flatnonzero(ended | cut)
        if len(over):
            scores = np.asarray(info.get("success", self._returns), np.float64)[over]
            partner.end(over.tolist(), scores.tolist())
            info = {**info, "final_obs": self._state(info["final_observation"])}
            del info["final_observation"]
            self._episodes[over] += self._env.stride
            self._begin(over)
        del self._record[: len(self._record) - int(self._ages.max())]
        did = (
            move[:, 0].astype(np.int64) if isinstance(self.partner_action_space, Discrete) else move
        )
        info = {**info, "partner_observation": told, "partner_action": did}
        if "final_info" in info:
            del info["final_info"]  # the rest is of the step itself
        return self._state(observation), reward, ended, cut, info

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what the partner's player remembers is its own to keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over nothing."""

    def call(self, name: str, *arguments: Any, **options: Any) -> list[Any]:
        """Return what a method answers, as the only entry of a list; see `SyncVectorEnv.call`."""
        return [getattr(self, name)(*arguments, **options)]

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether there is such an attribute."""
        return hasattr(self, name)

    def replay_state(self) -> dict[str, Any]:
        """Return what brings the running episodes back: tensors and plain values."""
        mine, others = zip(*self._record, strict=True) if self._record else ((), ())
        return {
            "episodes": self._episodes.tolist(),
            "ages": self._ages.tolist(),
            "returns": self._returns.tolist(),
            "actions": torch.tensor(np.array(mine)),
            "moves": torch.tensor(np.array(others)),
            "observation_sha256": self._digest(),
        }

    def try_replay_state(
        self, states: Sequence[Mapping[str, Any]], *, go_on: bool = True
    ) -> tuple[str, list[str]]:
        """Do the recorded steps again; return how they differed, if they did, and nothing else."""
        if not go_on:
            return "", []
        (state,) = states
        self._episodes = np.array(state["episodes"], np.int64)
        self._ages = np.array(state["ages"], np.int64)
        self._returns = np.array(state["returns"])
        record = list(zip(state["actions"].numpy(), state["moves"].numpy(), strict=True))
        begins = len(record) - self._ages  # steps before the episode of each row
        self._seen, _ = self._env.reset(seed=self._episodes.tolist())
        self._take_seats(np.arange(self.num_envs))
        first = self._env.snapshot(range(self.num_envs))
        for number in range(len(record) + 1):
            rows = np.flatnonzero(begins == number)
            if number and len(rows):
                kept = {name: values[rows] for name, values in first.items()}
                self._seen = self._env.restore(rows.tolist(), kept)
            if number < len(record):
                self._seen = self._moved(*record[number])[0]
        self._record = record
        if self._digest() == state["observation_sha256"]:
            return "", []
        return "OpenSeatEnv: expected the saved observations after the replay, got others", []

    def close_extras(self, **kwargs: Any) -> None:
        """Close the batch inside."""
        self._env.close(**kwargs)

    def _seated(self) -> PartnerPlayer:
        if self._partner is None or self._seen is None:
            raise NotReadyError("OpenSeatEnv: expected seat_partner() and reset() first.")
        return self._partner

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Draw seats, and let the partner begin the episodes of ``rows``."""
        self._ages[rows], self._returns[rows] = 0, 0.0
        self._take_seats(rows)
        self._seated().begin(rows.tolist(), self._episodes[rows].tolist())

    def _take_seats(self, rows: NDArray[np.int64]) -> None:
        """Draw who sits where in the running episodes of ``rows``."""
        for row in rows.tolist() if self._swaps else ():
            name, episode = "benchmark.stream.seats", int(self._episodes[row])
            drawn = derive_substream(name, root_seed=episode).default_rng().random()
            self._swapped[row] = drawn < 0.5

    def _moved(self, actions: NDArray[Any], move: NDArray[Any]) -> Any:
        """Return what the batch answers to both robots' actions."""
        if len(actions) != self.num_envs:
            expected, got = f"actions of {self.num_envs} environments", f"{actions.shape}"
            refuse(InputError, "OpenSeatEnv.step", expected=expected, got=got)
        mine = actions.reshape(self.num_envs, -1).astype(np.float32)
        if self._swaps:
            mine, move = (
                np.where(self._swapped, one, two) for one, two in ((move, mine), (mine, move))
            )
        return self._env.step({self.ego_uid: mine, self._partner_uid: move})

    def _state(self, observation: Mapping[str, Any], *, partner: bool = False) -> NDArray[Any]:
        """Return what the ego sees, (E, D), or the partner, (E, P)."""
        uids = self.ego_uid, self._partner_uid
        own, other = (np.asarray(observation["agent"][uid]["state"]) for uid in uids)
        if partner:
            own, other = other, own
        return np.where(self._swapped, other, own) if self._swaps else own

    def _digest(self) -> str:
        seen = cast("Mapping[str, Any]", self._seen)
        states = [np.ascontiguousarray(self._state(seen, partner=who)) for who in (False, True)]
        return sha256_bytes(b"".join(state.tobytes() for state in states))
