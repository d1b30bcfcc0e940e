import numpy as np
import pytest
import torch
from gymnasium import spaces

from cadenza.aht.ego_ppo import EgoPPOTrainer
from cadenza.aht.ego_trainer import assert_partner_is_frozen, ego_spaces, step_ends
from cadenza.core.errors import ConfigurationError, DeviceUnavailableError, InputError
from tests.unit.aht.ego_ppo_fakes import (
    ACTION_DIM,
    OBSERVATION_DIM,
    MadeUpTask,
    SpacesOnlyEnv,
    StillPartner,
    advance,
    config,
    observation,
    trainer,
    weights,
)


class TorchPartner(StillPartner):
    def __init__(self, *, frozen_body, frozen_head):
        self.body = torch.nn.Linear(2, 2).requires_grad_(not frozen_body)
        self.head = torch.nn.Linear(2, 2).requires_grad_(not frozen_head)

    def named_parameters(self):
        for part in ("body", "head"):
            for name, parameter in getattr(self, part).named_parameters():
                yield f"{part}.{name}", parameter


class ShieldedPartner(StillPartner):
    def __getattr__(self, name):
        raise AttributeError(f"{name} is shielded")


@pytest.mark.parametrize(
    "partner",
    [StillPartner(), ShieldedPartner(), TorchPartner(frozen_body=True, frozen_head=True)],
    ids=["no parameters", "shielded", "frozen"],
)
def test_frozen_partner_is_accepted(partner):
    assert isinstance(trainer(partner=partner), EgoPPOTrainer)


def test_trainable_partner_is_refused_by_class_and_parameter():
    partner = TorchPartner(frozen_body=True, frozen_head=False)
    message = r"TorchPartner.*'head\.weight' with requires_grad=True \(ADR-009 §Consequences\)"
    with pytest.raises(ConfigurationError, match=message):
        assert_partner_is_frozen(partner)
    with pytest.raises(ValueError, match=message):
        trainer(partner=partner)


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        (SpacesOnlyEnv(observation=spaces.Discrete(3)), "observation"),
        (SpacesOnlyEnv(action=spaces.Discrete(3)), "action"),
    ],
)
def test_space_that_is_no_box_raises(env, kind):
    with pytest.raises(TypeError, match=rf"ego {kind} space.*gym\.spaces\.Box, got Discrete"):
        ego_spaces(env, "ego")


def test_batched_spaces_are_reduced_to_one_environment():
    observation_space, action_space = ego_spaces(SpacesOnlyEnv(num_envs=7), "ego")
    assert observation_space.shape == (OBSERVATION_DIM,)
    assert action_space == spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)


def test_space_of_higher_rank_raises():
    image = spaces.Box(0.0, 1.0, (3, 8, 8), np.float32)
    with pytest.raises(InputError, match=r"expected a flat observation space.*\(3, 8, 8\)"):
        EgoPPOTrainer.from_config(
            config(), env=SpacesOnlyEnv(observation=image), partner=StillPartner(), ego_uid="ego"
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_absent_device_raises():
    with pytest.raises(DeviceUnavailableError, match="ADR-002"):
        trainer(runtime={"device": "cuda"})


@pytest.mark.parametrize(
    ("done", "truncated", "terminated", "expected"),
    [
        (False, False, None, (False, False)),
        (True, False, None, (True, True)),
        (True, True, None, (False, True)),
        (True, True, True, (True, True)),  # termination dominates
        (True, True, False, (False, True)),
        (True, False, True, (True, True)),
        (np.bool_(True), np.bool_(True), np.bool_(True), (True, True)),
    ],
)
def test_ends_of_a_step(done, truncated, terminated, expected):
    ended, boundary = step_ends("ego", done, truncated, terminated, 2)
    assert [ended.tolist(), boundary.tolist()] == [[e, e] for e in expected]


@pytest.mark.parametrize(
    ("done", "truncated", "terminated"),
    [(False, True, None), (False, False, True), (True, False, False), (False, True, False)],
)
def test_contradicting_flags_raise(done, truncated, terminated):
    flags = [None if f is None else np.array([False, f]) for f in (done, truncated, terminated)]
    told = r"ego.observe: expected done = terminated or truncated, .* in environments \[1\]"
    with pytest.raises(InputError, match=told):
        step_ends("ego", *flags, 2)


def test_ends_are_judged_per_environment():
    flags = [True, True, False], [True, True, False], [True, False, False]
    ended, boundary = step_ends("ego", *map(np.array, flags), 3)
    assert ended.tolist() == [True, False, False]
    assert boundary.tolist() == [True, True, False]


@pytest.mark.parametrize("name", ["done", "truncated", "terminated"])
def test_flags_of_wrong_shape_raise(name):
    flags = {"done": False, "truncated": False, "terminated": False}
    flags[name] = np.zeros(3, dtype=bool)
    with pytest.raises(InputError, match=rf"expected {name} of shape \(2,\), got \(3,\)"):
        step_ends("ego", **flags, count=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_envs", [None, 3])
def test_training_on_cuda_moves_weights_and_resumes(num_envs):
    learner, task = trainer(num_envs=num_envs, runtime={"device": "cuda"}), MadeUpTask(0, num_envs)
    before = weights(learner)
    start = weights(trainer(num_envs=num_envs))
    assert all(torch.equal(value.cpu(), start[name]) for name, value in before.items())
    _, state = advance(learner, task, task.state(), 12)
    learner.update()
    assert all(not torch.equal(value, before[name]) for name, value in weights(learner).items())
    other = trainer(num_envs=num_envs, runtime={"device": "cuda"})
    other.load_training_state(learner.training_state())
    assert np.array_equal(learner.act(observation(state)), other.act(observation(state)))
