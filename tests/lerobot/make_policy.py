"""Makes a tiny ACT policy with random weights in LeRobot's environment, and its own actions.

    python make_policy.py FOLDER

Writes the policy to ``FOLDER/policy`` and one chunk of its actions to ``FOLDER/actions.npy``.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors

STATE, IMAGE, ACTION = "observation.state", "observation.images.front", "action"


def main(folder: Path) -> None:
    """Write policy and actions."""
    torch.manual_seed(0)
    config = ACTConfig(
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (3,)),
            IMAGE: PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (2,))},
        chunk_size=5,
        n_action_steps=5,
        dim_model=16,
        n_heads=2,
        dim_feedforward=16,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    policy = ACTPolicy(config).eval()
    statistics = {
        STATE: {"mean": torch.tensor([1.0, 2.0, 3.0]), "std": torch.tensor([1.0, 2.0, 4.0])},
        IMAGE: {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)},
        ACTION: {"mean": torch.tensor([1.0, 2.0]), "std": torch.tensor([3.0, 4.0])},
    }
    before, after = make_pre_post_processors(config, dataset_stats=statistics)
    for part in (policy, before, after):
        part.save_pretrained(folder / "policy")
    image = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
    batch = {
        STATE: torch.tensor([0.5, -1.0, 2.0]),
        IMAGE: torch.from_numpy(image).permute(2, 0, 1) / 255,
        "task": "",
    }
    with torch.no_grad():
        chunk = after(policy.predict_action_chunk(before(batch))[0])
    np.save(folder / "actions.npy", chunk.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
