"""Record actor updates of the installed HARL as a fixture for bit-for-bit tests.

Needs the ``oracle`` extra. Writes one safetensors file with, for each case, the parameters before,
the minibatches, the numbers every update returned, and parameters and Adam state after the last.
A probe of plain torch arithmetic goes with it: on a machine whose kernels round differently, the
tests see that from the probe.

Usage:  python tools/record_harl_update.py tests/data/harl/actor_updates.safetensors
"""

import argparse
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from safetensors.torch import save_file
from torch import Tensor, nn

OBSERVATION_DIM = 10
ACTION_DIM = 2
HIDDEN_DIM = 64
BATCH = 64
UPDATES = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recorded sequence of updates.

    Attributes:
        seed: Seeds weights and data.
        advantage_scale: Standard deviation of the advantages; large ones engage gradient clipping.
        ratio_spread: Noise on the old log-densities; pushes ratios over the clip range.
    """

    seed: int
    advantage_scale: float
    ratio_spread: float


CASES = {
    "gradient_within_limit": Case(seed=11, advantage_scale=1.0, ratio_spread=0.15),
    "gradient_clipped": Case(seed=12, advantage_scale=400.0, ratio_spread=0.15),
}


def harl_arguments(hidden_dim: int) -> dict[str, Any]:
    """Return HARL's argument dictionary for the actor this package reproduces."""
    return {
        "hidden_sizes": [hidden_dim, hidden_dim],
        "activation_func": "relu",
        "use_feature_normalization": True,
        "initialization_method": "orthogonal_",
        "gain": 0.01,
        "std_x_coef": 1.0,
        "std_y_coef": 0.5,
        "use_naive_recurrent_policy": False,
        "use_recurrent_policy": False,
        "recurrent_n": 1,
        "data_chunk_length": 10,
        "use_policy_active_masks": False,
        "action_aggregation": "prod",
        "lr": 3e-4,
        "opti_eps": 1e-5,
        "weight_decay": 0.0,
        "clip_param": 0.2,
        "ppo_epoch": 4,
        "actor_num_mini_batch": 4,
        "entropy_coef": 0.01,
        "use_max_grad_norm": True,
        "max_grad_norm": 10.0,
    }


def build_harl_actor(seed: int, observation_dim: int, action_dim: int, hidden_dim: int) -> Any:
    """Return a HAPPO instance whose weights were drawn after ``torch.manual_seed(seed)``."""
    from harl.algorithms.actors.happo import HAPPO

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return HAPPO(
            harl_arguments(hidden_dim),
            Box(-1.0, 1.0, (observation_dim,)),
            Box(-1.0, 1.0, (action_dim,)),
        )


def minibatches(
    happo: Any,
    case: Case,
    observation_dim: int = OBSERVATION_DIM,
    action_dim: int = ACTION_DIM,
) -> list[dict[str, Tensor]]:
    """Return seeded minibatches with old log-densities near the initial policy's."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    batches: list[dict[str, Tensor]] = []
    for _ in range(UPDATES):
        observations, actions = normal(BATCH, observation_dim), 0.4 * normal(BATCH, action_dim)
        with torch.no_grad():
            log_probs, _, _ = happo.evaluate_actions(observations, *harl_extras(actions))
        batches.append(
            {
                "observations": observations,
                "actions": actions,
                "old_log_probs": log_probs + case.ratio_spread * normal(BATCH, action_dim),
                "advantages": case.advantage_scale * normal(BATCH, 1),
            }
        )
    return batches


def harl_extras(actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `evaluate_actions` wants after the observations: states, actions, masks."""
    return torch.zeros(len(actions), 1, 1), actions, torch.ones(len(actions), 1)


def harl_update(happo: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run HARL's own update on one minibatch and return its four results."""
    rows = len(batch["actions"])
    recurrent_states, actions, masks = harl_extras(batch["actions"])
    sample = (
        batch["observations"],
        recurrent_states,
        actions,
        masks,
        torch.ones(rows, 1),
        batch["old_log_probs"],
        batch["advantages"],
        None,
        torch.ones(rows, 1),
    )
    policy_loss, entropy, gradient_norm, ratio = happo.update(sample)
    return {
        "policy_loss": policy_loss.detach(),
        "entropy": entropy.detach(),
        "gradient_norm": gradient_norm.detach(),
        "ratio": ratio.detach(),
    }


def record_case(name: str, case: Case) -> dict[str, Tensor]:
    """Return every tensor of one case under ``name/``."""
    happo = build_harl_actor(case.seed, OBSERVATION_DIM, ACTION_DIM, HIDDEN_DIM)
    record = {f"before/{key}": value.clone() for key, value in happo.actor.state_dict().items()}
    for k, batch in enumerate(minibatches(happo, case)):
        record |= {f"batch/{k}/{key}": value for key, value in batch.items()}
        record |= {f"result/{k}/{key}": value for key, value in harl_update(happo, batch).items()}
    record |= {f"after/{key}": value.clone() for key, value in happo.actor.state_dict().items()}
    for index, state in happo.actor_optimizer.state_dict()["state"].items():
        record |= {f"adam/{index}/{key}": value.clone() for key, value in state.items()}
    return {f"{name}/{key}": value.contiguous() for key, value in record.items()}


def arithmetic_probe() -> dict[str, Tensor]:
    """Return gradients of a plain torch network: equal bits mean equal kernels."""
    generator = torch.Generator().manual_seed(0)
    layers = nn.Sequential(
        nn.LayerNorm(OBSERVATION_DIM), nn.Linear(OBSERVATION_DIM, HIDDEN_DIM), nn.ReLU(),
        nn.LayerNorm(HIDDEN_DIM), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU(),
        nn.LayerNorm(HIDDEN_DIM), nn.Linear(HIDDEN_DIM, ACTION_DIM),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    outputs = layers(torch.randn((BATCH, OBSERVATION_DIM), generator=generator))
    torch.autograd.backward(torch.exp(-(outputs**2)).sigmoid().log().sum())
    gradients = [p.grad.flatten() for p in layers.parameters() if p.grad is not None]
    return {"probe/outputs": outputs.detach(), "probe/gradients": torch.cat(gradients)}


def main() -> None:
    """Write the fixture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)
    tensors = arithmetic_probe()
    for name, case in CASES.items():
        tensors |= record_case(name, case)
    facts = {
        "harl-aht": version("harl-aht"),
        "torch": torch.__version__,
        "arguments": harl_arguments(HIDDEN_DIM),
        "updates": UPDATES,
        "cases": sorted(CASES),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, output, metadata={"facts": json.dumps(facts, sort_keys=True)})


if __name__ == "__main__":
    main()
