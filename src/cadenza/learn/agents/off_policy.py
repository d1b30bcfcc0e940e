"""What off-policy learners share: streams, networks behind encoders, their policy and their state.

Targets: y = r + d m V', with m = 0 where the task ended with the step and d = γ; of n steps, r is
         their discounted sum and d = γ^n, or γ^k after the last k steps of an episode.
Axes:    B = batch, N = environments, O = observation, A = action components,
         W = width of an action as the memory stores it (A, or 1 for an index).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.staging import Send, on_device, sending_to
from cadenza.learn.agents.updates import Adam, Figures, WholeUpdate, soft_update
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.builder import OBSERVATION_KEY, TransitionMemory
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import EncodedNetwork, EncoderFactory, Network, with_encoder
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network
from cadenza.learn.nn.running_normalizer import Normalization
from cadenza.learn.settings import OffPolicyConfig, SoloReplayConfig, value_at

#: Layout version of `OffPolicyLearner.state_dict`; 2 had one entry per callback of the engine.
STATE_VERSION: Final = 3


class ReplayLearner(Protocol):
    """Acts on flat observations and learns from a memory; actions are in [−1, 1]."""

    #: W, and the element type of stored actions.
    action_width: int
    action_dtype: type[np.generic]
    #: What it scales; it learns of what is seen and paid by its caller.
    normal: Normalization

    @property
    def greedy(self) -> nn.Module:
        """The policy without chance: (B, O) to actions in [−1, 1], (B, A), or to choices, (B,)."""
        ...

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return exploring actions as the memory stores them, (N, W), for states (N, O).

        ``frames`` are the environment frames done, for exploration that fades.
        """
        ...

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniformly drawn actions as the memory stores them, (``rows``, W)."""
        ...

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return stored actions as vectors in [−1, 1], (N, A)."""
        ...

    def anneal(self, steps: int) -> dict[str, float]:
        """Take the learning rate of after ``steps`` environment steps; return it by name."""
        ...

    def learn(self, memory: TransitionMemory) -> Figures:
        """Do one update; return figures of it by name."""
        ...

    def policy(self, low: Float32Array, high: Float32Array, **fields: Any) -> PortableNetwork:
        """Return the greedy policy with actions scaled to [low, high], (A,) each."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, memory excepted."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


class Transitions(NamedTuple):
    """States before and after, (B, O), actions (B, W), rewards and masks (B, 1).

    Of n steps there are ``discounts``, (B, 1), of a prioritised memory ``weights``, (B, 1).
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    next_states: Tensor
    masks: Tensor
    discounts: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def of(cls, batch: Mapping[str, Any], send: Send, normal: Normalization) -> "Transitions":
        """Return a batch of `TransitionMemory`, as a learner sees it and sent to it.

        It is scaled where it is, so that no device waits for the moments.
        """
        found: list[Tensor] = [
            normal.rescale(batch["observation"][OBSERVATION_KEY]),
            batch["actions"],
            normal.rewards.rescale(batch["rewards"]),
            normal.rescale(batch["next_observation"][OBSERVATION_KEY]),
            batch["masks"],
        ]
        further = {
            field: batch[name].view(-1, 1)
            for field, name in (("discounts", "discounts"), ("weights", "sample_weights"))
            if name in batch
        }
        sent = send([*found, *further.values()])
        later = dict(zip(further, sent[len(found) :], strict=True))
        return cls(*sent[: len(found)], **later)


def td_target(rewards: Tensor, masks: Tensor, values: Tensor, discount: float | Tensor) -> Tensor:
    """Return r + d m V', (B, 1); if d is a number, rounded once."""
    if isinstance(discount, Tensor):
        return rewards + discount * masks * values
    return torch.add(rewards, values * masks, alpha=discount)


def mean_loss(rows: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of rows, (B, 1), each times its weight."""
    return rows.mean() if weights is None else (weights * rows).mean()


#: Figure of an update on weighted transitions that is no scalar: Q - y of each, (B,).
TD_ERRORS: Final = "td_errors"


Config = TypeVar("Config", bound=SoloReplayConfig)


class OffPolicyLearner(ABC, Generic[Config]):
    """Base of learners from a replay memory; a subclass has `update` and `act`.

    Args:
        name: Part of the stream names ``learn.<name>.torch`` and ``learn.<name>.noise``.
        config: Settings of the updates.
        seed: Root of those streams.
        encoder: Makes the first part of every network.
        device: Where networks learn; weights and noise are drawn on the CPU, alike for all.
    """

    action_dtype: type[np.generic] = np.float32
    greedy: nn.Module
    #: Names of the target networks in states of version 2.
    TARGETS_BEFORE: ClassVar[Mapping[str, str]]

    def __init__(
        self,
        name: str,
        observation_dim: int,
        action_width: int,
        config: Config,
        *,
        seed: int,
        encoder: EncoderFactory | None,
        device: torch.device | str,
    ) -> None:
        self.config: Config = config
        self.observation_dim = observation_dim
        self.action_width = action_width
        self.device: torch.device = torch.device(device)
        self._send = sending_to(self.device)
        self.updates: int = 0
        self.normal: Normalization = normalization(config, observation_dim)
        self._name = name
        self._make_encoder = encoder
        self.weights: torch.Generator = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.torch", root_seed=seed).integer_seed()
        )
        self.noise: torch.Generator = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.noise", root_seed=seed).integer_seed()
        )

    def _encoded(
        self, build: Callable[[int], Network]
    ) -> tuple[Network, nn.Module, list[nn.Module]]:
        """Return what ``build`` makes of a width, alone and behind an encoder, and that one.

        A ReLU after a linear layer works in place: what a forward hook of that layer keeps is
        rectified afterwards.
        """
        network, encoder = with_encoder(self._make_encoder, self.observation_dim, build)
        for stack in network.modules():
            if isinstance(stack, nn.Sequential):
                for before, layer in pairwise(stack):
                    if isinstance(before, nn.Linear) and isinstance(layer, nn.ReLU):
                        layer.inplace = True
        return network, EncodedNetwork(encoder[0], network) if encoder else network, encoder

    def _own(self, networks: Mapping[str, nn.Module], targets: Mapping[str, nn.Module]) -> None:
        """Take the networks by name, and targets by the name of the network that they follow."""
        self.networks: dict[str, nn.Module] = dict(networks)
        self.targets: dict[str, nn.Module] = dict(targets)
        if scaling := self.normal.layers():
            self.greedy = nn.Sequential(*scaling, self.greedy)
        for module in (*networks.values(), *targets.values(), self.greedy):
            module.to(self.device)
        self._followed = _parameters(networks[name] for name in targets)
        self._following = _parameters(targets.values())
        self._copied = [b for name in targets for b in networks[name].buffers()]
        self._copies = [b for target in targets.values() for b in target.buffers()]

    def _run(self, update: Callable[..., Figures], **optimizers: Adam) -> None:
        """Take the optimisers by name, and the update in which they step; see `WholeUpdate`."""
        config = self.config
        self.optimizers = optimizers
        self._whole = WholeUpdate(
            update,
            optimizers.values(),
            compile=config.compile,
            precision=config.precision,
            device=self.device,
        )

    def _adam(self, **networks: nn.Module | list[Tensor]) -> Adam:
        """Return an optimiser of networks, or tensors, by the name of the loss that trains them."""
        groups = {
            name: list(part.parameters()) if isinstance(part, nn.Module) else part
            for name, part in networks.items()
        }
        rate = value_at(self.config.learning_rate, 0)
        return Adam(rate, self.config.max_gradient_norm, **groups)

    def anneal(self, steps: int) -> dict[str, float]:
        """Take the learning rate of after ``steps`` environment steps; return it by name."""
        rate = value_at(self.config.learning_rate, steps)
        for optimizer in self.optimizers.values():
            optimizer.learning_rate = rate
        return {"learning_rate": rate}

    @abstractmethod
    def update(self, batch: Mapping[str, Any]) -> Figures:
        """Do one update on a batch of the memory; return figures of it by name."""

    @abstractmethod
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return exploring actions, (N, W); see `ReplayLearner`."""

    def _follow(self) -> None:
        """Move the targets."""
        soft_update(self._following, self._followed, self.config.tau)
        for copy, buffer in zip(self._copies, self._copied, strict=True):
            copy.copy_(buffer)

    def _rows(self, states: Float32Array) -> Tensor:
        """Return states as a tensor on the learner's device, scaled."""
        return self.normal.rescale(on_device(states, self.device))

    def _draw(self, rows: int) -> Tensor:
        """Return the next standard normal draws, (``rows``, A), on the learner's device."""
        drawn = torch.randn((rows, self.action_width), generator=self.noise)
        return drawn.to(self.device, non_blocking=True)

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniform actions in [−1, 1], (``rows``, A)."""
        drawn = torch.rand((rows, self.action_width), generator=self.noise)
        return (drawn * 2.0 - 1.0).numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the actions themselves."""
        return stored

    def policy(self, low: Float32Array, high: Float32Array, **fields: Any) -> PortableNetwork:
        """Return the greedy policy with actions scaled to [low, high], (A,) each.

        ``fields`` are further ones of `PortableNetwork`.

        Raises:
            ConfigurationError: A module of one's own is in it.
        """
        output = Output(kind="unit", low=low, high=high)
        return flat_network(layers_of(self.greedy), self.observation_dim, output, **fields)

    def learn(self, memory: TransitionMemory) -> Figures:
        """Do one update of everything that is due; return figures of it by name."""
        batch = memory.sample(self.config.batch_size)
        return update_priorities(memory, batch, self.update(batch))

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers, counts and the noise: tensors and JSON scalars."""
        return {
            "version": STATE_VERSION,
            "algorithm": self._name,
            "mode": self._whole.mode,
            "networks": {name: net.state_dict() for name, net in self.networks.items()},
            "targets": {name: net.state_dict() for name, net in self.targets.items()},
            "optimizers": {name: adam.state_dict() for name, adam in self.optimizers.items()},
            "updates": self.updates,
            "noise": self.noise.get_state(),
            **self.normal.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another algorithm, version or mode, incomplete, or of
                other sizes.
        """
        found = (state.get("version"), state.get("algorithm"))
        if found[0] not in (2, STATE_VERSION) or found[1] != self._name:
            raise CheckpointError(
                f"{self._name}: expected a state of this algorithm, version {STATE_VERSION} or 2, "
                f"got {found[1]!r}, version {found[0]!r}."
            )
        with complete_state(self._name, "a learner of these sizes"):
            if found[0] == 2:
                state = {**state, **self._from_callbacks(state["callbacks"])}
                state["updates"] = state["bp_step"]
            self._whole.require(state["mode"])
            self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        for name, network in self.networks.items():
            network.load_state_dict(state["networks"][name])
        for name, target in self.targets.items():
            target.load_state_dict(state["targets"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.updates = int(state["updates"])
        self.normal.load_state_dict(state)
        self.noise.set_state(state["noise"].cpu())  # last: networks that draw share it

    def _from_callbacks(self, callbacks: Mapping[str, Any]) -> dict[str, Any]:
        """Return parts of a state of version 2, of the engine's callbacks, as parts of this one."""
        targets = callbacks["QTarget"]["network_state_dict"]
        return {
            "mode": callbacks["UpdateStep"]["mode"],
            "networks": {name: callbacks[name]["network_state_dict"] for name in self.networks},
            "targets": {
                name: targets[key] if key else targets for name, key in self.TARGETS_BEFORE.items()
            },
            "optimizers": {
                name: optimizer.from_torch(
                    [callbacks[loss]["optimizer_state_dict"]["state"] for loss in optimizer.groups]
                )
                for name, optimizer in self.optimizers.items()
            },
        }


def normalization(config: OffPolicyConfig, observation_dim: int) -> Normalization:
    """Return what settings say of scaling."""
    gamma = config.gamma if config.normalize_rewards else None
    return Normalization(observation_dim, observations=config.normalize_observations, gamma=gamma)


def update_priorities(
    memory: TransitionMemory, batch: Mapping[str, Any], figures: Figures
) -> Figures:
    """Tell a prioritised memory the errors of its ``batch``; return the other figures."""
    errors = figures.pop(TD_ERRORS, None)
    if errors is not None:
        memory.update_priorities(batch["sample_ids"], errors.cpu())
    return figures


def _parameters(networks: Iterable[nn.Module]) -> list[Tensor]:
    return [parameter for network in networks for parameter in network.parameters()]
