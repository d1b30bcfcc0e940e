"""Training of the draft zoo's two checkpoints, so that all of its partners can act.

Both actors learn the push task with the shipped configurations of MAPPO and HAPPO, beside the zoo's
scripted partner: the task the zoo is named after needs a simulator, this one runs on any CPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.aht.config import load_config
from cadenza.benchmark.training import run_training
from cadenza.core.checkpoints import load_checkpoint, save_checkpoint
from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import shipped_config
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY
from cadenza.partners.spec import PartnerSpec, make_phase0_draft_zoo
from cadenza.partners.weights import ARTIFACTS_SCHEME

_RUNS: Final = "draft_zoo_runs"
#: Configuration per partner class, and changes to it. The checkpoint of the MAPPO actor has no room
#: for the moments of observations.
_CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "frozen_mappo": ("train/mpe_cooperative_push_mappo", "ppo.normalize_observations=false"),
    "frozen_harl": ("train/mpe_cooperative_push_happo",),
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
        mate = scripted.extra["uid"]
        members.append(_train(spec, mate, folder, frames or spec.checkpoint_step))
    return members


def _train(spec: PartnerSpec, mate: str, folder: Path, frames: int | None) -> TrainedMember:
    """Train one partner beside ``mate`` and store its actor under the address of its spec."""
    name, *changes = _CONFIGS[spec.class_name]
    cfg = load_config(
        config_path=shipped_config(name),
        overrides=[
            f"seed={spec.seed}",
            f"total_frames={frames}",
            f"checkpoint_every={frames}",
            f"env.agent_uids=[{spec.extra['uid']},{mate}]",
            f"partner.extra.uid={mate}",
            *changes,
        ],
    )
    runs = folder / _RUNS
    cfg = cfg.model_copy(update={"artifacts_root": runs, "log_dir": runs / "logs"})
    curve, _ = run_training(cfg, overwrite=True)
    payload, metadata = load_checkpoint(
        uri=ARTIFACTS_SCHEME + curve.checkpoint_paths[-1].name, artifacts_root=runs
    )
    path = save_checkpoint(
        state_dict=_mappo_actor(payload) if MLP_POLICY_KEY in payload else payload,
        uri=f"local://{str(spec.weights_uri).removeprefix(ARTIFACTS_SCHEME)}",
        metadata=metadata,
        artifacts_root=folder,
    )
    mean_return = float(curve.evaluations[-1].results["mean_episode_reward"])
    return TrainedMember(spec=spec, path=path, frames=metadata.step, mean_return=mean_return)


def _mappo_actor(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint of `FrozenMAPPOPartner` that holds a trained MAPPO policy."""
    weights = payload[MLP_POLICY_KEY]["weights"]
    names = [f"{layer}.{kind}" for layer in ("fc1", "fc2", "head") for kind in ("weight", "bias")]
    log_std = payload["agent"]["network"]["head.log_std"]
    return {"actor": {**dict(zip(names, weights, strict=True)), "log_std": log_std}}
