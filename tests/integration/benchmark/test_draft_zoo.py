"""The draft zoo after its training command: every partner loads, and plays the push task."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from cadenza.aht.config import EgoAHTConfig, EnvConfig, EvaluationConfig, PartnerConfig
from cadenza.aht.ego_trainer import RandomEgoTrainer
from cadenza.benchmark.builders import build_partner
from cadenza.benchmark.training import run_training
from cadenza.cli.main import app
from cadenza.core.errors import CheckpointError, IntegrityError
from cadenza.envs.mpe import MPECooperativePushEnv
from cadenza.learn.nn.portable import load_policy_file
from cadenza.partners import load_partner, make_phase0_draft_zoo
from cadenza.partners.frozen import FrozenMAPPOPartner
from cadenza.partners.weights import weights_digest


def test_trained_draft_zoo_loads_and_plays(tmp_path, monkeypatch):
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))
    result = CliRunner().invoke(app, ["partners", "train-draft-zoo", "--frames=1024", "--json"])
    assert result.exit_code == 0, result.output
    members = json.loads(result.stdout)["members"]
    zoo = make_phase0_draft_zoo()
    assert [row["partner_id"] for row in members] == [spec.partner_id for spec in zoo[1:]]
    assert [row["frames"] for row in members] == [1024, 1024]
    actions = {}
    for spec in zoo:
        partner = load_partner(spec)
        uid = spec.extra["uid"]
        env = MPECooperativePushEnv(agent_uids=("ego", uid), episode_length=5)
        partner.bind(env.action_space[uid])
        obs, _ = env.reset(seed=1)
        partner.reset(seed=1)
        for _ in range(5):
            action = partner.act(obs)
            assert env.action_space[uid].contains(action)
            obs, *_ = env.step({"ego": np.zeros(2, np.float32), uid: action})
        actions[spec.class_name] = action
    assert len({action.tobytes() for action in actions.values()}) == 3

    # An evaluation plans the weights' digest, and its partners play no others.
    mappo = zoo[1]
    planned = weights_digest("local://mappo_seed42_step100k.pt", artifacts_root=tmp_path)
    config = PartnerConfig(
        class_name=mappo.class_name, weights_uri=mappo.weights_uri, extra={"uid": "partner"}
    )
    build_partner(config, weights_sha256=planned).reset(seed=0)
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        build_partner(config, weights_sha256="0" * 64).reset(seed=0)

    # A training that changes its partner is found out at its end.
    actors, read_actor = [], FrozenMAPPOPartner.read_actor

    def keep_actor(self, payload):
        actors.append(read_actor(self, payload))
        return actors[-1]

    class Meddler(RandomEgoTrainer):
        def observe(self, *args, **kwargs):
            super().observe(*args, **kwargs)
            actors[-1].layers[0].tensors["weight"].add_(1.0)

    monkeypatch.setattr(FrozenMAPPOPartner, "read_actor", keep_actor)

    training = EgoAHTConfig(
        algo="random",
        total_frames=10,
        artifacts_root=tmp_path,
        log_dir=tmp_path,
        env=EnvConfig(task="mpe_cooperative_push", episode_length=50),
        partner=config,
        evaluation=EvaluationConfig(episodes=1),
    )
    with pytest.raises(IntegrityError, match=r"frozen weights.*ADR-009"):
        run_training(training, trainer_factory=Meddler.from_config)

    # The converted MAPPO actor is the policy that the run itself stored.
    runs = (tmp_path / "draft_zoo_runs" / "artifacts").glob("*_step1024.policy.safetensors")
    policies = [load_policy_file(path) for path in runs]
    (policy,) = [policy for policy in policies if policy.facts["algorithm"] == "mappo"]
    states = np.random.default_rng(0).normal(size=(5, policy.observation_dim))
    played = load_partner(zoo[1]).act({"agent": {"panda_wristcam": {"state": states}}})
    np.testing.assert_allclose(np.clip(played, -1, 1), policy.act(states), atol=1e-6)
