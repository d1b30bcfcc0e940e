"""Ego learners that replay: SAC, HL-Gauss SAC, TD3, HATD3, DQN and MBPO, beside a frozen partner.

Every ``train_every`` frames the learner updates from the replay memory, from within
`observe`; `update` only reports. The memory holds the ego's nominal action: a safety filter between
it and the environment is part of what is learned about.

Axes:        N = environments, O = own state, S = row (own or joint state), A = action.
Randomness:  streams of the learner, see `cadenza.learn.agents`; ``training.ego_replay.memory``
             samples the memory.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

import torch
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_trainer import EgoSeatTrainer, SeatRows
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.device import deterministic_algorithms
from cadenza.core.runlog import EventLogger, log_scalars
from cadenza.core.seeding import derive_substream
from cadenza.core.types import PartnerLike
from cadenza.learn.agents.dqn import DQNLearner, action_grid
from cadenza.learn.agents.hatd3 import CentralTD3Learner
from cadenza.learn.agents.hlgauss import HLGaussLearner
from cadenza.learn.agents.mbpo import MBPOLearner
from cadenza.learn.agents.off_policy import ReplayLearner
from cadenza.learn.agents.sac import SACLearner
from cadenza.learn.agents.td3 import TD3Learner
from cadenza.learn.env.stepping import VectorStep
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
        device: torch.device,
        logger: EventLogger | None = None,
    ) -> None:
        super().__init__(cfg, seat, learner, logger)
        self._learner, self._device = learner, device
        self._settings = cast("OffPolicyConfig", cfg.section)
        stream = derive_substream("training.ego_replay.memory", root_seed=cfg.seed)
        self._memory = TransitionMemory(
            observation_dim=seat.row_dim,
            action_dim=learner.action_width,
            num_envs=cfg.env.num_envs,
            max_transitions=self._settings.memory_size,
            seed=stream.integer_seed(),
            action_dtype=learner.action_dtype,
            **self._settings.memory_options,
        )
        #: Figures since the last report; tensors stay where they are until then.
        self._figures: dict[str, list[Any]] = {}
        self._updates = 0

    @classmethod
    def _parts(
        cls, cfg: EgoAHTConfig, env: Any, partner: PartnerLike, ego_uid: str
    ) -> dict[str, Any]:
        del partner
        name, device = cfg.algo.removeprefix("ego_aht_"), cfg.device()
        seat = cls._seat_of(cfg, env, ego_uid, joint=name in _CENTRAL, discrete=name == "dqn")
        return {"seat": seat, "learner": _learner_of(cfg, name, seat, device), "device": device}

    def _greedy(self, own: Float32Array) -> Float32Array:
        require_finite("EgoReplayTrainer.act: state", own)
        with torch.no_grad():
            states = torch.tensor(own, device=self._device)
            greedy = self._learner.greedy(states).cpu().numpy()
        return self._within(greedy.reshape(len(own), -1))

    def _draw(self, own: Float32Array, rows: Float32Array) -> Float32Array:
        del own
        require_finite("EgoReplayTrainer.act: state", rows)
        self._learner.normal.see(rows)
        if self._frames < self._settings.warmup_steps:
            stored = self._learner.random_actions(len(rows))
        else:
            stored = self._learner.act(rows, frames=self._frames)
        self._drawn = rows, stored
        return self._within(stored)

    def _record(self, step: VectorStep) -> None:
        rows, stored = self._drawn
        self._memory.add(
            rows,
            stored,
            step.rewards,
            terminated=step.terminated,
            boundaries=step.boundaries,
            next_observations=step.following,
        )
        self._learner.normal.rewards.scale(step.rewards, step.boundaries)

    def _after_record(self, count: int) -> None:
        """Do the updates that the last step made due."""
        settings = self._settings
        every = settings.train_every
        due = self._frames // every - (self._frames - count) // every
        if self._frames <= settings.warmup_steps or due == 0 or self._memory.size() == 0:
            return
        annealed = self._learner.anneal(self._frames)
        reproducible = self._device.type == "cpu" and self._cfg.runtime.deterministic_torch
        with deterministic_algorithms() if reproducible else nullcontext():
            for _ in range(due * settings.updates):
                figures = {**self._learner.learn(self._memory), **annealed}
                for name, value in figures.items():
                    self._figures.setdefault(name, []).append(value)
                self._updates += 1

    def update(self) -> None:
        """Report the figures of the updates since the last report, when there were any."""
        figures = {name: sum(told) / len(told) for name, told in self._numbers().items()}
        self._figures = {}
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
        """Forget the running episodes."""
        self._memory.drop_open_episodes()
        self._learner.normal.rewards.forget()

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

    def _numbers(self) -> dict[str, list[float]]:
        return {name: [float(one) for one in told] for name, told in self._figures.items()}

    def _progress_state(self) -> dict[str, Any]:
        return {
            "memory": self._memory.state_dict(),
            "sums": self._numbers(),
            "updates": self._updates,
        }

    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        self._memory.load_state_dict(state["memory"])
        self._figures = {name: list(values) for name, values in state["sums"].items()}
        self._updates = int(state["updates"])


def _learner_of(
    cfg: EgoAHTConfig, name: str, seat: SeatRows, device: torch.device
) -> ReplayLearner:
    """Return the learner of the algorithm ``name``; DQN without choices chooses on a grid.

    Raises:
        ConfigurationError: DQN's grid has too many actions.
    """
    if name == "dqn":
        choices = action_grid(seat.action_dim, seat.choices or cfg.dqn.action_bins)
        return DQNLearner(
            observation_dim=seat.row_dim,
            choices=choices,
            config=cfg.dqn,
            seed=cfg.seed,
            device=device,
        )
    return _LEARNERS[name](
        observation_dim=seat.observation_dim,
        action_dim=seat.action_dim,
        config=cfg.section,
        seed=cfg.seed,
        device=device,
        **({"joint_dim": seat.row_dim} if name in _CENTRAL else {}),
    )


#: Learners of continuous actions by name; all read the section of that name.
_LEARNERS: Final[dict[str, Callable[..., ReplayLearner]]] = {
    "sac": SACLearner,
    "hlgauss": HLGaussLearner,
    "td3": TD3Learner,
    "hatd3": CentralTD3Learner,
    "mbpo": MBPOLearner,
}
#: Those whose critics see all seats.
_CENTRAL: Final = ("hatd3",)
