"""n-step returns and priorities of the lock-step memory, beside a reference that loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.memory.builder import TransitionMemory

SEED = st.integers(0, 2**32 - 1)


def memory(num_envs=1, **changes):
    values = {"observation_dim": 1, "action_dim": 1, "max_transitions": 100_000, "seed": 0}
    return TransitionMemory(num_envs=num_envs, **{**values, **changes})


def lives(rng, num_envs, steps, end_probability, pause_probability=0.2):
    """Play; return the transitions of each episode and how it ended. Observations are unique."""
    episodes, open_, seen = [], [[] for _ in range(num_envs)], np.arange(num_envs) * 10_000.0
    calls = []
    for _ in range(steps):
        valid = rng.random(num_envs) >= pause_probability
        ends = valid & (rng.random(num_envs) < end_probability)
        final = ends & (rng.random(num_envs) < 0.5)
        rewards, following = rng.normal(size=num_envs), seen + 1
        calls.append((seen.copy(), rewards, following.copy(), final, ends, valid))
        for env in np.flatnonzero(valid):
            open_[env].append((seen[env], rewards[env], following[env]))
            if ends[env]:
                episodes.append((open_[env], "terminated" if final[env] else "truncated"))
                open_[env] = []
        seen = np.where(valid, following + ends, seen)  # a reset leads to a new state
    return calls, episodes + [(steps, "goes on") for steps in open_]


def play(store, calls):
    for seen, rewards, following, final, ends, valid in calls:
        store.add(
            seen[:, None],
            -seen[:, None],
            rewards,
            terminated=final,
            boundaries=ends,
            next_observations=following[:, None],
            valid=valid,
        )


def reference(episodes, n, gamma):
    """Return (R, gamma^m, mask, next) by the state of each step whose sum is complete."""
    expected = {}
    for steps, ending in episodes:
        for k in range(len(steps)):
            m = min(n, len(steps) - k)
            if ending == "goes on" and m < n:
                continue
            total = sum(gamma**i * steps[k + i][1] for i in range(m))
            final = ending == "terminated" and k + m == len(steps)
            expected[steps[k][0]] = (total, gamma**m, 0.0 if final else 1.0, steps[k + m - 1][2])
    return expected


@given(
    seed=SEED,
    n=st.integers(2, 6),
    gamma=st.sampled_from([1.0, 0.99, 0.5]),
    num_envs=st.integers(1, 3),
    end=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    exponent=st.sampled_from([0.0, 0.7]),
)
@settings(max_examples=40)
def test_every_sample_is_the_sum_that_a_loop_finds(seed, n, gamma, num_envs, end, exponent):
    rng = np.random.default_rng(seed)
    calls, episodes = lives(rng, num_envs, 90, end)
    store = memory(num_envs, n_step=n, gamma=gamma, priority_exponent=exponent)
    play(store, calls)
    expected = reference(episodes, n, gamma)
    batch = store.sample(500)
    states = batch["observation"]["obs"][:, 0].tolist()
    rows = [batch[name][:, 0].tolist() for name in ("rewards", "discounts", "masks")]
    found = zip(*rows, batch["next_observation"]["obs"][:, 0].tolist(), strict=True)
    for state, got in zip(states, found, strict=True):
        assert got == pytest.approx(expected[state], rel=1e-5, abs=1e-5)
    assert batch["actions"][:, 0].tolist() == [-state for state in states]
    waiting = sum(ending == "goes on" for _, ending in episodes)
    assert len(expected) - 32 * waiting < store.size() <= len(expected)


def test_each_step_is_stored_once_also_over_the_ends_of_parts():
    store = memory(n_step=4, gamma=0.9)
    calls, episodes = lives(np.random.default_rng(0), 1, 500, 0.01)
    play(store, calls)
    rows = [store.table.episode(i) for i in store.table.identities()]
    stored = [state for row in rows for state in row["obs"][: len(row["rewards"]), 0].tolist()]
    expected = list(reference(episodes, 4, 0.9))
    assert stored == expected[: len(stored)]
    assert len(stored) > len(expected) - 32


def test_a_saved_memory_goes_on_with_the_same_sums():
    calls, _ = lives(np.random.default_rng(5), 2, 200, 0.05)
    one, other = (memory(2, n_step=3, gamma=0.9, priority_exponent=0.6) for _ in range(2))
    play(one, calls[:117])
    other.load_state_dict(deserialise(serialise(one.state_dict()), max_bytes=10**8))
    for store in (one, other):
        play(store, calls[117:])
    mine, theirs = one.sample(300), other.sample(300)
    for name in ("rewards", "discounts", "masks", "sample_weights", "sample_ids"):
        assert torch.equal(mine[name], theirs[name])
    for changes in ({"n_step": 4, "gamma": 0.9}, {"n_step": 3, "gamma": 0.5}, {}):
        with pytest.raises(CheckpointError, match="n_step and gamma"):
            memory(2, **changes).load_state_dict(one.state_dict())


@given(seed=SEED, exponent=st.sampled_from([0.5, 1.0]), n=st.sampled_from([1, 3]))
@settings(max_examples=10)
def test_draws_and_weights_follow_the_errors(seed, exponent, n):
    rng = np.random.default_rng(seed)
    store = memory(
        n_step=n, gamma=0.9, priority_exponent=exponent, importance_exponent=0.5, seed=seed
    )
    calls, _ = lives(rng, 1, 10, 0.0, 0.0)
    calls[-1][4][:] = True  # the episode ends
    play(store, calls)
    first = store.sample(200)
    states = first["observation"]["obs"][:, 0].tolist()
    errors = {float(state): rng.uniform(0.1, 3.0) for state in range(10)}
    given_ = torch.tensor([errors[state] * (-1) ** int(state) for state in states])
    assert store.update_priorities(first["sample_ids"], given_) == 200
    assert sorted(set(states)) == sorted(errors)
    batch = store.sample(20_000)
    drawn = batch["observation"]["obs"][:, 0]
    mass = np.array([errors[state] ** exponent for state in range(10)])
    shares = torch.bincount(drawn.long(), minlength=10).numpy() / 20_000
    np.testing.assert_allclose(shares, mass / mass.sum(), atol=0.02)
    weights = (mass / mass.min()) ** -0.5
    np.testing.assert_allclose(batch["sample_weights"], weights[drawn.long()], rtol=1e-4)


def test_settings_out_of_range_are_refused():
    for changes in (
        {"n_step": 0},
        {"n_step": 3},
        {"n_step": 3, "gamma": 1.5},
        {"priority_exponent": -1.0},
        {"priority_exponent": 0.5, "importance_exponent": 2.0},
    ):
        with pytest.raises(ConfigurationError):
            memory(**changes)
    uniform, prioritized = memory(), memory(priority_exponent=1.0)
    ids = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ConfigurationError, match="PrioritizedSampleStrategy"):
        uniform.update_priorities(ids, torch.ones(2))
    with pytest.raises(InputError, match="finite numbers"):
        prioritized.update_priorities(ids, torch.tensor([1.0, torch.nan]))
