"""The ego's seat of a task as a batch, beside partners or beside whoever takes the open seat.

`EgoVectorEnv` is the seat. `VariedTask` draws options of its task anew for every episode: one
partner, many environments (arXiv:2504.12714).

Episodes:  row i of E plays the episodes s + i + e d, e = 0, 1, ..., of the task, s from ``reset``,
           d the batch's ``stride``, E unless it was set.
           In the episode k the stream ``benchmark.stream.<uid>`` under root k chooses who drives
           seat ``uid``; the partner's seat begins with seed k, a background robot with
           `background_seed`. So k and the experiment seed repeat an episode in a scalar
           environment to the last bit. A varied episode takes its options from the stream
           ``benchmark.variation.{k}``.
Resume:    what the ego did since the longest running episode began is kept, and what whoever took
           the open seat did; it brings every row back to the bit.
Axes:      E = environments, D = entries of the ego's state, A = action, P and A' the partner's.
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

from cadenza.aht.config import PartnerConfig
from cadenza.benchmark.builders import SEAT_STREAM, background_seed, partner_spec
from cadenza.benchmark.tasks import EnvRequest, OptionValue, TaskSpec, get_task
from cadenza.core.arrays import Float32Array
from cadenza.core.checks import whole_number
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import ConfigurationError, NotReadyError, refuse
from cadenza.core.files import sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.core.types import companions_of
from cadenza.envs.process_batch import ProcessBatch
from cadenza.learn.agents.cec import Range
from cadenza.learn.agents.self_play import PartnerPlayer
from cadenza.learn.sampling import PartnerSampler, SamplerConfig
from cadenza.learn.settings import FrozenModel
from cadenza.partners.pool import PartnerPool
from cadenza.partners.registry import load_partner

#: Keys of a batch's info that hold the observation before an automatic reset.
_FINAL_KEYS: Final = ("final_observation", "final_obs")

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


class PoolPlayer:
    """Plays one seat of a batch by partners, one of them in every episode.

    Attributes:
        pool: The partners.
        sampler: Draws them.
    """

    def __init__(
        self,
        env: Any,
        uid: str,
        partners: Sequence[PartnerConfig],
        sampler: SamplerConfig | None = None,
    ) -> None:
        members = [load_partner(partner_spec(partner, uid=uid)) for partner in partners]
        self.pool: PartnerPool = PartnerPool(members, rows=env.num_envs)
        self.pool.bind(env.single_action_space[uid])
        self.pool.bind_contract(contract_at(env, uid))
        self.sampler: PartnerSampler = PartnerSampler(len(partners), sampler)
        self._uid, self._is_partner = uid, uid == env.agent_uids[1]

    def begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Draw who plays, and begin; see `PartnerPlayer`."""
        name = SEAT_STREAM.format(uid=self._uid)
        streams = (derive_substream(name, root_seed=episode) for episode in episodes)
        drawn = [self.sampler.draw(stream.default_rng()) for stream in streams]
        self.start(rows, episodes, drawn)

    def start(self, rows: Sequence[int], episodes: Sequence[int], chosen: Sequence[int]) -> None:
        """Let the partners ``chosen`` begin ``episodes`` in ``rows``."""
        seeds = episodes if self._is_partner else [background_seed(self._uid, e) for e in episodes]
        self.pool.begin(rows, chosen, seeds)

    def act(self, states: NDArray[Any]) -> Float32Array:
        """Return what partners do that see ``states``; see `PartnerPlayer`."""
        return self.pool.act({"agent": {self._uid: {"state": states}}})

    def end(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Tell the sampler how episodes went; see `PartnerPlayer`."""
        for row, score in zip(rows, scores, strict=True):
            self.sampler.report(int(self.pool.chosen[row]), score)


class EgoVectorEnv(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """The ego's seat in E environments that reset themselves in the step that ends an episode.

    Observation: the ego's `state`, (E, D). Action: the ego's action, (E, A), or choices (E,).
    Partners act on what they saw before the step, then all move at once. With ``partners`` None
    the other seat is open: whoever `seat_partner` is given begins, acts and ends with every episode
    from the next `reset` on.

    With ``swaps``, for two robots that observe and act alike, who sits where is drawn for every
    episode from the stream ``benchmark.stream.seats`` of its number; nobody notices but the task.

    Attributes:
        env: The batch inside, where safety filters find their hooks.
        ego_uid: The robot of a seat that is never swapped.
        partner_observation_space: What the partner decides on in one environment.
        partner_action_space: What it does there.
        made_with: Keywords with which `ego_envs` makes the same again, if it made this.

    Raises:
        ConfigurationError: There is no partner, an option of one is wrong, or an open seat is one
            of several.
        UnknownNameError: The class of a partner is not registered.
    """

    def __init__(
        self,
        env: Any,
        partners: Sequence[PartnerConfig] | None,
        *,
        sampler: SamplerConfig | None = None,
        swaps: bool = False,
    ) -> None:
        self.ego_uid, self._partner_uid, *background = env.agent_uids
        if partners is None and background:
            expected, got = "two robots", f"{len(env.agent_uids)} of them"
            refuse(ConfigurationError, "open seat", expected=expected, got=got)
        if partners is not None and not partners:
            raise ConfigurationError(
                "EgoVectorEnv: expected at least one partner, got none; name some of the task's."
            )
        self._env, self.num_envs = env, int(env.num_envs)
        self.metadata: dict[str, Any] = {
            "render_modes": [],
            "autoreset_mode": AutoresetMode.SAME_STEP,
        }
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
        self._pools: dict[str, PoolPlayer] = {}
        self._player: PartnerPlayer | None = None
        if partners is not None:  # background robots draw uniformly
            pools = [PoolPlayer(env, uid, partners) for uid in background]
            first = PoolPlayer(env, self._partner_uid, partners, sampler)
            self._pools = dict(zip((self._partner_uid, *background), (first, *pools), strict=True))
            self._player = first
        self.made_with: dict[str, Any] = {}
        self._seen: Mapping[str, Any] | None = None
        self._episodes: NDArray[np.int64] = np.arange(self.num_envs, dtype=np.int64)
        self._ages: NDArray[np.int64] = np.zeros(self.num_envs, np.int64)
        self._returns: NDArray[np.float64] = np.zeros(self.num_envs)
        #: What the ego, and whoever took the open seat, did in the longest running episode.
        self._record: list[tuple[NDArray[Any], NDArray[Any] | None]] = []

    @property
    def env(self) -> Any:
        """The batch inside."""
        return self._env

    @property
    def task_contract(self) -> TaskContract | None:
        """What the ego's numbers mean, if the batch inside says it."""
        return contract_at(self._env, self.ego_uid)

    @property
    def stride(self) -> int:
        """By how much the number of an environment's episode grows from one to the next."""
        return getattr(self._env, "stride", self.num_envs)

    @property
    def companions(self) -> list[str]:
        """How those are known who may play beside the ego; nobody whose seat is open."""
        return [*companions_of(self.pool.members)] if self._pools else []

    @property
    def pool(self) -> PartnerPool:
        """Who plays the partner's seat."""
        return self._pools[self._partner_uid].pool

    @property
    def sampler(self) -> PartnerSampler:
        """Draws who plays it."""
        return self._pools[self._partner_uid].sampler

    @property
    def partner_ids(self) -> list[str]:
        """Identity of everyone whom the ego of each environment meets in this episode, (E,)."""
        playing = [player.pool.playing_ids for player in self._pools.values()]
        return ["+".join(ids) for ids in zip(*playing, strict=True)]

    def seat_partner(self, partner: PartnerPlayer) -> None:
        """Let ``partner`` play the open seat, from the next `reset` on.

        Raises:
            ConfigurationError: The seat is taken.
        """
        if self._pools:
            expected = "an environment that leaves the partner's seat open (partner='open')"
            refuse(ConfigurationError, "seat_partner", expected=expected, got="partners in it")
        self._player = partner

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode in every environment.

        ``seed`` is the first episode of environment 0, or one per environment; None moves every
        environment to its next episode.

        Raises:
            InputError: A seed is not an integer in [0, 2^62), or there is not one each.
            NotReadyError: Nobody sits beside the ego.
        """
        observation, info = self._env.reset(seed=seed, options=options)
        rows = np.arange(self.num_envs, dtype=np.int64)
        if seed is None:
            self._episodes = rows if self._seen is None else self._episodes + self.stride
        else:
            self._episodes = rows + seed if isinstance(seed, int) else np.array(seed, np.int64)
        self._seen = observation
        self._record.clear()
        self._begin(range(self.num_envs))
        return self._state(observation), dict(info)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance every environment with the ego's ``actions``.

        The info holds what only learning may read, ``partner_observation``, (E, P), on which the
        partner decided in this step, and ``partner_action``, (E, A') or choices (E,), what it did;
        where episodes end also ``final_obs``, the ego's `state` before the reset.

        Raises:
            NotReadyError: `reset` was never called, or nobody sits beside the ego.
            InputError: ``actions`` have another shape or are not finite.
        """
        before = self._state(self._running("step"), partner=True).copy()
        (observation, reward, terminated, truncated, said), did = self._move(actions)
        self._record.append((np.array(actions), None if self._pools else did))
        self._ages += 1
        self._returns += reward
        ended: list[int] = np.flatnonzero(terminated | truncated).tolist()
        scores = np.asarray(said.get("success", self._returns), np.float64)
        finals = {key: self._state(said[key]) for key in _FINAL_KEYS if key in said}
        if ended:
            self._seated().end(ended, scores[ended].tolist())
            self._episodes[ended] += self.stride
            self._begin(ended)
        del self._record[: len(self._record) - int(self._ages.max())]
        if isinstance(self.partner_action_space, Discrete):
            did = did[:, 0].astype(np.int64)
        told = {"partner_observation": before, "partner_action": did}
        info: dict[str, Any] = {**said, **told, **finals}
        if "final_info" in info:
            info["final_info"] = {**info["final_info"], **told}
        return self._state(observation), reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives episodes: what the sampler knows; players keep their own."""
        return self.sampler.state_dict() if self._pools else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if self._pools:
            self.sampler.load_state_dict(state)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return what a method answers, as `gymnasium.vector.SyncVectorEnv.call` does."""
        return getattr(self, name)(*arguments, **options)

    def has_wrapper_attr(self, name: str) -> list[bool]:
        """Return whether there is such an attribute; replays need a batch with snapshots."""
        return [hasattr(self, name) and hasattr(self._env, "snapshot")]

    def replay_state(self) -> list[dict[str, Any]]:
        """Return what brings the running episodes back: one entry, tensors and plain values.

        Raises:
            NotReadyError: `reset` was never called.
        """
        self._running("replay_state")
        mine, others = zip(*self._record, strict=True) if self._record else ((), ())
        pools = {uid: player.pool.chosen.tolist() for uid, player in self._pools.items()}
        state = {
            "episodes": self._episodes.tolist(),
            "ages": self._ages.tolist(),
            "returns": self._returns.tolist(),
            "actions": torch.tensor(np.array(mine)),
            **({"chosen": pools} if pools else {"moves": torch.tensor(np.array(others))}),
            "observation_sha256": self._seen_sha256(),
        }
        return [state]

    def try_replay_state(
        self, states: Sequence[Mapping[str, Any]], *, go_on: bool = True
    ) -> list[tuple[str, list[str]]]:
        """Do the recorded episodes again; return how they differed, if they did.

        Without ``go_on`` nothing is stepped. What outlives episodes comes back by `state_dict`, and
        a player of the open seat where its own state does.
        """
        if not go_on:
            return [("", [])]
        (state,) = states
        actions = state["actions"].numpy()
        moves = state["moves"].numpy() if "moves" in state else [None] * len(actions)
        self._record = list(zip(actions, moves, strict=True))
        self._episodes = np.array(state["episodes"], np.int64)
        self._ages, self._returns = np.array(state["ages"]), np.array(state["returns"])
        begins = len(actions) - self._ages  # steps before the episode of each row
        self._seen, _ = self._env.reset(seed=self._episodes.tolist())
        self._take_seats(range(self.num_envs))
        first = self._env.snapshot(range(self.num_envs))
        for number, done in enumerate([*self._record, None]):
            rows = np.flatnonzero(begins == number) if number else np.arange(self.num_envs)
            if len(rows):
                kept = {name: values[rows] for name, values in first.items()}
                self._seen = self._env.restore(rows.tolist(), kept)
                episodes: list[int] = self._episodes[rows].tolist()
                for uid, player in self._pools.items():
                    chosen = [state["chosen"][uid][row] for row in rows]
                    player.start(rows.tolist(), episodes, chosen)
            if done is not None:
                self._move(*done)
        if self._seen_sha256() == state["observation_sha256"]:
            return [("", [])]
        told = f"EgoVectorEnv: expected the saved observations after {len(actions)} steps, done"
        told += " again, got others; the task or a partner is not the one that was saved"
        return [(told, [])]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the batch inside."""
        self._env.close(**kwargs)

    def _running(self, door: str) -> Mapping[str, Any]:
        """Return what everybody sees."""
        if self._seen is None:
            raise NotReadyError(
                f"EgoVectorEnv.{door}: expected episodes in progress; call reset()."
            )
        return self._seen

    def _seated(self) -> PartnerPlayer:
        if self._player is None:
            raise NotReadyError("EgoVectorEnv: expected seat_partner() first.")
        return self._player

    def _begin(self, rows: Sequence[int]) -> None:
        """Draw seats, and let partners begin the episodes of ``rows``."""
        self._ages[rows], self._returns[rows] = 0, 0.0
        self._take_seats(rows)
        episodes: list[int] = self._episodes[rows].tolist()
        for player in self._pools.values() or [self._seated()]:
            player.begin(rows, episodes)

    def _take_seats(self, rows: Sequence[int]) -> None:
        """Draw who sits where in the running episodes of ``rows``."""
        for row in rows if self._swaps else ():
            name, episode = "benchmark.stream.seats", int(self._episodes[row])
            drawn = derive_substream(name, root_seed=episode).default_rng().random()
            self._swapped[row] = drawn < 0.5

    def _move(
        self, actions: NDArray[Any], move: NDArray[Any] | None = None
    ) -> tuple[tuple[Any, ...], NDArray[Any]]:
        """Step the batch; return what it answers and what the partner did, ``move`` if given."""
        seen = cast("Mapping[str, Any]", self._seen)
        if move is None:
            move = self._seated().act(self._state(seen, partner=True))
        mine, others = np.asarray(actions), move
        if self._swaps:
            mine = mine.reshape(self.num_envs, -1).astype(np.float32)
            pairs = ((others, mine), (mine, others))
            mine, others = (np.where(self._swapped, one, two) for one, two in pairs)
        commands: dict[str, NDArray[Any]] = {self.ego_uid: mine, self._partner_uid: others}
        for uid in [*self._pools][1:]:
            commands[uid] = self._pools[uid].act(seen["agent"][uid]["state"])
        answer = self._env.step(commands)
        self._seen = answer[0]
        return answer, move

    def _state(self, observation: Mapping[str, Any], *, partner: bool = False) -> NDArray[Any]:
        """Return what the ego sees, (E, D), or the partner, (E, P)."""
        uids = [self.ego_uid, self._partner_uid]
        states: list[NDArray[Any]] = [observation["agent"][uid]["state"] for uid in uids]
        own, other = states[::-1] if partner else states
        return np.where(self._swapped, other, own) if self._swaps else own

    def _seen_sha256(self) -> str:
        """Return the digest of what everybody sees."""
        agents = cast("Mapping[str, Any]", self._seen)["agent"]
        states = [np.ascontiguousarray(agents[uid]["state"]) for uid in sorted(agents)]
        return sha256_bytes(b"".join(state.tobytes() for state in states))


def make_batch(
    task: str,
    num_envs: int,
    *,
    episode_length: int,
    root_seed: int,
    options: Mapping[str, OptionValue],
    stride: int | None = None,
) -> Any:
    """Return ``num_envs`` environments of ``task`` as a batch; arguments as `make_ego_worlds`.

    Episode numbers grow by ``stride``, ``num_envs`` if it is None; see `EpisodeBatch`.
    """
    found = get_task(task)
    request = EnvRequest(
        episode_length=episode_length,
        num_envs=num_envs,
        root_seed=root_seed,
        options=found.complete_options(options),
        batched=True,
        condition_id=next(iter(found.conditions), None),
    )
    env: Any = found.make_env(request)
    mode = getattr(env, "metadata", {}).get("autoreset_mode")
    if getattr(env, "num_envs", None) != num_envs or mode is not AutoresetMode.SAME_STEP:
        raise ConfigurationError(
            f"task {task!r}: expected {found.env_factory} to return a batch of {num_envs} "
            f"environments that reset themselves in the same step, got {type(env).__name__}; heed "
            "EnvRequest.batched there."
        )
    if stride is not None:
        env.stride = whole_number("make_batch.stride", stride, least=1)
    return env


def open_seat(
    num_envs: int,
    *,
    task: str,
    episode_length: int | None = None,
    root_seed: int = 0,
    variation: Variation | None = None,
    options: Mapping[str, OptionValue] | None = None,
) -> EgoVectorEnv:
    """Return ``num_envs`` environments of ``task`` whose partner's seat is open.

    With a ``variation`` they are stepped one by one, in this process.
    """
    found = get_task(task)
    length, given = episode_length or found.episode_length, options or {}
    if variation is None:
        batch = make_batch(
            task, num_envs, episode_length=length, root_seed=root_seed, options=given
        )
        return EgoVectorEnv(batch, None, swaps=True)
    request = EnvRequest(
        episode_length=length,
        root_seed=root_seed,
        options=found.complete_options(given),
        condition_id=next(iter(found.conditions), None),
    )
    make = partial(VariedTask, task, request, variation)
    return EgoVectorEnv(ProcessBatch(make, num_envs, workers=0), None, swaps=True)
