"""Actors hold whole versions of a policy that is being changed."""

import threading

import torch
from torch import nn

from cadenza.learn.collectors import PolicySnapshots
from tests.unit.learn.collectors.collection_parts import NoisyPolicy


def fill(network: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.fill_(value)


def values(network: nn.Module) -> set[float]:
    tensors = (*network.parameters(), *network.buffers())
    return {float(value) for tensor in tensors for value in tensor.detach().flatten()}


def test_actor_follows_versions_not_the_live_weights():
    policy = NoisyPolicy()
    fill(policy, 1.0)
    snapshots = PolicySnapshots(policy)
    actor = snapshots.actor()
    fill(policy, 2.0)
    assert (actor.refresh(), values(actor.network)) == (0, {1.0})
    assert snapshots.publish() == 1
    assert values(actor.network) == {1.0}  # not before it asks
    assert (actor.refresh(), values(actor.network)) == (1, {2.0})
    fill(policy, 3.0)
    snapshots.publish()
    assert snapshots.publish() == snapshots.version == 3
    assert (actor.refresh(), values(actor.network)) == (3, {3.0})


def test_actors_draw_noise_of_their_own():
    policy = NoisyPolicy()
    snapshots = PolicySnapshots(policy)
    one, two, again = (snapshots.actor(noise_seed=s).network for s in (1, 2, 1))
    before = policy.generator.get_state()
    obs = torch.zeros(1, 3)
    noises = [network(obs).tolist() for network in (one, two, again)]
    assert noises[0] == noises[2]
    assert noises[0] != noises[1]
    assert torch.equal(policy.generator.get_state(), before)
    # A newer version does not rewind the noise.
    actor = snapshots.actor(noise_seed=1)
    first = actor.network(obs)
    snapshots.publish()
    actor.refresh()
    assert not torch.equal(actor.network(obs), first)


def test_no_version_is_ever_half_of_two():
    policy = nn.Linear(64, 64)
    fill(policy, 0.0)
    snapshots = PolicySnapshots(policy)
    actor = snapshots.actor()
    stop = threading.Event()
    mixed = []

    def act():
        while not stop.is_set():
            version = actor.refresh()
            if values(actor.network) != {float(version)}:
                mixed.append(version)

    thread = threading.Thread(target=act)
    thread.start()
    for version in range(1, 200):
        fill(policy, float(version))
        snapshots.publish()
    stop.set()
    thread.join()
    assert mixed == []
    assert actor.refresh() == 199
