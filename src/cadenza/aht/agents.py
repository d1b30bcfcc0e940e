"""Agents of the front door as egos: one adapter for all of them.

`SeatView` shows the ego's seat as Gymnasium vector environments, with the partner and the safety
filter inside; an agent steps it as it steps any other. `AgentTrainer` makes of the agent what the
loop of `cadenza.aht.train` drives, so that run log, checkpoints, evaluation and resume are those of
every ego.

Adding one:  a line in `_AGENTS`, and its name and section in `cadenza.aht.config`.
Privileged:  every step's info holds what the partner decided on and what it did, for learning only:
             ``partner_observation`` (N, P) and ``partner_action``, (N, A') or (N,) for choices.
Partners:    agents that train beside copies of themselves seat them by `SeatView.seat_partner`. The
             ego never changes seats, because the filter is that of its robot.
Episodes:    those of the seat. It is begun, and brought back after a kill, by the run: `reset`
             returns what it shows, and what `cadenza.learn.env.stepping` asks of a replay is told
             that it is done.
Axes:        N = environments, O = own state, P = partner's state, A = action, A' = partner's.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_trainer import assert_partner_is_frozen, ego_spaces
from cadenza.aht.seat import Seat, SeatStep
from cadenza.core.arrays import Float32Array
from cadenza.core.device import deterministic_algorithms
from cadenza.core.errors import InputError, refuse
from cadenza.core.runlog import EventLogger, log_scalars
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.agents.cec import CEC
from cadenza.learn.agents.e3t import E3T
from cadenza.learn.agents.liam import LIAM
from cadenza.learn.agents.ppo import PPO
from cadenza.learn.agents.self_play import PartnerPlayer
from cadenza.learn.agents.upd import UPD
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.portable import PortableNetwork

#: Layout version of `AgentTrainer.training_state`.
TRAINING_STATE_VERSION: Final = 1
#: Class of the agent of each algorithm; it reads the section of that name.
_AGENTS: Final[dict[str, Callable[..., Any]]] = {
    "cec": CEC,
    "e3t": E3T,
    "liam": LIAM,
    "recurrent_ppo": PPO,
    "upd": UPD,
}
#: What a replay is asked for, and told: the run brings the seat's episodes back.
_REPLAYED: Final[dict[str, Any]] = {
    "has_wrapper_attr": True,
    "replay_state": {},
    "try_replay_state": ("", []),
}


class SeatView(VectorEnv[Any, Any, Any]):
    """The ego's seat as N vector environments that begin anew in the step that ends an episode.

    Attributes:
        partner_observation_space: What the partner sees in one of them.
        partner_action_space: What it does there.
        chooses: Whether the ego's actions are choices.
        last: The last step, as the run counts it.

    Raises:
        TypeError: A space is neither Box nor, of actions, Discrete.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # pyright: ignore[reportIncompatibleVariableOverride] # Gymnasium's own is no ClassVar

    def __init__(self, env: Any, cfg: EgoAHTConfig) -> None:
        self._uids, count = cfg.env.agent_uids, cfg.env.num_envs
        own, other = (ego_spaces(env, uid, discrete=True) for uid in self._uids)
        self.num_envs = count
        self.single_observation_space: Any = own[0]
        self.single_action_space: Any = own[1]
        self.partner_observation_space: Any = other[0]
        self.partner_action_space: Any = other[1]
        self.observation_space: Any = batch_space(self.single_observation_space, count)
        self.action_space: Any = batch_space(self.single_action_space, count)
        self.chooses: bool = isinstance(own[1], spaces.Discrete)
        self._seat: Seat | None = None
        self._player: PartnerPlayer | None = None
        self.last: SeatStep | None = None

    def sit(self, seat: Seat) -> None:
        """Take the seat that the run has prepared."""
        self._seat = seat

    def seat_partner(self, player: PartnerPlayer) -> None:
        """Let ``player`` play beside the ego."""
        self._player = player

    def rows(self, obs: Observation, *, partner: bool = False) -> Float32Array:
        """Return the states of the ego, or of the partner, as rows, (N, O) or (N, P)."""
        state: Any = obs["agent"][self._uids[partner]]["state"]
        if isinstance(state, torch.Tensor):
            state = state.detach().cpu().numpy()
        return np.atleast_2d(np.array(state, np.float32))  # environments may write into theirs

    def reset(
        self, *, seed: Any = None, options: Any = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Return what the ego sees now; the run has begun the episodes."""
        del seed, options
        if self._player is not None:
            self._player.begin(range(self.num_envs), range(self.num_envs))
        return self.rows(self._begun.observe()), {}

    def step(
        self, actions: Any
    ) -> tuple[
        Float32Array, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Move with the ego's actions, (N, A) or (N,) for choices."""
        seat, count = self._begun, self.num_envs
        told = self.rows(seat.observe(), partner=True)
        both = [self.to_seat(np.asarray(actions))]
        if self._player is not None:
            both.append(self._player.act(told))
        self.last = step = seat.step(*(each if count > 1 else each[0] for each in both))
        move: Any = np.array(step.move, self.partner_action_space.dtype)
        info: dict[str, Any] = {
            "partner_observation": told,
            "partner_action": move.reshape(count, *self.partner_action_space.shape),
        }
        following = self.rows(step.obs)
        if "success" in step.info:
            info["success"] = np.broadcast_to(np.asarray(step.info["success"]), (count,))
        if step.ended and count > 1:
            info["final_obs"] = self.rows(cast("Observation", step.final_obs))
        elif step.ended:
            info["final_obs"] = following
            following = self.rows(seat.observe())  # begins the next episode
        if self._player is not None and seat.scores:
            rows = [*seat.scores]
            self._player.end(rows, [*seat.scores.values()])
            newest = seat.episode_index + 1
            self._player.begin(rows, range(newest - len(rows), newest))
        rewards = np.reshape(step.reward - step.penalty, count).astype(np.float64)
        ends, cuts = (np.reshape(each, count) for each in (step.terminated, step.truncated))
        return following, rewards, ends, cuts, info

    def to_seat(self, actions: NDArray[Any]) -> Float32Array:
        """Return actions as the seat takes them, (N, A); choices as numbers, (N, 1)."""
        return np.asarray(actions, np.float32).reshape(len(actions), -1)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Answer what is asked of environments that replay their episodes; see the header."""
        del args, kwargs
        return (_REPLAYED[name],)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what outlives episodes comes back with the run."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over nothing."""

    @property
    def _begun(self) -> Seat:
        assert self._seat is not None, "the run sits down before the first step"  # noqa: S101
        return self._seat


class GreedyPolicy:
    """An agent without chance, from observations of the task to actions of the seat."""

    def __init__(self, agent: Any, view: SeatView) -> None:
        self._agent, self._view = agent, view
        self._memory: Float32Array | None = None

    def reset(self) -> None:
        """Forget the last episode."""
        self._memory = None

    def __call__(self, obs: Observation) -> Float32Array:
        """Return the action, (A,), or (N, A) for a batched state."""
        rows = self._view.rows(obs)
        actions, self._memory = self._agent.predict(rows, state=self._memory)
        taken = self._view.to_seat(actions)
        return taken if len(rows) > 1 else taken[0]


class AgentTrainer:
    """An agent in the ego's seat; build it with `from_config`.

    It steps the seat itself, which `sit` gives it.
    """

    def __init__(
        self, cfg: EgoAHTConfig, agent: Any, view: SeatView, logger: EventLogger | None
    ) -> None:
        self._cfg, self._logger = cfg, logger
        self.agent, self._view = agent, view

    @classmethod
    def from_config(
        cls,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,
        ego_uid: str,
        logger: EventLogger | None = None,
    ) -> "AgentTrainer":
        """Return a trainer for the ego's seat of ``env``; this is the `TrainerFactory`.

        Raises:
            ConfigurationError: The partner has a trainable parameter, or a setting changes nothing
                for actions of this kind.
            DeviceUnavailableError: The configured device is not on this machine.
            TypeError: A space is neither Box nor, of actions, Discrete.
        """
        del ego_uid  # the first of cfg.env.agent_uids
        assert_partner_is_frozen(partner)
        view = SeatView(env, cfg)
        settings = cfg.section.model_dump()
        agent = _AGENTS[cfg.algo](view, seed=cfg.seed, device=str(cfg.device()), **settings)
        return cls(cfg, agent, view, logger)

    def sit(self, seat: Seat) -> None:
        """Take the seat that the run has prepared."""
        self._view.sit(seat)

    def begin(self, steps: int) -> None:
        """Go on with the running episodes, and aim at ``steps`` more frames."""
        self.agent.begin(steps)

    def step(self) -> SeatStep:
        """Take a step in every environment, and remember it."""
        self.agent.step()
        return cast("SeatStep", self._view.last)

    @property
    def due(self) -> int:
        """Updates that the steps so far call for."""
        return self.agent.due

    def update(self) -> None:
        """Learn from what was observed since the last update."""
        reproducible = self.agent.device.type == "cpu" and self._cfg.runtime.deterministic_torch
        with deterministic_algorithms() if reproducible else nullcontext():
            figures = self.agent.update(self.agent.batch())
        if self._logger is not None:
            log_scalars(self._logger, step=self.agent.steps, namespace="train", **figures)

    def policy(self) -> GreedyPolicy:
        """Return what plays greedily, from the beginning of an episode."""
        return GreedyPolicy(self.agent, self._view)

    def act(self, obs: Observation, *, deterministic: bool = False) -> Float32Array:
        """Return the greedy action; a drawn one is the agent's own to take.

        Raises:
            InputError: It is to be drawn, or depends on what came before.
        """
        if not deterministic or self.agent.state_width:
            expected, got = "greedy actions without a memory", type(self.agent).__name__
            refuse(InputError, "act", expected=expected, got=got, do="play policy() instead")
        return self.policy()(obs)

    def observe(self, *_outcome: Any, **_ends: Any) -> None:
        """Record nothing: `step` does."""

    def network(self, **fields: Any) -> PortableNetwork:
        """Return the policy as a policy file holds it; choices are numbers of the seat."""
        network = self.agent.networks()[""]
        output, action = network.output, network.action
        if self._view.chooses:
            table = self._view.to_seat(np.asarray(output.choices))
            output = replace(output, choices=table)
            action = {"kind": "box", "dtype": "float32", "shape": [1]}
        return replace(network, output=output, action=action, **fields)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy checkpoint: the whole learner; `network` is what plays."""
        return {"agent": self.agent.learner.state_dict()}

    def training_state(self) -> dict[str, Any]:
        """Return everything the future depends on."""
        return {
            "version": TRAINING_STATE_VERSION,
            "agent": self.agent.state_dict(),
            "frames": self.agent.steps,
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `training_state` was taken; the seat is the run's to bring back.

        Raises:
            CheckpointError: The state has another version, is incomplete or of other sizes.
        """
        owner = "AgentTrainer.load_training_state"
        require_version(owner, state, TRAINING_STATE_VERSION)
        with complete_state(owner, "this configuration"):
            self.agent.load_state_dict(state["agent"])

    def forget_episodes(self) -> None:
        """Forget the running rollout and episodes."""
        self.agent.begin(0)  # goes on with the stored ones, which are then left
        self.agent.forget()
