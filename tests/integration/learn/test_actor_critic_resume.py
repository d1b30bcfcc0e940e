"""SAC, HL-Gauss and TD3: resumed from a file in the middle equals the unbroken run, bit for bit."""

import pytest
import torch
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR

from cadenza.core.schedules import LinearSchedule
from cadenza.learn import Trainer
from cadenza.learn.algorithms import hlgauss, td3
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator, Checkpointer, CheckpointLoader
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.deterministic_policy import DeterministicMlpPolicy

ROWS, OBSERVATION, ACTION, HIDDEN = 48, 5, 2, (16, 16)


def weights(seed):
    """Return a generator: other seeds stand for a process that starts from other weights."""
    return torch.Generator().manual_seed(seed)


def sac(seed, classify=False):
    rng = weights(seed)
    critics = [critic(name, rng, classify) for name in ("q1", "q2")]
    (q1, q1_loss), (q2, q2_loss) = critics
    policy = GaussianMlpPolicy(
        OBSERVATION, ACTION, HIDDEN, generator=weights(seed), init_generator=rng
    )
    ln_alpha = torch.full((1,), -2.0, requires_grad=True)
    optimizer = Adam(policy.parameters(), 1e-2)
    policy_loss = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=q1,
        q2=q2,
        opt=optimizer,
        lr_schedule=StepLR(optimizer, 4, 0.5),
    )
    alpha_loss = AlphaLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        opt=Adam([ln_alpha], 1e-2),
        n_actions=ACTION,
        t_entropy=LinearSchedule(0.0, -8.0, 20),
        log_prob_from=policy_loss if classify else None,
    )
    target = QTarget(
        pi=policy, ln_alpha=ln_alpha, q1=q1, q2=q2, target_q_tau=0.1, use_terminal_masking=True
    )
    return [q1_loss, q2_loss, policy_loss, alpha_loss, target], [
        policy,
        q1,
        q2,
        target.q1t,
        ln_alpha,
    ]


def critic(name, rng, classify):
    if not classify:
        net = ActionValueMlp(OBSERVATION, ACTION, HIDDEN, generator=rng)
        return net, QLoss(name=name, q=net, opt=Adam(net.parameters(), 1e-2))
    logits = hlgauss.LogitMlp(OBSERVATION, ACTION, HIDDEN, 11, generator=rng)
    net = hlgauss.QNet(logits, -5.0, 5.0)
    return net, hlgauss.QLoss(name=name, q=net, opt=Adam(net.parameters(), 1e-2))


def classifying_sac(seed):
    return sac(seed, classify=True)


def delayed(seed):
    rng = weights(seed)
    (q1, q1_loss), (q2, q2_loss) = (critic(name, rng, False) for name in ("q1", "q2"))
    policy = DeterministicMlpPolicy(OBSERVATION, ACTION, HIDDEN, init_generator=rng)
    policy_loss = td3.PolicyLoss(pi=policy, q=q1, opt=Adam(policy.parameters(), 1e-2))
    target = td3.QTarget(pi=policy, q1=q1, q2=q2, target_q_tau=0.1, generator=weights(seed))
    callbacks = [q1_loss, q2_loss, policy_loss, target]
    return callbacks, [policy, q1, q2, *target.targets.values()]


def batches(first):
    """Yield the batches of the steps from ``first`` on, each a function of its step."""
    step = first
    while True:
        rng = weights(step)
        yield {
            "default": {
                "observation": {"obs": torch.randn(ROWS, OBSERVATION, generator=rng)},
                "next_observation": {"obs": torch.randn(ROWS, OBSERVATION, generator=rng)},
                "actions": torch.rand(ROWS, ACTION, generator=rng) * 2 - 1,
                "rewards": torch.randn(ROWS, 1, generator=rng),
                "masks": torch.randint(0, 2, (ROWS, 1), generator=rng).float(),
            },
            "batch_size": ROWS,
        }
        step += 1


def trained(make, root, *, seed, steps, resume):
    """Return the final tensors and logged numbers of one process's life."""
    callbacks, holders = make(seed)
    extra = [Checkpointer(restorees=callbacks, run_root=root, checkpoint_interval=7)]
    if resume:
        extra.append(
            CheckpointLoader(restorees=callbacks, run_root=root, checkpoint_index="latest")
        )
    loader = batches(8 if resume else 1)
    Trainer([*callbacks, *extra, BackPropStepsTerminator(steps)], loader).train()
    tensors = [
        tensor.detach().clone()
        for holder in holders
        for tensor in ([holder] if isinstance(holder, torch.Tensor) else holder.parameters())
    ]
    numbers = [dict(callback.scalar_logs.items()) for callback in callbacks]
    return tensors, numbers


@pytest.mark.parametrize("make", [sac, classifying_sac, delayed])
def test_resumed_run_equals_the_unbroken_one(make, tmp_path):
    unbroken = trained(make, tmp_path / "whole", seed=0, steps=14, resume=False)
    half = trained(make, tmp_path / "parts", seed=0, steps=7, resume=False)
    resumed = trained(make, tmp_path / "parts", seed=1, steps=14, resume=True)
    assert any(not torch.equal(a, b) for a, b in zip(half[0], resumed[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(unbroken[0], resumed[0], strict=True))
    assert unbroken[1] == resumed[1]
