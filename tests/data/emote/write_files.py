"""Writes the files beside it with emote-rl 23.0.0, in an environment that has it.

``pip install --no-deps emote-rl==23.0.0 cloudpickle atomicwrites onnx`` beside numpy and torch.
"""

from pathlib import Path

import numpy as np

np.bool8 = np.bool_  # removed from numpy since

import torch  # noqa: E402
from emote.callbacks import Checkpointer  # noqa: E402
from emote.memory.builder import DictObsTable  # noqa: E402
from emote.nn.action_value_mlp import ActionValueMlp  # noqa: E402
from emote.nn.gaussian_policy import GaussianMlpPolicy  # noqa: E402
from emote.nn.layers import Conv2dEncoder  # noqa: E402
from emote.sac import AlphaLoss, PolicyLoss, QLoss, QTarget  # noqa: E402
from emote.utils.spaces import BoxSpace, DictSpace, MDPSpace  # noqa: E402

FOLDER = Path(__file__).parent
LENGTHS = (4, 7, 5)


def write_memory() -> None:
    """Write a memory of three episodes in the layout of its time."""
    spaces = MDPSpace(
        rewards=BoxSpace(np.float32, (1,)),
        actions=BoxSpace(np.float32, (2,)),
        state=DictSpace({"obs": BoxSpace(np.float32, (3,))}),
    )
    table = DictObsTable(spaces=spaces, maxlen=100, device=torch.device("cpu"))
    rng = np.random.default_rng(0)
    for identity, length in enumerate(LENGTHS):
        sequence = {
            "obs": rng.normal(size=(length + 1, 3)),
            "actions": rng.normal(size=(length, 2)),
            "rewards": np.arange(length).reshape(length, 1),
        }
        table.add_sequence(identity, {k: v.astype(np.float32) for k, v in sequence.items()})
    table.store(str(FOLDER / "memory"))


def write_checkpoint() -> None:
    """Train soft actor-critic for three steps; write its checkpoint and what its networks say."""
    torch.manual_seed(0)
    policy = GaussianMlpPolicy(3, 2, [8, 8])
    q1, q2 = ActionValueMlp(3, 2, [8, 8]), ActionValueMlp(3, 2, [8, 8])
    ln_alpha = torch.tensor(0.5, requires_grad=True)

    def adam(parameters):
        return torch.optim.Adam(parameters, 8e-3)

    callbacks = [
        QLoss(name="q1", q=q1, opt=adam(q1.parameters())),
        QLoss(name="q2", q=q2, opt=adam(q2.parameters())),
        PolicyLoss(pi=policy, ln_alpha=ln_alpha, q=q1, q2=q2, opt=adam(policy.parameters())),
        AlphaLoss(pi=policy, ln_alpha=ln_alpha, opt=adam([ln_alpha]), n_actions=2, max_alpha=10.0),
        QTarget(pi=policy, ln_alpha=ln_alpha, q1=q1, q2=q2),
    ]
    obs, actions = torch.randn(16, 3), torch.rand(16, 2) * 2 - 1
    for _ in range(3):
        batch = {"observation": {"obs": obs}, "actions": actions, "q_target": torch.randn(16, 1)}
        for callback in callbacks[:4]:
            callback.optimizer.zero_grad()
            callback.loss(default=batch).mean().backward()
            callback.optimizer.step()
    path, networks = str(FOLDER / "sac"), [policy, q1, q2]
    Checkpointer(
        callbacks=callbacks, path=path, checkpoint_interval=1, networks=networks
    ).end_cycle(10, 3)
    encoder = Conv2dEncoder((8, 8, 1), [2, 3], [3, 3], [1, 1], [0, 0])
    torch.save(encoder.state_dict(), FOLDER / "conv.tar")
    policy.eval()
    image = torch.rand(2, 8, 8, 1)
    said = {
        "obs": obs,
        "act": actions,
        "pi": policy(obs, torch.zeros(16, 2)),
        "q1": q1(actions, obs),
        "q2": q2(actions, obs),
        "img": image,
        "conv": encoder(image),
    }
    np.savez(FOLDER / "expected.npz", **{name: value.detach() for name, value in said.items()})


if __name__ == "__main__":
    write_memory()
    write_checkpoint()
