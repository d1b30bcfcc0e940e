"""Assembled learners: they solve a bandit, resume to the bit, and give their policy away."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.learners.dqn import DQNLearner, DQNNumbers, action_grid
from cadenza.learn.learners.hatd3 import CentralTD3Learner
from cadenza.learn.learners.mbpo import ImaginedTransitions, MBPOLearner, MBPONumbers
from cadenza.learn.learners.replay_learner import LearnerNumbers
from cadenza.learn.learners.sac import HLGaussNumbers, SACLearner, SACNumbers
from cadenza.learn.learners.td3 import TD3Learner, TD3Numbers
from cadenza.learn.memory.transitions import TransitionMemory

NUMBERS = LearnerNumbers(learning_rate=3e-3, batch_size=64, hidden_sizes=(32,), tau=0.05)
SIZES = {"observation_dim": 2, "action_dim": 1, "numbers": NUMBERS}
LOW, HIGH = np.array([-1.0], np.float32), np.array([1.0], np.float32)
MBPO = MBPONumbers(
    ensemble_size=2,
    num_elites=1,
    model_hidden=16,
    model_layers=1,
    model_updates=20,
    rollout_every=5,
    rollout_states=20,
    rollout_length=2,
    imagined_size=200,
)
BUILDERS = {
    "sac": lambda seed=0: SACLearner(**SIZES, sac=SACNumbers(initial_alpha=0.05), seed=seed),
    "hlgauss": lambda seed=0: SACLearner(
        **SIZES,
        sac=SACNumbers(initial_alpha=0.05),
        histogram=HLGaussNumbers(min_value=-5.0, max_value=1.0, bins=31),
        seed=seed,
    ),
    "td3": lambda seed=0: TD3Learner(**SIZES, td3=TD3Numbers(exploration_noise=0.3), seed=seed),
    "hatd3": lambda seed=0: CentralTD3Learner(
        **SIZES, joint_dim=2, td3=TD3Numbers(exploration_noise=0.3), seed=seed
    ),
    "dqn": lambda seed=0: DQNLearner(
        **SIZES, dqn=DQNNumbers(action_bins=9, epsilon_frames=300), seed=seed
    ),
    "mbpo": lambda seed=0: MBPOLearner(
        **SIZES, sac=SACNumbers(initial_alpha=0.05), mbpo=MBPO, seed=seed
    ),
}


def memory_of(learner):
    return TransitionMemory(
        observation_dim=2,
        action_dim=learner.action_width,
        num_envs=8,
        max_transitions=5_000,
        seed=0,
        action_dtype=learner.action_dtype,
    )


def train(learner, memory, rng, steps, *, start=0, final=True):
    """One-step episodes; reward = −(a − s)², the second entry of the state is noise."""
    figures = {}
    for t in range(start, start + steps):
        states = rng.uniform(-0.8, 0.8, (8, 2)).astype(np.float32)
        stored = learner.random_actions(8) if t < 20 else learner.act(states, frames=8 * t)
        actions = learner.to_unit(stored)
        assert actions.min() >= -1.0
        assert actions.max() <= 1.0
        ends = np.ones(8, bool)
        memory.add(
            states,
            stored,
            -((actions[:, 0] - states[:, 0]) ** 2),
            terminated=ends & final,
            boundaries=ends,
            next_observations=states,
        )
        figures = learner.learn(memory)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_bandit_is_solved(name):
    learner = BUILDERS[name]()
    train(learner, memory_of(learner), np.random.default_rng(0), 350)
    states = np.array([[-0.6, 0.0], [0.0, 0.0], [0.6, 0.0]], np.float32)
    actions = learner.policy(LOW, HIGH).act(states)[:, 0]
    np.testing.assert_allclose(actions, states[:, 0], atol=0.3)


@pytest.mark.parametrize("name", BUILDERS)
def test_resumed_learner_equals_an_unbroken_one_to_the_bit(name):
    whole, broken = BUILDERS[name](), BUILDERS[name]()
    stores = memory_of(whole), memory_of(broken)
    rngs = np.random.default_rng(1), np.random.default_rng(1)
    train(whole, stores[0], rngs[0], 40)
    train(broken, stores[1], rngs[1], 40)
    state = deserialise(
        serialise({"learner": broken.state_dict(), "memory": stores[1].state_dict()}),
        max_bytes=10**8,
    )
    resumed, store = BUILDERS[name](), memory_of(broken)
    resumed.load_state_dict(state["learner"])
    store.load_state_dict(state["memory"])
    first = train(whole, stores[0], rngs[0], 20, start=40)
    second = train(resumed, store, rngs[1], 20, start=40)
    assert first == second
    ours = serialise(whole.policy(LOW, HIGH).state_dict())
    assert ours == serialise(resumed.policy(LOW, HIGH).state_dict())


@pytest.mark.parametrize("name", BUILDERS)
def test_seeds_tell_learners_apart(name):
    def first_action(seed):
        return BUILDERS[name](seed).policy(LOW, HIGH).state_dict()["weights"][0]

    assert torch.equal(first_action(0), first_action(0))
    assert not torch.equal(first_action(0), first_action(1))


@pytest.mark.parametrize("name", BUILDERS)
def test_policy_is_the_learner_without_noise(name):
    learner = BUILDERS[name]()
    train(learner, memory_of(learner), np.random.default_rng(0), 30)
    states = np.random.default_rng(1).uniform(-1, 1, (5, 2)).astype(np.float32)
    inputs = torch.from_numpy(states)
    with torch.no_grad():
        if name in ("sac", "hlgauss", "mbpo"):
            learner._policy.eval()
            expected = learner._policy(inputs).numpy()
        elif name == "td3":
            expected = learner._policy(inputs).numpy()
        elif name == "hatd3":
            expected = learner._learner.act(inputs, deterministic=True)[0].numpy()
        else:
            expected = learner._grid[learner._q(inputs).argmax(dim=1).numpy()]
    np.testing.assert_allclose(learner.policy(LOW, HIGH).act(states), expected, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "hatd3"])
def test_foreign_states_are_refused(name):
    learner = BUILDERS[name]()
    with pytest.raises(CheckpointError, match="expected a state of this algorithm, version 2"):
        learner.load_state_dict({"version": 1, "algorithm": "other"})
    state = {"version": 2, "algorithm": "sac" if name == "mbpo" else name}
    with pytest.raises(CheckpointError, match="complete state of a learner of these sizes"):
        learner.load_state_dict(state)


def test_mbpo_wants_its_model_back():
    learner = BUILDERS["mbpo"]()
    state = learner.state_dict()
    del state["imagined"]
    with pytest.raises(CheckpointError, match="mbpo: expected a complete state"):
        BUILDERS["mbpo"]().load_state_dict(state)


def test_mbpo_imagines_only_once_its_model_is_ready():
    learner = BUILDERS["mbpo"]()
    store = memory_of(learner)
    rng = np.random.default_rng(0)
    assert train(learner, store, rng, 19)["n_imagined"] == 0.0
    assert train(learner, store, rng, 6, start=19)["n_imagined"] > 0.0


def test_imagined_transitions_forget_the_oldest():
    imagined = ImaginedTransitions(3, 1, 1)
    for value in range(5):
        imagined.add(*(torch.full((1, 1), float(value)) for _ in range(5)))
    assert len(imagined) == 3
    drawn = imagined.sample(100, torch.Generator().manual_seed(0))
    assert set(drawn[0][:, 0].tolist()) == {2.0, 3.0, 4.0}
    other = ImaginedTransitions(3, 1, 1)
    other.load_state_dict(imagined.state_dict())
    other.add(*(torch.full((1, 1), 9.0) for _ in range(5)))
    kept = other.sample(100, torch.Generator().manual_seed(0))[0]
    assert set(kept[:, 0].tolist()) == {3.0, 4.0, 9.0}
    with pytest.raises(CheckpointError, match="at most 2 imagined transitions"):
        ImaginedTransitions(2, 1, 1).load_state_dict(imagined.state_dict())


def test_action_grid_is_every_combination():
    assert action_grid(2, 2).tolist() == [[-1, -1], [-1, 1], [1, -1], [1, 1]]
    with pytest.raises(ConfigurationError, match=r"at most 4096 combinations of actions, got 9\^4"):
        action_grid(4, 9)


def test_epsilon_falls_linearly_and_stays():
    numbers = DQNNumbers(epsilon_start=1.0, epsilon_end=0.2, epsilon_frames=100)
    assert [numbers.epsilon(k) for k in (0, 50, 100, 900)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LearnerNumbers(learning_rate=0.0), "learning_rate\n.* greater than 0"),
        (lambda: LearnerNumbers(hidden_sizes=()), "hidden_sizes\n.* at least 1 item"),
        (lambda: LearnerNumbers(hidden_sizes=(0,)), "hidden_sizes.0\n.* or equal to 1"),
        (lambda: SACNumbers(initial_alpha=2.0), "initial_alpha: expected at most max_alpha"),
        (
            lambda: HLGaussNumbers(min_value=1.0, max_value=0.0),
            "min_value: expected less than max_value",
        ),
        (lambda: TD3Numbers(policy_delay=0), "policy_delay\n.* or equal to 1"),
        (lambda: DQNNumbers(epsilon_start=0.01), "epsilon_end: expected at most epsilon_start"),
        (lambda: MBPONumbers(num_elites=9), "num_elites <= ensemble_size"),
    ],
)
def test_numbers_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_every_number_changes_what_is_learned():
    def trained(sac=None, **changes):
        numbers = {"learning_rate": 3e-3, "batch_size": 32, "hidden_sizes": (16,), **changes}
        learner = SACLearner(
            observation_dim=2,
            action_dim=1,
            numbers=LearnerNumbers(**numbers),
            sac=sac or SACNumbers(target_entropy=1.0),
        )
        train(learner, memory_of(learner), np.random.default_rng(0), 12, final=False)
        state = learner.policy(LOW, HIGH).state_dict()
        return torch.cat([w.flatten() for w in state["weights"]])

    plain = trained()
    for change in (
        {"learning_rate": 1e-3},
        {"batch_size": 16},
        {"gamma": 0.5},
        {"tau": 0.5},
        {"max_gradient_norm": 1e-3},
        {"sac": SACNumbers(target_entropy=1.0, initial_alpha=0.9)},
        {"sac": SACNumbers(target_entropy=1.0, max_alpha=0.2)},
        {"sac": SACNumbers()},
    ):
        assert not torch.equal(plain, trained(**change)), change
