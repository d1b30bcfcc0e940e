"""Bfloat16 and compilation, in every loss; several compiled losses in one process."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch.optim import SGD

from cadenza.core.errors import ConfigurationError
from cadenza.core.schedules import LinearSchedule
from cadenza.learn.algorithms import dqn, td3
from cadenza.learn.algorithms.action_symmetry import ActionSymmetryDiscriminatorLoss
from cadenza.learn.algorithms.amp import DiscriminatorLoss
from cadenza.learn.algorithms.genrl.networks import FullyConnectedDecoder, FullyConnectedEncoder
from cadenza.learn.algorithms.genrl.vae import VAELoss, VariationalAutoencoder
from cadenza.learn.algorithms.least_squares_gan import Discriminator
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss
from cadenza.learn.models.deterministic import DeterministicModel
from cadenza.learn.models.model import DynamicModel
from cadenza.learn.models.model_loss import ModelLoss
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.curl import CurlLoss
from cadenza.learn.nn.deterministic_policy import DeterministicMlpPolicy
from cadenza.learn.nn.layers import Conv2dEncoder
from cadenza.learn.nn.relu_mlp import relu_mlp

#: What torch says of itself wherever it does not compile a whole function; it hides it by default.
TORCH_ON_SPLITS = "The .grad attribute of a Tensor that is not a leaf"


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape):
    return torch.randn(shape, generator=rng(7))


class Values(nn.Module):
    """Values of three actions."""

    def __init__(self):
        super().__init__()
        self.mlp = relu_mlp(2, [4], 3, generator=rng())

    def forward(self, obs):
        return self.mlp(obs)


def deep_q(**options):
    net = Values()
    return dqn.QLoss(name="q", q=net, opt=SGD(net.parameters(), 0.1), **options)


def auto_encoder(**options):
    vae = VariationalAutoencoder(
        FullyConnectedEncoder(2, 1, "cpu", [4]),
        FullyConnectedDecoder(1, 2, "cpu", [4]),
        "cpu",
        init_generator=rng(),
    )
    return VAELoss(vae=vae, opt=SGD(vae.parameters(), 0.1), **options)


def contrast(**options):
    encoders = [Conv2dEncoder((6, 6, 1), [2], [3], [2], [1], generator=rng()) for _ in range(2)]
    return CurlLoss(*encoders, "cpu", 1e-2, desired_zdim=3, **options)


def dynamics(**options):
    model = DynamicModel(model=DeterministicModel(4, 3, "cpu", 4, 1))
    return ModelLoss(model=model, opt=SGD(model.parameters(), 0.1), **options)


def motion_prior(**options):
    net = Discriminator(4, [4], generator=rng())
    maps = nn.Identity(), nn.Identity()
    return DiscriminatorLoss(
        net, *maps, 1.0, SGD(net.parameters(), 0.1), None, 9.0, "obs", **options
    )


def symmetry(**options):
    net = Discriminator(1, [4], generator=rng())
    return ActionSymmetryDiscriminatorLoss(
        net,
        lambda actions: actions[:, :1],
        lambda actions: actions[:, 1:],
        1.0,
        SGD(net.parameters(), 0.1),
        None,
        9.0,
        "default",
        "symmetry",
        **options,
    )


def state(make):
    batch = {
        "observation": {"obs": rows(6, 2), "images": rows(6, 6, 6, 1)},
        "next_observation": {"obs": rows(6, 2) + 0.5},
        "actions": rows(6, 2),
        "rewards": rows(6, 1),
        "q_target": rows(6, 1),
    }
    if make is deep_q:
        batch["observation"].pop("images")
        batch["actions"] = torch.tensor([0, 1, 2, 0, 1, 2])
    return {"default": batch, "imitation_batch": batch, "policy_batch": batch}


def stepped(make, steps=2, **options):
    loss = make(**options)
    for _ in range(steps):
        given = state(make)
        loss.backward(given["default"]["observation"]) if make is contrast else loss.backward(
            **given
        )
    return loss


COMPILED = [deep_q, auto_encoder, contrast, dynamics]
DISCRIMINATORS = [motion_prior, symmetry]


@pytest.mark.parametrize("make", [*COMPILED, *DISCRIMINATORS])
def test_autocast_rounds_what_the_loss_computes(make):
    exact, rounded = stepped(make, 1), stepped(make, 1, autocast_dtype=torch.bfloat16)
    logs = [loss.scalar_logs[f"loss/{loss.name}_loss"] for loss in (exact, rounded)]
    assert logs[0] != logs[1]
    assert logs[1] == pytest.approx(logs[0], rel=0.05, abs=0.05)  # bfloat16: 8 significant bits
    assert {parameter.dtype for parameter in rounded.parameters} == {torch.float32}


@pytest.mark.parametrize("make", COMPILED)
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_compiled_loss_equals_the_plain_one_to_the_bit(make):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    plain, compiled = stepped(make), stepped(make, compile_backend="aot_eager")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert list(compiled.scalar_logs.items()) == list(plain.scalar_logs.items())
    assert compiled.image_logs.keys() == plain.image_logs.keys()
    for mine, other in zip(compiled.parameters, plain.parameters, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("make", DISCRIMINATORS)
def test_discriminators_are_not_compiled(make):
    with pytest.raises(ConfigurationError, match="expected compile_backend None, got 'aot_eager'"):
        make(compile_backend="aot_eager")


def actor_critic(width, **options):
    """Return critic, policy and temperature losses on networks of one width."""
    critics = [ActionValueMlp(1, 1, [width], generator=rng(seed)) for seed in range(2)]
    policy = GaussianMlpPolicy(1, 1, [width], init_generator=rng())
    ln_alpha = torch.full((1,), -3.0, requires_grad=True)
    improve = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=critics[0],
        q2=critics[1],
        opt=SGD(policy.parameters(), 0.1),
        name=f"policy{width}",
        **options,
    )
    temper = {
        "pi": policy,
        "ln_alpha": ln_alpha,
        "n_actions": 1,
        "t_entropy": LinearSchedule(-1.0, -2.0, 10),
        **options,
    }
    return [
        QLoss(name=f"q{width}", q=critics[0], opt=SGD(critics[0].parameters(), 0.1), **options),
        improve,
        AlphaLoss(opt=SGD([ln_alpha], 0.1), name=f"alpha{width}", **temper),
        AlphaLoss(opt=SGD([ln_alpha], 0.1), name=f"t{width}", log_prob_from=improve, **temper),
    ]


def trained(width, **options):
    losses = actor_critic(width, **options)
    for _ in range(3):
        batch = {
            "observation": {"obs": rows(6, 1)},
            "actions": rows(6, 1),
            "q_target": rows(6, 1),
        }
        for loss in losses:
            loss.backward(default=batch)
        for loss in losses:
            loss.end_batch()
    return losses


def test_many_compiled_losses_in_one_process_are_all_compiled_and_exact(caplog):
    torch.compiler.reset()
    with (
        warnings.catch_warnings(),
        caplog.at_level(logging.WARNING),
        dynamo_config.patch(recompile_limit=3, fail_on_recompile_limit_hit=True),
    ):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", TORCH_ON_SPLITS)
        for width in range(2, 6):  # more builds than the limit of compilations of one function
            plain, compiled = trained(width), trained(width, compile_backend="aot_eager")
            for one, other in zip(plain, compiled, strict=True):
                assert list(one.scalar_logs.items()) == list(other.scalar_logs.items())
                for mine, yours in zip(one.parameters, other.parameters, strict=True):
                    assert torch.equal(mine, yours)
    assert caplog.text == ""


def test_logs_read_between_steps_compile_nothing_anew():
    torch.compiler.reset()
    loss = actor_critic(3, compile_backend="aot_eager")[0]
    batch = {"observation": {"obs": rows(6, 1)}, "actions": rows(6, 1), "q_target": rows(6, 1)}
    loss.backward(default=batch)
    with dynamo_config.patch(error_on_recompile=True):
        for _ in range(3):
            assert loss.scalar_logs[f"training/{loss.name}_prediction"] != 0.0
            loss.backward(default=batch)


def test_critic_held_still_does_not_split_what_is_compiled():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    policy = DeterministicMlpPolicy(1, 1, [4], init_generator=rng())
    loss = td3.PolicyLoss(
        pi=policy,
        q=ActionValueMlp(1, 1, [4], generator=rng()),
        opt=SGD(policy.parameters(), 0.1),
        compile_backend="aot_eager",
    )
    loss.backward(default={"observation": {"obs": rows(6, 1)}}, bp_step=2)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert next(loss.q1.parameters()).grad is None
    _, drawn, *_ = actor_critic(3, compile_backend="aot_eager")
    drawn.backward(default={"observation": {"obs": rows(6, 1)}})
    reasons = list(torch._dynamo.utils.counters["graph_break"])
    assert len(reasons) == 1
    assert "Generator" in reasons[0]


def test_step_of_a_policy_holds_the_critics_still_and_then_lets_them_go():
    _, loss, *_ = actor_critic(3)
    loss.backward(default={"observation": {"obs": rows(6, 1)}})
    critic = next(loss.q1.parameters())
    assert critic.grad is None
    assert critic.requires_grad
