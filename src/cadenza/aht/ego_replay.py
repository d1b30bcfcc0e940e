"""Ego learners that replay: SAC, HL-Gauss SAC, TD3, HATD3, DQN and MBPO, beside a frozen partner.

Every ``train_every`` frames the learner updates from the replay memory, from within
`observe`; `update` only reports. The memory holds the ego's nominal action: a safety filter between
it and the environment is part of what is learned about.

Axes:        N = environments, O = own state, S = row (own or joint state), A = action.
Randomness:  streams of the learner, see `cadenza.learn.algorithms`; ``training.ego_replay.memory``
             samples the memory.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Final, TypedDict, cast

import torch
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_seat import (
    EgoSeatTrainer,
    SeatOutcome,
    SeatRows,
    assert_partner_is_frozen,
)
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.device import deterministic_algorithms
from cadenza.core.errors import ConfigurationError
from cadenza.core.runlog import EventLogger, log_scalars
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.agents.dqn import DQNLearner, action_grid
from cadenza.learn.agents.hatd3 import CentralTD3Learner
from cadenza.learn.agents.hlgauss import HLGaussLearner
from cadenza.learn.agents.mbpo import MBPOLearner
from cadenza.learn.agents.off_policy import ReplayLearner
from cadenza.learn.agents.sac import SACLearner
from cadenza.learn.agents.td3 import TD3Learner
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.learn.settings import OffPolicyConfig


class EgoReplayTrainer(EgoSeatTrainer):
    """Learns the ego's policy from a replay memory; build it with `from_config`."""

    LEARNER_KEY: ClassVar[str] = "learner"
    NEEDS_SUCCESSORS: ClassVar[bool] = True

    _drawn: tuple[Float32Array, NDArray[Any]]

    def __init__(
        self,
        *,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        learner: ReplayLearner,
        logger: EventLogger | None = None,
    ) -> None:
        super().__init__(cfg, seat, learner, logger)
        self._learner = learner
        self._settings = cast("OffPolicyConfig", cfg.section)
        stream = derive_substream("training.ego_replay.memory", root_seed=cfg.seed)
        self._memory = TransitionMemory(
            observation_dim=seat.row_dim,
            action_dim=learner.action_width,
            num_envs=cfg.env.num_envs,
            max_transitions=self._settings.memory_size,
            seed=stream.integer_seed(),
            action_dtype=learner.action_dtype,
        )
        self._sums: dict[str, list[float]] = {}
        self._updates = 0

    @classmethod
    def from_config(
        cls,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,
        ego_uid: str,
        logger: EventLogger | None = None,
    ) -> "EgoReplayTrainer":
        """Return a trainer for the seat ``ego_uid`` of ``env``; this is the `TrainerFactory`.

        Raises:
            ConfigurationError: The partner has a trainable parameter, or a device other than the
                CPU is asked for.
            InputError: A space is not flat, or the ego's actions are unbounded.
            TypeError: The algorithm cannot act on the ego's action space.
        """
        assert_partner_is_frozen(partner)
        if cfg.runtime.device not in ("auto", "cpu"):
            raise ConfigurationError(
                f"algo={cfg.algo}: expected runtime.device=cpu or auto, got "
                f"{cfg.runtime.device!r}; its small networks are fastest on the CPU."
            )
        joint, discrete = sees_joint_state(cfg.algo), _name(cfg.algo) == "dqn"
        seat = cls._seat_of(cfg, env, ego_uid, joint=joint, discrete=discrete)
        learner = build_replay_learner(
            cfg,
            observation_dim=seat.observation_dim,
            row_dim=seat.row_dim,
            action_dim=seat.action_dim,
            choices=seat.choices,
        )
        return cls(cfg=cfg, seat=seat, learner=learner, logger=logger)

    def act(self, obs: Observation, *, deterministic: bool = False) -> Float32Array:
        """Return the ego's action within its bounds, (A,), or (N, A) for a batched state.

        A ``deterministic`` one is greedy; it draws nothing and may come at any time.

        Raises:
            InputError: A state has the wrong shape or is not finite.
        """
        if deterministic:
            own, batched = self._seat.own(obs)
            require_finite("EgoReplayTrainer.act: state", own)
            with torch.no_grad():
                greedy = self._learner.greedy(torch.tensor(own)).numpy()
            actions = self._within(greedy.reshape(len(own), -1))
            return actions if batched else actions[0]
        rows, batched = self._seat.rows(obs)
        require_finite("EgoReplayTrainer.act: state", rows)
        if self._frames < self._settings.warmup_steps:
            stored = self._learner.random_actions(len(rows))
        else:
            stored = self._learner.act(rows, frames=self._frames)
        self._drawn_for(rows, batched=batched)
        self._drawn = rows.copy(), stored
        actions = self._within(stored)
        return actions if batched else actions[0]

    def _record(self, step: SeatOutcome) -> None:
        rows, stored = self._drawn
        self._memory.add(
            rows,
            stored,
            step.rewards,
            terminated=step.terminated,
            boundaries=step.boundaries,
            next_observations=step.last_rows,
        )

    def _after_record(self, count: int) -> None:
        """Do the updates that the last step made due."""
        settings = self._settings
        every = settings.train_every
        due = self._frames // every - (self._frames - count) // every
        if self._frames <= settings.warmup_steps or due == 0 or self._memory.size() == 0:
            return
        with deterministic_algorithms() if self._cfg.runtime.deterministic_torch else nullcontext():
            for _ in range(due * settings.updates):
                for name, value in self._learner.learn(self._memory).items():
                    self._sums.setdefault(name, []).append(value)
                self._updates += 1

    def update(self) -> None:
        """Report the figures of the updates since the last report, when there were any."""
        figures = {name: sum(values) / len(values) for name, values in self._sums.items()}
        self._sums = {}
        if figures and self._logger is not None:
            log_scalars(
                self._logger,
                step=self._frames,
                namespace="train",
                n_updates=self._updates,
                memory_size=self._memory.size(),
                **figures,
            )

    def forget_episodes(self) -> None:
        """Forget the running episodes of the memory."""
        self._memory.drop_open_episodes()

    def network(self, **fields: Any) -> PortableNetwork:
        """Return the greedy policy as a policy file holds it."""
        network = self._learner.policy(self._seat.low, self._seat.high, **fields)
        if self._seat.choices is None:
            return network
        output = replace(network.output, choices=self._seat.choice_table())
        return replace(network, output=output)

    def _within(self, stored: NDArray[Any]) -> Float32Array:
        """Return stored actions within the seat's bounds, (N, A)."""
        return self._seat.from_unit(self._learner.to_unit(stored))

    def _progress_state(self) -> dict[str, Any]:
        return {
            "memory": self._memory.state_dict(),
            "sums": {name: list(values) for name, values in self._sums.items()},
            "frames": self._frames,
            "updates": self._updates,
        }

    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        self._memory.load_state_dict(state["memory"])
        self._sums = {name: list(values) for name, values in state["sums"].items()}
        self._frames, self._updates = int(state["frames"]), int(state["updates"])


def build_replay_learner(
    cfg: EgoAHTConfig,
    *,
    observation_dim: int,
    row_dim: int,
    action_dim: int,
    choices: int | None = None,
) -> ReplayLearner:
    """Return the learner of ``cfg.algo``.

    ``row_dim``, S, is more than ``observation_dim``, O, only if `sees_joint_state`; ``choices`` are
    DQN's discrete ones, None lets it choose on a grid.

    Raises:
        ConfigurationError: DQN's grid has too many actions.
    """
    sizes = _Sizes(observation_dim=observation_dim, action_dim=action_dim, seed=cfg.seed)
    if choices is not None:
        return _dqn(cfg, sizes, row_dim, bins=choices)
    return _BUILDERS[_name(cfg.algo)](cfg, sizes, row_dim)


def sees_joint_state(algorithm: str) -> bool:
    """Return whether the critics of ``algorithm`` see all seats."""
    return _name(algorithm) == "hatd3"


def _name(algorithm: str) -> str:
    """Return the name of the section of ``algorithm``."""
    return algorithm.removeprefix("ego_aht_")


class _Sizes(TypedDict):
    """Arguments that every learner of boxes takes."""

    observation_dim: int
    action_dim: int
    seed: int


def _dqn(
    cfg: EgoAHTConfig, sizes: _Sizes, row_dim: int, *, bins: int | None = None
) -> ReplayLearner:
    choices = action_grid(sizes["action_dim"], bins or cfg.dqn.action_bins)
    return DQNLearner(observation_dim=row_dim, choices=choices, config=cfg.dqn, seed=cfg.seed)


_BUILDERS: Final[dict[str, Callable[[EgoAHTConfig, _Sizes, int], ReplayLearner]]] = {
    "sac": lambda cfg, sizes, _: SACLearner(**sizes, config=cfg.sac),
    "hlgauss": lambda cfg, sizes, _: HLGaussLearner(**sizes, config=cfg.hlgauss),
    "td3": lambda cfg, sizes, _: TD3Learner(**sizes, config=cfg.td3),
    "hatd3": lambda cfg, sizes, rows: CentralTD3Learner(**sizes, joint_dim=rows, config=cfg.hatd3),
    "dqn": _dqn,
    "mbpo": lambda cfg, sizes, _: MBPOLearner(**sizes, config=cfg.mbpo),
}
