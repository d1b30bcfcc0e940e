import math
from hashlib import sha256

import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.benchmark.policies import (
    EgoSeat,
    NetworkPolicy,
    RandomPolicy,
    actor_from_checkpoint,
    ego_seat,
    load_policy,
    policy_weights_sha256,
    register_policy,
)
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.errors import CheckpointError, InputError, UnknownNameError
from cadenza.learn.nn.gaussian_actor import GaussianActor

URI = "local://artifacts/x.pt"


def make_seat(observation_dim=10, bound=2.0, action_dim=2):
    high = np.full(action_dim, bound, dtype=np.float32)
    return EgoSeat(uid="ego", observation_dim=observation_dim, low=-high, high=high)


def observe(state):
    return {"agent": {"ego": {"state": np.asarray(state, dtype=np.float32)}}}


def make_actor(observation_dim=10, action_dim=2):
    generator = torch.Generator().manual_seed(7)
    return GaussianActor(observation_dim, action_dim, hidden_sizes=[8, 8], generator=generator)


def store(folder, state, uri=URI):
    metadata = CheckpointMetadata(run_id="r", seed=0, step=1, git_sha="x", pyproject_hash="y")
    save_checkpoint(state_dict=state, uri=uri, metadata=metadata, artifacts_root=folder)


def load(source, folder, **changes):
    return load_policy(source, **({"seat": make_seat(), "artifacts_root": folder} | changes))


def test_zero_policy_returns_fresh_zeros(tmp_path):
    policy = load("zero", tmp_path)
    first = policy.act(observe(np.ones(10)))
    first += 1.0
    np.testing.assert_array_equal(policy.act(observe(np.ones(10))), np.zeros(2, np.float32))


def test_random_policy_repeats_by_seed_and_fills_the_bounds(tmp_path):
    policy = load("random", tmp_path)
    policy.reset(seed=3)
    first = np.array([policy.act({}) for _ in range(500)])
    policy.reset(seed=3)
    np.testing.assert_array_equal(first, np.array([policy.act({}) for _ in range(500)]))
    policy.reset(seed=4)
    assert not np.array_equal(first[0], policy.act({}))
    assert first.dtype == np.float32
    assert -2.0 <= first.min() < -1.9
    assert 1.9 < first.max() <= 2.0


def test_goal_policy_is_a_damped_pull_within_the_bounds(tmp_path):
    policy = load("goal_pd", tmp_path)
    state = [9, 9, 0.25, -0.5, 1.0, -0.5, 9, 9, 9, 9]
    # pull = 1 * goal - 2 * velocity = (1 - 0.5, -0.5 + 1)
    np.testing.assert_allclose(policy.act(observe(state)), [0.5, 0.5], rtol=1e-6)
    far = [0, 0, 0, 0, 7.0, -7.0, 0, 0, 0, 0]
    np.testing.assert_array_equal(policy.act(observe(far)), np.array([2.0, -2.0], np.float32))


def test_policy_of_an_actor_is_its_mean():
    actor = make_actor()
    policy = NetworkPolicy(actor.network(), make_seat())
    rng = np.random.default_rng(0)
    for _ in range(5):
        state = rng.normal(size=10).astype(np.float32)
        with torch.no_grad():
            expected = actor(torch.from_numpy(state)[None])[0].numpy()
        # A block of rows is multiplied in another order than one.
        np.testing.assert_allclose(policy.act(observe(state)), expected, rtol=1e-5, atol=1e-8)


def test_checkpoint_becomes_the_policy_that_was_saved(tmp_path):
    actor = make_actor()
    store(tmp_path, {"actor": actor.state_dict(), "critic": {}})
    digest = policy_weights_sha256(URI, artifacts_root=tmp_path)
    policy = load(URI, tmp_path, weights_sha256=digest)
    state = observe(np.arange(10))
    same = NetworkPolicy(actor.network(), make_seat())
    np.testing.assert_array_equal(policy.act(state), same.act(state))


def test_checkpoint_brings_the_bound_of_its_deviation(tmp_path):
    state = make_actor().state_dict()
    assert (
        actor_from_checkpoint({"actor": state, "critic": {}}, source="x").max_standard_deviation
        == 0.5
    )
    wide = actor_from_checkpoint({"actor": state, "critic": {}, "actor_max_std": 1.5}, source="x")
    # log_std starts at 1: 1.5 sigmoid(1)
    assert wide.standard_deviation().tolist() == pytest.approx([1.5 / (1.0 + math.exp(-1.0))] * 2)
    with pytest.raises(
        CheckpointError, match="expected 'actor_max_std' to be a number, got 'wide'"
    ):
        actor_from_checkpoint({"actor": state, "critic": {}, "actor_max_std": "wide"}, source="x")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_actor_that_harl_saved_plays_as_its_file_or_its_checkpoint_says(tmp_path, activation):
    state = make_actor().state_dict()
    x = torch.linspace(-1.0, 1.0, 10)
    norm = torch.nn.functional.layer_norm
    hidden = norm(x, (10,))
    for n in (0, 3):
        hidden = state[f"base.mlp.fc.{n}.weight"] @ hidden + state[f"base.mlp.fc.{n}.bias"]
        hidden = norm(getattr(torch, activation)(hidden), (8,))
    head = "act.action_out.fc_mean"
    wanted = state[f"{head}.weight"] @ hidden + state[f"{head}.bias"]
    if activation == "relu":  # HARL's default
        (tmp_path / "artifacts").mkdir()
        torch.save(state, tmp_path / "artifacts" / "x.pt")
    else:
        store(tmp_path, {"actor": state, "activation_func": activation})
    digest = policy_weights_sha256(URI, artifacts_root=tmp_path, task="crossing")
    assert digest == sha256((tmp_path / "artifacts" / "x.pt").read_bytes()).hexdigest()
    policy = load(URI, tmp_path, weights_sha256=digest)
    np.testing.assert_allclose(policy.act(observe(x)), wanted.numpy(), rtol=1e-5, atol=1e-7)
    store(tmp_path, {"actor": state})
    with pytest.raises(CheckpointError, match="name the activation"):
        load(URI, tmp_path)


def test_checkpoint_of_another_task_is_refused(tmp_path):
    metadata = CheckpointMetadata(
        run_id="r", seed=0, step=1, git_sha="x", pyproject_hash="y", extra={"task": "push"}
    )
    state = {"actor": make_actor().state_dict(), "critic": {}}
    save_checkpoint(state_dict=state, uri=URI, metadata=metadata, artifacts_root=tmp_path)
    with pytest.raises(CheckpointError, match="task 'crossing', got one trained on 'push'"):
        policy_weights_sha256(URI, artifacts_root=tmp_path, task="crossing")
    digest = policy_weights_sha256(URI, artifacts_root=tmp_path, task="push")
    store(tmp_path, state)  # the same weights by a program that names no task
    assert policy_weights_sha256(URI, artifacts_root=tmp_path, task="crossing") == digest


class _Env:
    def __init__(self, state_shape, action_space):
        box = spaces.Box(-1.0, 1.0, state_shape)
        self.observation_space = {"agent": {"ego": {"state": box}}}
        self.action_space = {"ego": action_space}


def test_ego_seat_reads_sizes_and_bounds():
    seat = ego_seat(_Env((6,), spaces.Box(-3.0, 2.0, (2,))), "ego")
    assert (seat.uid, seat.observation_dim, seat.action_dim) == ("ego", 6, 2)
    np.testing.assert_array_equal(seat.low, [-3.0, -3.0])
    np.testing.assert_array_equal(seat.high, [2.0, 2.0])


BATCH, CHOICES = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(4, start=2)
SEVERAL = spaces.MultiDiscrete([3, 3])


def test_seat_with_choices_is_played_by_their_numbers():
    seat = ego_seat(_Env((6,), CHOICES), "ego")
    assert (seat.low.tolist(), seat.high.tolist(), seat.chooses) == ([2.0], [5.0], True)
    policy = RandomPolicy(seat)
    policy.reset(seed=0)
    drawn = np.array([policy.act({}) for _ in range(200)])
    assert drawn.shape == (200, 1)
    assert sorted(set(drawn[:, 0].tolist())) == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("attempt", "error", "told"),
    [
        (
            lambda root: load("random", root, seat=make_seat(bound=np.inf)),
            InputError,
            "expected finite action bounds",
        ),
        (lambda root: load("goal_pd", root, seat=make_seat(5)), InputError, "expected the crossin"),
        (
            lambda root: load("goal_pd", root, seat=make_seat(action_dim=3)),
            InputError,
            "expected the crossing task",
        ),
        (
            lambda root: NetworkPolicy(make_actor(observation_dim=14).network(), make_seat()),
            CheckpointError,
            "it was trained on another task",
        ),
        (
            lambda root: NetworkPolicy(make_actor(action_dim=3).network(), make_seat()),
            CheckpointError,
            "it was trained on another task",
        ),
        (lambda root: load(URI, root, weights_sha256="ab" * 32), CheckpointError, "expected the w"),
        (lambda root: load("local://artifacts/critic.pt", root), CheckpointError, "expected a tra"),
        (
            lambda root: policy_weights_sha256("local://none.pt", artifacts_root=root),
            CheckpointError,
            "not found",
        ),
        (lambda root: load("nobody", root), UnknownNameError, "'nobody': expected local://.* goal"),
        (
            lambda root: policy_weights_sha256("nobody", artifacts_root=root),
            UnknownNameError,
            "'nobody'",
        ),
        (lambda root: register_policy("zero"), InputError, "'zero', which is taken"),
        (lambda root: ego_seat(_Env((4, 6), BATCH), "ego"), InputError, "expected the state space"),
        (lambda root: ego_seat(_Env((6,), SEVERAL), "ego"), InputError, "the action space"),
        (
            lambda root: NetworkPolicy(
                make_actor(observation_dim=6, action_dim=1).network(),
                ego_seat(_Env((6,), CHOICES), "ego"),
            ),
            CheckpointError,
            "expected a policy of 4 choices .* got one of continuous",
        ),
    ],
)
def test_policies_and_seats_that_do_not_fit_are_refused(tmp_path, attempt, error, told):
    store(tmp_path, {"actor": make_actor().state_dict(), "critic": {}})
    store(tmp_path, {"critic": {}}, uri="local://artifacts/critic.pt")
    with pytest.raises(error, match=told):
        attempt(tmp_path)
