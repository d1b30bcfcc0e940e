"""A task as a single-agent batch: the ego outside, its partners inside, other ones every episode.

Producers of a stream build it by import path. Each row draws a partner anew for every episode, so a
stream holds encounters with all of them.

Seeds:  row i of E plays the episodes s + i + e E, e = 0, 1, ..., of the task, s from ``reset``. In
        the episode k the stream ``benchmark.stream.<uid>`` under root k chooses who drives seat
        ``uid``; the partner's seat begins with seed k, a background robot with `background_seed`.
        So k and the experiment seed repeat an episode in a scalar environment to the last bit.
Axes:   E = environments, D = entries of the ego's state, A = action.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.aht.config import PartnerConfig
from cadenza.benchmark.builders import background_seed, partner_spec
from cadenza.benchmark.tasks import EnvRequest, OptionValue, TaskSpec, adopt, get_task
from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.partners.interface import FrozenPartner, PartnerBase
from cadenza.partners.registry import load_partner

#: Keys of a batch's info that hold the observation before an automatic reset.
_FINAL_KEYS: Final = ("final_observation", "final_obs")


class EgoVectorEnv(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """The ego's seat in E environments that reset themselves in the step that ends an episode.

    Observation: the ego's `state`, (E, D). Action: the ego's action, (E, A). Partners act on what
    they saw before the step, then all move at once.

    Attributes:
        env: The batch inside, where safety filters find their hooks.
        ego_uid: Name of the ego's seat.
        action_low: Smallest action of the ego, (A,).
        action_high: Largest action of the ego, (A,).
    """

    def __init__(self, env: Any, partners: Sequence[PartnerConfig]) -> None:
        """Seat the ego.

        Args:
            env: Batch of a task with automatic resets in the same step.
            partners: Who may drive the other robots.

        Raises:
            ConfigurationError: No partner is given, or an option of one is wrong.
            UnknownNameError: The class of a partner is not registered.
        """
        if not partners:
            raise ConfigurationError(
                "EgoVectorEnv: expected at least one partner, got none; name some of the task's."
            )
        self.env = env
        self.num_envs = env.num_envs
        self.ego_uid, *others = env.agent_uids
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        seen: Any = env.single_observation_space["agent"][self.ego_uid]["state"]
        done: Any = env.single_action_space[self.ego_uid]
        self.single_observation_space, self.single_action_space = seen, done
        self.observation_space = batch_space(seen, self.num_envs)
        self.action_space = batch_space(done, self.num_envs)
        self.action_low: Float32Array = done.low
        self.action_high: Float32Array = done.high
        self._seats = tuple(
            _Seat(uid, is_partner=uid == others[0], env=env, partners=partners) for uid in others
        )
        self._next_seeds: NDArray[np.int64] = np.arange(self.num_envs, dtype=np.int64)
        self._observation: Mapping[str, Any] | None = None

    @property
    def partner_ids(self) -> list[str]:
        """Identity of everyone whom the ego of each environment meets in this episode, (E,)."""
        return ["+".join(seat.content_id(row) for seat in self._seats) for row in self._rows()]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode in every environment.

        Args:
            seed: First episode of environment 0, or one per environment; None moves every
                environment to its next episode.
            options: Handed to the batch inside.

        Raises:
            InputError: A seed is not an integer in [0, 2^62), or there is not one each.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation = observation
        if isinstance(seed, int):
            self._next_seeds = seed + np.arange(self.num_envs, dtype=np.int64)
        elif seed is not None:
            self._next_seeds = np.array(seed, dtype=np.int64)
        self._begin(self._rows())
        return self._ego_state(observation), dict(info)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance every environment with the ego's ``actions``, (E, A).

        Returns:
            Observation, reward, terminated, truncated, info; where episodes end, the info holds
            ``final_obs``, the ego's `state` before the reset.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: ``actions`` have another shape or are not finite.
        """
        if self._observation is None:
            raise NotReadyError("EgoVectorEnv.step: expected episodes in progress; call reset().")
        commands: dict[str, NDArray[Any]] = {self.ego_uid: actions}
        for seat in self._seats:
            commands[seat.uid] = seat.act(self._observation)
        observation, reward, terminated, truncated, info = self.env.step(commands)
        self._observation = observation
        self._begin(np.flatnonzero(terminated | truncated).tolist())
        final = {key: self._ego_state(info[key]) for key in _FINAL_KEYS if key in info}
        return self._ego_state(observation), reward, terminated, truncated, {**info, **final}

    def close_extras(self, **kwargs: Any) -> None:
        """Close the batch inside."""
        self.env.close(**kwargs)

    def _rows(self) -> list[int]:
        return list(range(self.num_envs))

    def _begin(self, rows: Sequence[int]) -> None:
        """Choose and start the partners of new episodes."""
        for row in rows:
            for seat in self._seats:
                seat.begin(row, int(self._next_seeds[row]))
            self._next_seeds[row] += self.num_envs

    def _ego_state(self, observation: Mapping[str, Any]) -> NDArray[Any]:
        return observation["agent"][self.ego_uid]["state"]


class _Seat:
    """One robot beside the ego, and who drives it in each environment."""

    def __init__(
        self, uid: str, *, is_partner: bool, env: Any, partners: Sequence[PartnerConfig]
    ) -> None:
        self.uid = uid
        self._is_partner = is_partner
        specs = [partner_spec(partner, uid=uid) for partner in partners]
        self._ids = [spec.content_id for spec in specs]
        space = env.single_action_space[uid]
        self._drivers: list[list[FrozenPartner]] = []
        count = int(env.num_envs)
        for _ in range(count):  # each environment has its own, with its own episode
            row: list[FrozenPartner] = [load_partner(spec) for spec in specs]
            for driver in row:
                if isinstance(driver, PartnerBase):
                    driver.bind(space)
            self._drivers.append(row)
        self._chosen = [0] * count

    def content_id(self, row: int) -> str:
        """Return the identity of who drives the robot in environment ``row``."""
        return self._ids[self._chosen[row]]

    def begin(self, row: int, episode: int) -> None:
        """Choose who drives the robot of environment ``row`` in ``episode``, and start them."""
        stream = derive_substream(f"benchmark.stream.{self.uid}", root_seed=episode)
        self._chosen[row] = chosen = int(stream.default_rng().integers(len(self._ids)))
        seed = episode if self._is_partner else background_seed(self.uid, episode)
        self._drivers[row][chosen].reset(seed=seed)

    def act(self, observation: Mapping[str, Any]) -> NDArray[Any]:
        """Return the robot's actions, (E, A)."""
        states = observation["agent"][self.uid]["state"]
        actions: list[NDArray[Any]] = []
        for row, chosen in enumerate(self._chosen):
            seen = {"agent": {self.uid: {"state": states[row]}}}
            actions.append(self._drivers[row][chosen].act(seen))
        return np.stack(actions)


def make_ego_worlds(
    num_envs: int,
    *,
    task: str,
    partners: Sequence[Mapping[str, Any]],
    episode_length: int,
    root_seed: int,
    options: Mapping[str, OptionValue],
    registered: Mapping[str, Any] | None = None,
) -> EgoVectorEnv:
    """Return the ego's seat in ``num_envs`` environments of ``task``; producers call it.

    Args:
        num_envs: E.
        task: Registered task.
        partners: Fields of `PartnerConfig`, one mapping per partner.
        episode_length: Steps until truncation.
        root_seed: Experiment seed that scopes every episode.
        options: Further settings of the task.
        registered: What the process that asks has registered: ``task``, the fields of its
            `TaskSpec`, and ``modules`` to import for its partners.

    Raises:
        ConfigurationError: An option is unknown, or the task's batches cannot be streamed.
        UnknownNameError: Unknown task or partner.
    """
    if registered is not None:
        adopt(TaskSpec.model_validate(registered["task"]), registered["modules"])
    env = make_batch(
        task, num_envs, episode_length=episode_length, root_seed=root_seed, options=options
    )
    return EgoVectorEnv(env, [PartnerConfig.model_validate(partner) for partner in partners])


def make_batch(
    task: str,
    num_envs: int,
    *,
    episode_length: int,
    root_seed: int,
    options: Mapping[str, OptionValue],
) -> Any:
    """Return ``num_envs`` environments of ``task`` as a batch; arguments as `make_ego_worlds`.

    Raises:
        ConfigurationError: An option is unknown, or the task has no batch that resets itself.
        UnknownNameError: Unknown task.
    """
    found = get_task(task)
    request = EnvRequest(
        episode_length=episode_length,
        num_envs=num_envs,
        root_seed=root_seed,
        options=found.complete_options(options),
        batched=True,
    )
    env = found.make_env(request)
    mode = getattr(env, "metadata", {}).get("autoreset_mode")
    if getattr(env, "num_envs", None) != num_envs or mode is not AutoresetMode.SAME_STEP:
        raise ConfigurationError(
            f"task {task!r}: expected {found.env_factory} to return a batch of {num_envs} "
            f"environments that reset themselves in the same step, got {type(env).__name__}; heed "
            "EnvRequest.batched there."
        )
    return env
