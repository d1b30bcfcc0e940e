"""Any saved agent is judged, crossed with a zoo and met as a partner."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

import cadenza
from cadenza.aht.config import load_config
from cadenza.benchmark.cells import PolicyChoice
from cadenza.benchmark.evaluation_run import EvaluationConfig, PartnerChoice, run_evaluation
from cadenza.benchmark.policies import (
    EgoSeat,
    load_policy,
    policy_weights_sha256,
    read_policy,
    saved_policies,
    training_filter,
)
from cadenza.benchmark.training import run_training
from cadenza.benchmark.zoo.matrix import cross_play
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.core.shipped_configs import shipped_config
from cadenza.learn.nn.portable import load_policy_file, policy_path, save_policy_file
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.zoo_manifest import write_manifest
from tests.dashboards import trained
from tests.zoo_samples import made

SUFFIX = ".policy.safetensors"


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """Return a folder with a SAC agent, a PPO agent of a guarded task, and another task's."""
    folder = tmp_path_factory.mktemp("agents")
    sac = cadenza.SAC("cadenza/Crossing-v1", hidden_sizes=(8,), warmup_steps=20)
    sac.learn(40, folder=folder, evaluate_every=40, evaluation_episodes=1, progress=False)
    guarded = lambda: cadenza.guard("cadenza/Crossing-v1")  # noqa: E731 -- one use
    cadenza.PPO(guarded, hidden_sizes=(8,), num_envs=1).save(folder / "ppo")
    cadenza.SAC("Pendulum-v1", hidden_sizes=(8,)).save(folder / "pendulum")
    return folder


def test_evaluation_plays_agents_and_meets_them_as_partners(agents, tmp_path, monkeypatch):
    assert {f"best{SUFFIX}", f"last{SUFFIX}"} <= {path.name for path in agents.iterdir()}
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))  # of partners, another folder
    shutil.copy(agents / f"best{SUFFIX}", tmp_path / f"mate{SUFFIX}")
    cadenza.PPO.load(agents / "ppo").export_onnx(agents / "ppo.onnx")
    names = (f"best{SUFFIX}", "best", f"ppo{SUFFIX}", "ppo.onnx")
    config = EvaluationConfig(
        task="crossing",
        episode_length=10,
        policies=tuple(PolicyChoice(name=n, source=f"local://{n}") for n in names),
        partners=(
            PartnerChoice(
                name="mate", class_name="policy", weights_uri=f"local://artifacts/mate{SUFFIX}"
            ),
        ),
        seeds=(0, 1),
        episodes_per_seed=1,
        artifacts_root=agents,
    )
    outcome = run_evaluation(config, out=tmp_path / "out", workers=1)
    returns = {
        name: [episode.episode_return for episode in episodes]
        for name, episodes in outcome.episodes.items()
    }
    assert all(len(values) == 4 for values in returns.values())  # two seeds, two conditions
    assert returns["best"] == returns[f"best{SUFFIX}"]
    assert returns["ppo.onnx"] == pytest.approx(returns[f"ppo{SUFFIX}"], abs=1e-4)
    file = load_policy_file(agents / f"best{SUFFIX}")
    assert {p.weights_sha256 for p in outcome.plan.policies} >= {file.content_id}
    assert outcome.plan.partners[0].weights_sha256 == file.content_id
    assert (file.task, file.facts["algorithm"]) == ({"id": "cadenza/Crossing-v1"}, "SAC")
    for inputs in ({"partners": None}, {"policies": ("zero",)}):  # the policies, the partner
        risky = EvaluationConfig.model_validate(config.model_dump() | inputs)
        folder = agents if "partners" in inputs else tmp_path
        with pytest.raises(ConfigurationError, match=f"would be emptied, got one with {folder}"):
            run_evaluation(risky, out=folder, overwrite=True, workers=1)


def test_files_of_other_tasks_and_torn_pairs_are_refused(agents, tmp_path):
    with pytest.raises(CheckpointError, match="trained on 'Pendulum-v1'"):
        policy_weights_sha256(f"local://pendulum{SUFFIX}", artifacts_root=agents, task="crossing")
    for name in ("ppo", "ppo.json"):
        shutil.copy(agents / name, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"ppo\.policy\.safetensors"):
        read_policy(tmp_path / "ppo")
    shutil.copy(agents / f"pendulum{SUFFIX}", tmp_path / f"ppo{SUFFIX}")
    with pytest.raises(CheckpointError, match="expected beside it the policy"):
        read_policy(tmp_path / "ppo")
    seat = EgoSeat(uid="ego", observation_dim=3, low=-np.ones(1), high=np.ones(1))
    with pytest.raises(CheckpointError, match="for 3 observations and 1 actions"):
        load_policy(f"local://ppo{SUFFIX}", seat=seat, artifacts_root=agents)


def test_matrix_takes_agents_as_egos(agents, tmp_path):
    zoo = tmp_path / "zoo"
    made(zoo, population=1, task="crossing")
    run = tmp_path / "run"
    shutil.copytree(agents, run, ignore=shutil.ignore_patterns("p*"))
    for end in ("", ".json", SUFFIX):
        shutil.copy(run / f"best{end}", run / f"last{end}")
    egos = [agents / "best", agents / f"ppo{SUFFIX}", run / "best", run / "last"]
    result = cross_play([zoo], egos=egos, episodes=5, out=tmp_path / "matrix", workers=1)
    assert result.egos[1:] == (agents.name, "ppo", "run-best", "run-last")
    member = load_policy_file(zoo / "members" / f"fcp-s0-0-final.ego{SUFFIX}")
    assert member.seat == "ego"
    assert member.output.log_std is not None


def test_partner_draws_with_the_spread_of_its_file_and_is_bound(agents, monkeypatch):
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(agents))
    address = f"local://artifacts/ppo{SUFFIX}"
    partner = load_partner(PartnerSpec("policy", 0, 1, address, extra={"uid": "mate"}))
    partner.reset(seed=3)
    states = {"agent": {"mate": {"state": np.zeros((400, 10), np.float32)}}}
    file = load_policy_file(agents / f"ppo{SUFFIX}")
    still = partner.act(states)
    assert still.tobytes() == file.act(np.zeros((400, 10))).tobytes()
    drawn = partner.act(states, deterministic=False)
    assert not np.array_equal(drawn[0], drawn[1])
    assert partner.verify_weights() == file.content_id
    with pytest.raises(InputError, match="expected an actor for Discrete"):
        partner.bind(spaces.Discrete(4))
    other = PartnerSpec("policy", 0, 1, address, extra={"uid": "mate"}, weights_sha256="0" * 64)
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        load_partner(other).reset(seed=0)


def test_matrix_takes_folders_and_built_in_egos(agents, tmp_path):
    zoo = tmp_path / "zoo"
    made(zoo, "scripted", population=2, task="crossing")
    shutil.copytree(agents, tmp_path / "agent", ignore=shutil.ignore_patterns("p*"))
    (tmp_path / "seeds" / "policies").mkdir(parents=True)
    for seed in (0, 1):
        shutil.copy(agents / f"ppo{SUFFIX}", tmp_path / "seeds" / "policies" / f"x{seed}{SUFFIX}")
    egos = [tmp_path / "agent", tmp_path / "seeds", "goal_pd"]
    for run in ("a", "b"):  # two trainings by one method
        (tmp_path / run / "policies").mkdir(parents=True)
        shutil.copy(agents / f"ppo{SUFFIX}", tmp_path / run / "policies" / f"ppo_seed0{SUFFIX}")
        egos.append(tmp_path / run)
    result = cross_play([zoo], egos=egos, episodes=5, out=tmp_path / "matrix", workers=1)
    assert result.egos == ("agent", "x0", "x1", "a-ppo", "b-ppo", "goal_pd")
    with pytest.raises(CheckpointError, match="expected a policy, an agent, or a folder"):
        cross_play([zoo], egos=[tmp_path / "nothing"], episodes=5, out=tmp_path / "other")


def test_ego_has_seen_whom_its_file_names_though_they_are_held_out_now(tmp_path):
    manifest = made(tmp_path / "zoo", population=1, task="crossing")
    known = manifest.members[0]
    held_out = tuple(m.model_copy(update={"split": "held_out"}) for m in manifest.members)
    write_manifest(tmp_path / "zoo", manifest.model_copy(update={"members": held_out}))
    ego = load_policy_file(tmp_path / "zoo" / "members" / f"fcp-s0-0-final.ego{SUFFIX}")
    facts = {"trained_with": [f"{known.name}@{known.sha256}", "crossing_wanderer"]}
    save_policy_file(replace(ego, facts=facts), tmp_path / f"mine{SUFFIX}")
    egos = [tmp_path / f"mine{SUFFIX}"]
    result = cross_play([tmp_path / "zoo"], egos=egos, episodes=5, out=tmp_path / "out", workers=1)
    assert (result.seen, result.guessed) == ({"mine": (known.name,)}, ())


def test_copy_of_a_policy_file_is_judged_behind_the_filter_it_trained_behind(tmp_path):
    changes = ["algo=ppo", "total_frames=64", "checkpoint_every=64", "evaluation.every_frames=0"]
    changes += ["evaluation.episodes=1", f"artifacts_root={tmp_path}", f"log_dir={tmp_path}/logs"]
    config = load_config(config_path=shipped_config("train/crossing"), overrides=changes)
    (checkpoint,) = run_training(config).curve.checkpoint_paths
    (tmp_path / "mine").mkdir()
    shutil.copy(policy_path(checkpoint), tmp_path / "mine" / f"ego{SUFFIX}")
    assert config.safety.enabled
    assert training_filter(tmp_path / "mine" / f"ego{SUFFIX}") == config.safety


def test_folder_of_an_unfinished_training_says_how_to_go_on(tmp_path):
    trained(tmp_path / "training" / "seed0", 0, finished=False)
    with pytest.raises(CheckpointError, match=r"training has not ended; go on with .*--resume"):
        saved_policies(tmp_path)


def test_folder_of_trainings_means_the_newest_checkpoint_of_each(tmp_path):
    folder = tmp_path / "artifacts"
    folder.mkdir()
    for name in ("a.run.json", "a_step200.pt", "a_step90.pt", "b.run.json", "b_step7.pt"):
        (folder / name).touch()
    newest = [folder / "a_step200.pt", folder / "b_step7.pt"]
    assert saved_policies(tmp_path) == saved_policies(folder) == newest


def test_policy_with_a_memory_is_judged_as_it_acts_alone(tmp_path):
    recurrent = cadenza.PPO("cadenza/Crossing-v1", memory="gru", memory_size=4, num_envs=1)
    recurrent.save(tmp_path / "ppo")
    network = load_policy_file(tmp_path / f"ppo{SUFFIX}")
    bounds = network.output
    seat = EgoSeat(uid="ego", observation_dim=10, low=bounds.low, high=bounds.high)
    policy = load_policy("local://ppo", seat=seat, artifacts_root=tmp_path)
    rng = np.random.default_rng(0)
    seen, begins = rng.normal(size=(6, 3, 10)).astype(np.float32), np.zeros((6, 3), bool)
    begins[0], begins[3, 1] = True, True
    state = None
    policy.reset(seed=0)
    for rows, begin in zip(seen, begins, strict=True):
        for row in np.flatnonzero(begin):
            policy.reset_row(int(row), seed=0)
        expected, state = network.predict(rows, state=state, episode_start=begin)
        assert policy.act_rows(rows).tobytes() == expected.tobytes()
    alone, state = network.predict(seen[0, 0], state=None)
    policy.reset(seed=0)
    assert policy.act({"agent": {"ego": {"state": seen[0, 0]}}}).tobytes() == alone.tobytes()
