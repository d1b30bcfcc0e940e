"""Training of the draft zoo's two checkpoints, so that all of its partners can act.

Both actors learn the push task, MAPPO's and HAPPO's way, beside the zoo's scripted partner: the
task the zoo is named after needs a simulator, this one runs on any CPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.aht.config import EgoAHTConfig
from cadenza.benchmark.training import run_training
from cadenza.core.checkpoints import load_checkpoint, save_checkpoint
from cadenza.core.errors import ConfigurationError
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY
from cadenza.partners.draft_zoo import make_phase0_draft_zoo
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import ARTIFACTS_SCHEME

#: Task the actors learn.
TASK: Final = "mpe_cooperative_push"
_RUNS: Final = "draft_zoo_runs"
#: Settings per partner class: those of the shipped configurations, but MAPPO sees states as they
#: are, because its checkpoint holds nothing but the layers.
_ALGORITHMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "frozen_mappo": {
        "algo": "mappo",
        "ppo": {
            "rollout_length": 128,
            "batch_size": 256,
            "epochs": 8,
            "learning_rate": 1e-3,
            "gamma": 0.95,
            "max_gradient_norm": 10.0,
            "normalize_rewards": True,
            "initial_log_std": -0.5,
            "hidden_sizes": [64, 64],
        },
    },
    "frozen_harl": {
        "algo": "happo",
        "happo": {
            "lr": 1e-3,
            "gamma": 0.95,
            "n_epochs": 8,
            "rollout_length": 128,
            "batch_size": 256,
        },
        "ppo_extras": {"max_action_std": 1.0, "critic_max_grad_norm": 10.0},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMember:
    """One checkpoint of the zoo.

    Attributes:
        spec: Its partner.
        path: The payload.
        frames: Frames it was trained for.
        mean_return: Mean return of held-out episodes with the greedy policy.
    """

    spec: PartnerSpec
    path: Path
    frames: int
    mean_return: float


def train_draft_zoo(
    folder: Path,
    *,
    frames: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[TrainedMember]:
    """Train the learned partners of `make_phase0_draft_zoo` and store their checkpoints.

    Args:
        folder: Artifacts folder, see `cadenza.partners.weights`; a run's own files go to the
            folder ``draft_zoo_runs`` in it. Earlier checkpoints are replaced.
        frames: Frames per partner instead of its ``checkpoint_step``, > 0, for trying out.
        progress: Called with the name of each partner before its training.

    Raises:
        ConfigurationError: ``frames`` is not positive.
        StorageError: The file system refused.
    """
    if frames is not None and frames < 1:
        raise ConfigurationError(f"train_draft_zoo: expected frames >= 1, got {frames}.")
    scripted, *learned = make_phase0_draft_zoo()
    members: list[TrainedMember] = []
    for spec in learned:
        if progress is not None:
            progress(spec.class_name)
        cfg = _config(spec, scripted, folder, frames or spec.checkpoint_step or 0)
        members.append(_train(spec, cfg, folder))
    return members


def _config(spec: PartnerSpec, scripted: PartnerSpec, folder: Path, frames: int) -> EgoAHTConfig:
    uids = [spec.extra["uid"], scripted.extra["uid"]]
    return EgoAHTConfig.model_validate(
        {
            **_ALGORITHMS[spec.class_name],
            "seed": spec.seed,
            "total_frames": frames,
            "checkpoint_every": frames,
            "artifacts_root": folder / _RUNS,
            "log_dir": folder / _RUNS / "logs",
            "env": {"task": TASK, "episode_length": 50, "agent_uids": uids, "num_envs": 8},
            "partner": {"class_name": scripted.class_name, "extra": dict(scripted.extra)},
            "evaluation": {"episodes": 20},
        }
    )


def _train(spec: PartnerSpec, cfg: EgoAHTConfig, folder: Path) -> TrainedMember:
    """Train one partner and store its actor under the address of its spec."""
    curve, _ = run_training(cfg, overwrite=True)
    newest = curve.checkpoint_paths[-1].name
    payload, metadata = load_checkpoint(
        uri=ARTIFACTS_SCHEME + newest, artifacts_root=cfg.artifacts_root
    )
    path = save_checkpoint(
        state_dict=_mappo_actor(payload) if MLP_POLICY_KEY in payload else payload,
        uri=f"local://{str(spec.weights_uri).removeprefix(ARTIFACTS_SCHEME)}",
        metadata=metadata,
        artifacts_root=folder,
    )
    return TrainedMember(
        spec=spec,
        path=path,
        frames=metadata.step,
        mean_return=float(curve.evaluations[-1].results["mean_episode_reward"]),
    )


def _mappo_actor(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint of `FrozenMAPPOPartner` that holds a trained MAPPO policy."""
    weights = payload[MLP_POLICY_KEY]["weights"]
    names = [f"{layer}.{kind}" for layer in ("fc1", "fc2", "head") for kind in ("weight", "bias")]
    log_std = payload["agent"]["network"]["head.log_std"]
    return {"actor": {**dict(zip(names, weights, strict=True)), "log_std": log_std}}
