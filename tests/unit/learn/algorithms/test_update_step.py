"""The update as a whole, against its parts one by one, in every mode."""

import copy

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.algorithms.dqn import DQNLearner, action_grid
from cadenza.learn.algorithms.off_policy import CallbackLearner
from cadenza.learn.algorithms.sac import SACLearner
from cadenza.learn.algorithms.td3 import TD3Learner
from cadenza.learn.configs import DQNConfig, HLGaussConfig, SACConfig, TD3Config
from cadenza.learn.trainer import Trainer
from tests.campaigns import nightly, size

BATCH, OBSERVATION, ACTION = 32, 3, 2
SMALL = {"batch_size": BATCH, "hidden_sizes": (16, 16), "max_gradient_norm": 0.5}
SIZES = {"observation_dim": OBSERVATION, "action_dim": ACTION}
LEARNERS = {
    "sac": lambda **mode: SACLearner(**SIZES, config=SACConfig(**SMALL, **mode)),
    "hlgauss": lambda **mode: SACLearner(**SIZES, config=HLGaussConfig(**SMALL, **mode)),
    "td3": lambda **mode: TD3Learner(**SIZES, config=TD3Config(**SMALL, **mode)),
    "dqn": lambda **mode: DQNLearner(
        observation_dim=OBSERVATION,
        choices=action_grid(ACTION, 3),
        config=DQNConfig(**SMALL, **mode),
    ),
}


def batches(learner, count, start=0):
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(start + count):
        states = torch.tensor(rng.normal(size=(2, BATCH, OBSERVATION)), dtype=torch.float32)
        rewards, ends = rng.normal(size=(BATCH, 1)), rng.random((BATCH, 1)) < 0.1
        stored = learner.random_actions(1).dtype
        actions = rng.uniform(-1.0, 1.0, (BATCH, ACTION))
        if stored == np.int64:
            actions = rng.integers(9, size=(BATCH, 1))
        drawn.append(
            {
                "observation": {"obs": states[0]},
                "next_observation": {"obs": states[1]},
                "actions": torch.from_numpy(actions.astype(stored)),
                "rewards": torch.tensor(10.0 * rewards, dtype=torch.float32),
                "masks": torch.tensor(~ends, dtype=torch.float32),
            }
        )
    return drawn[start:]


def weights(learner):
    state = learner.state_dict()["callbacks"]
    return {
        f"{part}.{name}": value
        for part, inner in state.items()
        for name, value in flat(inner.get("network_state_dict", {}))
        if value.is_floating_point()
    }


def flat(state):
    if isinstance(state, torch.Tensor):
        return [("", state)]
    return [
        (f"{key}.{name}", value)
        for key, inner in state.items()
        if isinstance(inner, dict | torch.Tensor)
        for name, value in flat(inner)
    ]


def trained(name, count, *, start=0, learner=None, **mode):
    torch.manual_seed(0)
    learner = learner or LEARNERS[name](**mode)
    for batch in batches(LEARNERS[name](), count, start):
        learner.train_on(batch)
    return learner


def assert_equal(first, second, **tolerance):
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if tolerance:
            torch.testing.assert_close(value, theirs[key], **tolerance)
        else:
            assert torch.equal(value, theirs[key]), key


@pytest.mark.parametrize("name", LEARNERS)
def test_whole_update_equals_its_callbacks_one_by_one_to_the_bit(name, monkeypatch):
    targets, run = [], CallbackLearner.run

    def note_target(self, stages, target, draw=None):
        targets.append(target)
        run(self, stages, target, draw)

    whole = trained(name, 6)
    monkeypatch.setattr(CallbackLearner, "run", note_target)
    parts = LEARNERS[name]()
    one_by_one = Trainer([*parts.losses, *targets], [])
    torch.manual_seed(0)
    for batch in batches(LEARNERS[name](), 6):
        one_by_one.train_on({"default": batch, "batch_size": BATCH})
    assert_equal(whole, parts)
    start = LEARNERS[name]()
    assert any(not torch.equal(weights(start)[k], v) for k, v in weights(whole).items())
    logs = [
        {k: v for loss in learner.losses for k, v in loss.scalar_logs.items()}
        for learner in (whole, parts)
    ]
    assert logs[0] == logs[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", size(["dqn"], ["sac", "td3", "dqn"]))
def test_compiled_update_learns_the_same_and_resumes_to_the_bit(name):
    whole = trained(name, 2, compile=True)
    half = copy.deepcopy(whole.state_dict())
    trained(name, 2, start=2, learner=whole)
    assert_equal(whole, trained(name, 4), atol=1e-4, rtol=1e-3)
    resumed = LEARNERS[name](compile=True)
    resumed.load_state_dict(half)
    assert_equal(whole, trained(name, 2, start=2, learner=resumed))
    with pytest.raises(CheckpointError, match="updates are eager, float32, got compiled, float32"):
        LEARNERS[name]().load_state_dict(half)
    assert_refused_whole(whole, name)


def assert_refused_whole(learner, name):
    """Give the last critic a weight that is no number: nothing may learn, not even the others."""
    critic = [loss.network for loss in learner.losses if loss.name.startswith("q")][-1]
    with torch.no_grad():
        next(critic.parameters())[0] = torch.nan
    before = {key: value.clone() for key, value in weights(learner).items()}
    with pytest.raises(ValueError, match="expected a finite loss"):
        learner.train_on(batches(LEARNERS[name](), 1)[0])
    for key, value in weights(learner).items():
        torch.testing.assert_close(before[key], value, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", ["sac", "td3", "dqn"])
def test_one_loss_that_is_no_number_keeps_all_from_learning(name):
    assert_refused_whole(trained(name, 2), name)


def test_without_a_compiler_the_update_runs_uncompiled_and_says_so(monkeypatch):
    from torch._inductor import cpp_builder, exc

    def missing():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with pytest.warns(UserWarning, match=r"expected a C\+\+ compiler"):
        learner = trained("sac", 3, compile=True)
    assert_equal(learner, trained("sac", 3))
    LEARNERS["sac"]().load_state_dict(learner.state_dict())  # it is an uncompiled run


def test_bf16_rounds_products_and_is_a_mode_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    rounded, exact = trained("sac", 3, precision="bf16"), trained("sac", 3)
    assert_equal(rounded, exact, atol=5e-3, rtol=0.0)
    assert any(not torch.equal(v, weights(exact)[k]) for k, v in weights(rounded).items())
    with pytest.raises(CheckpointError, match="got eager, bf16"):
        exact.load_state_dict(rounded.state_dict())
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with pytest.raises(ConfigurationError, match="processor with bfloat16"):
        LEARNERS["sac"](precision="bf16")


def test_a_layer_frozen_between_steps_stays():
    learner = trained("td3", 2)
    frozen = next(p for p in learner.losses[1].parameters if p.dim() == 2)
    frozen.requires_grad_(requires_grad=False)
    before = frozen.detach().clone()
    trained("td3", 2, start=2, learner=learner)
    assert torch.equal(frozen, before)


@nightly
def test_compiled_update_leaves_frozen_layers_alone():
    learners = [LEARNERS["dqn"](compile=c) for c in (True, False)]
    for learner in learners:
        first = next(learner.losses[0].network.parameters())
        first.requires_grad_(False)
        trained("dqn", 3, learner=learner)
        first.requires_grad_(True)  # its first step is as large as any first step
        trained("dqn", 1, learner=learner)
    assert_equal(*learners, atol=1e-4, rtol=1e-3)
