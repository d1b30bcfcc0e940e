"""Versioned copies of a policy, so that one thread acts while another one trains.

The trainer publishes; an actor takes over the newest version between two steps. Nobody ever acts
with half-updated weights.
"""

import copy
import threading
from typing import Any

import torch
from torch import nn


class PolicySnapshots:
    """Hands a training policy's parameters and buffers to actors in other threads.

    The state of noise generators is not handed over: each actor draws its own.

    Attributes:
        version: Number of the newest snapshot; 0 is the policy at construction.
    """

    def __init__(self, policy: nn.Module) -> None:
        """Take the first snapshot of ``policy``, which only the publishing thread may change."""
        self._policy = policy
        self._lock = threading.Lock()
        self.version = 0
        self._tensors = self._copied()

    def publish(self) -> int:
        """Take a new snapshot and return its version; call it in the thread that trains."""
        tensors = self._copied()
        with self._lock:
            self._tensors = tensors
            self.version += 1
            return self.version

    def actor(self, *, noise_seed: int = 0) -> "SnapshotActor":
        """Return a network of its own that follows the snapshots.

        Args:
            noise_seed: Seed of the copy's noise generators, so that it does not repeat the noise of
                the policy that is trained.
        """
        return self.actor_of(copy.deepcopy(self._policy), noise_seed=noise_seed)

    def actor_of(self, network: nn.Module, *, noise_seed: int = 0) -> "SnapshotActor":
        """Let a copy of the policy that exists already follow the snapshots.

        Args:
            network: The copy; shares nothing with the policy.
            noise_seed: As in `actor`.
        """
        for generator in _generators(network):
            generator.manual_seed(noise_seed)
        actor = SnapshotActor(self, network)
        actor.take(*self.newest())
        return actor

    def newest(self) -> tuple[dict[str, torch.Tensor], int]:
        """Return the tensors of the newest snapshot, which nobody changes, and its version."""
        with self._lock:
            return self._tensors, self.version

    def _copied(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in _tensors(self._policy).items()}


class SnapshotActor:
    """A copy of a policy for one thread.

    Attributes:
        network: The copy; act with it only in the thread that calls `refresh`.
        version: Version of the snapshot it holds.
    """

    def __init__(self, snapshots: PolicySnapshots, network: nn.Module) -> None:
        self._snapshots = snapshots
        self.network = network
        self.version = -1

    def refresh(self) -> int:
        """Take over the newest snapshot, if there is a newer one, and return its version."""
        tensors, version = self._snapshots.newest()
        if version != self.version:
            self.take(tensors, version)
        return self.version

    def take(self, tensors: dict[str, torch.Tensor], version: int) -> None:
        """Copy ``tensors`` into the network."""
        with torch.no_grad():
            for name, tensor in _tensors(self.network).items():
                tensor.copy_(tensors[name])
        self.version = version


def _tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _generators(network: nn.Module) -> list[torch.Generator]:
    """Return the generators that the parts of a network hold as attributes."""
    values: list[Any] = [value for part in network.modules() for value in vars(part).values()]
    return [value for value in values if isinstance(value, torch.Generator)]
