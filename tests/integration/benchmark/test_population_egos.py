"""Egos of the front door beside populations: who plays, what learning sees, what files remember."""

import shutil
from functools import partial

import gymnasium
import numpy as np
import pytest

import cadenza
from cadenza.benchmark.imitation import imitation_batch, imitation_env
from cadenza.benchmark.policies import trained_with
from cadenza.benchmark.populations import population
from cadenza.core.errors import CheckpointError, ConfigurationError, UnknownNameError
from cadenza.learn.nn.portable import load_policy_file, policy_path
from cadenza.partners.zoo_manifest import read_manifest, write_manifest
from tests.unit.learn.test_api import assert_same
from tests.zoo_samples import made

SMALL = {"seed": 0, "num_envs": 6, "rollout_length": 8, "batch_size": 24, "hidden_sizes": (8,)}
FORAGERS = ("forager_nearest", "forager_farthest")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoos") / "pairs"
    made(folder, task="foraging", options={"size": 7}, episode_length=12, episodes=2, steps=80)
    return folder


def learned(agent, steps=144):
    return agent.learn(steps, progress=False)


@pytest.mark.parametrize("name", ["foraging", "cadenza/Foraging-v1"])
def test_agent_saved_and_loaded_goes_on_beside_its_partners_bit_for_bit(zoo, tmp_path, name):
    beside = {"partners": [zoo, *FORAGERS], "sampler": "learnability"}
    whole = learned(learned(cadenza.PPO(name, **SMALL, **beside)))
    learned(cadenza.PPO(name, **SMALL, **beside)).save(tmp_path / "half")
    assert_same(learned(cadenza.load(tmp_path / "half")), whole)


def test_files_tell_the_partners_of_all_trainings(zoo, tmp_path):
    members = read_manifest(zoo).members
    met = sorted([*(f"{member.name}@{member.sha256}" for member in members), "forager_nearest"])
    agent = cadenza.PPO("foraging", partners=[zoo, "forager_nearest"], **SMALL)
    assert trained_with(*agent.export_policy(tmp_path / "fresh")) is None
    learned(agent).save(tmp_path / "first")
    assert trained_with(tmp_path / "first") == tuple(met)
    assert "trained_with" not in repr(load_policy_file(policy_path(tmp_path / "first")))
    beside = cadenza.PPO.load(tmp_path / "first", "foraging", partners="forager_farthest")
    assert trained_with(*beside.export_policy(tmp_path / "second")) == tuple(met)
    learned(beside).save(tmp_path / "third")
    assert trained_with(tmp_path / "third") == tuple(sorted(["forager_farthest", *met]))


def test_files_tell_of_egos_without_partners_of_their_own(tmp_path):
    small = {key: value for key, value in SMALL.items() if key != "seed"}
    learned(cadenza.CEC("mpe_cooperative_push", **small)).save(tmp_path / "cec")
    learned(cadenza.PPO("Pendulum-v1", **small)).save(tmp_path / "ppo")
    learned(cadenza.PPO("cadenza/Crossing-v1", **small)).save(tmp_path / "one")
    told = [trained_with(tmp_path / name) for name in ("cec", "ppo", "one")]
    assert told == [(), None, ("crossing_goal_seeker",)]


def test_saved_agent_refuses_a_member_whose_weights_are_others(zoo, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(zoo, copy)
    learned(cadenza.PPO("foraging", partners=copy, **SMALL)).save(tmp_path / "agent")
    manifest = read_manifest(copy)
    first = manifest.members[0]
    trained_again = first.model_copy(update={"sha256": "0" * 64})
    members = (trained_again, *manifest.members[1:])
    write_manifest(copy, manifest.model_copy(update={"members": members}))
    with pytest.raises(CheckpointError, match="expected weights with SHA-256"):
        learned(cadenza.load(tmp_path / "agent"))


def test_guarded_batch_beside_partners_comes_back_bit_for_bit(tmp_path):
    def agent(make):
        return make(cadenza.guard(gymnasium.make_vec("cadenza/Crossing-v1", 5, partners=NAMES)))

    small = {k: v for k, v in SMALL.items() if k != "num_envs"}
    whole = learned(learned(agent(partial(cadenza.PPO, **small)), 120), 120)
    learned(agent(partial(cadenza.PPO, **small)), 120).save(tmp_path / "half")
    assert_same(learned(agent(partial(cadenza.PPO.load, tmp_path / "half")), 120), whole)


NAMES = ("crossing_wanderer", "crossing_goal_seeker", "crossing_stationary")


def test_step_tells_learning_what_the_partner_saw_and_did(zoo):
    envs = gymnasium.make_vec("cadenza/Foraging-v1", 9, partners=[zoo, "forager_nearest"])
    envs.reset(seed=3)
    partner = envs.env.single_observation_space["agent"]["partner"]["state"]
    assert envs.partner_observation_space == partner
    for _ in range(12):
        before = envs.unwrapped._seen["agent"]["partner"]["state"].copy()
        info = envs.step(np.zeros(9, np.int64))[-1]
        np.testing.assert_array_equal(info["partner_observation"], before)
        assert info["partner_action"].shape == (9,)
        assert all(map(envs.partner_action_space.contains, info["partner_action"]))


def test_row_of_a_batch_meets_whom_one_environment_meets():
    batch = gymnasium.make_vec("cadenza/Crossing-v1", 6, partners=NAMES)
    one = gymnasium.make("cadenza/Crossing-v1", partners=NAMES).unwrapped
    states, _ = batch.reset(seed=40)
    for row in range(6):
        state, _ = one.reset(seed=40 + row)
        np.testing.assert_array_equal(state, states[row])
        assert one.drawn == batch.pool.chosen[row]
    assert len(set(batch.pool.chosen)) > 1


def test_sampler_is_told_success_or_return_of_every_episode():
    envs = gymnasium.make_vec("cadenza/Crossing-v1", 4, partners=NAMES, sampler="maximin")
    envs.reset(seed=0)
    told = []
    while len(told) < 4:
        *_, info = envs.step(np.zeros((4, 2), np.float32))
        told += info["success"][info.get("_final_obs", np.zeros(4, bool))].tolist()
    scores = [score for each in envs.sampler.state_dict()["scores"] for score in each]
    assert sorted(scores) == sorted(map(float, told))


def test_zoo_stands_for_its_public_members_and_its_settings(zoo):
    found = population("foraging", zoo)
    assert len(found.partners) == 6
    assert found.options["size"] == 7
    assert found.episode_length == 12
    envs = gymnasium.make_vec("cadenza/Foraging-v1", 2, partners=zoo)
    assert envs.env.episode_length == 12
    assert found.zoos[0].members == tuple(m.name for m in read_manifest(zoo).members)
    assert found.partners[0].weights_sha256 == read_manifest(zoo).members[0].sha256


def test_held_out_members_are_refused(zoo, tmp_path):
    copy = tmp_path / "held"
    shutil.copytree(zoo, copy)
    manifest = read_manifest(copy)
    held = tuple(m.model_copy(update={"split": "held_out"}) for m in manifest.members)
    write_manifest(copy, manifest.model_copy(update={"members": held}))
    with pytest.raises(ConfigurationError, match=r"public members, got 6 that are held out; train"):
        cadenza.PPO("foraging", partners=copy)
    one = population("foraging", zoo).partners[0].model_dump()
    named = {**one, "weights_uri": one["weights_uri"].replace("pairs", "held")}
    with pytest.raises(ConfigurationError, match="public member, got one that is held out"):
        cadenza.PPO("foraging", partners={**named, "extra": {"root": str(tmp_path)}})


@pytest.mark.parametrize(
    ("name", "how", "told"),
    [
        ("crossing", {"sampler": "rank"}, "expected partners beside a sampler"),
        ("crossing", {"partners": "nobody"}, "folder of a zoo or the name of a partner class"),
        ("crossing", {"partners": NAMES, "sampler": "hard"}, "sampler: expected one of uniform"),
        ("crossing", {"partners": "forager_nearest"}, "expected one that plays task 'crossing'"),
        (
            "CartPole-v1",
            {"partners": NAMES},
            "takes partners, .*'CartPole-v1', which takes no ",
        ),
        ("Acrobot-v1", {"partners": NAMES}, "'Acrobot-v1', which takes no partners."),
        ("Acrobot-v9", {"partners": NAMES}, "that takes partners, .*'Acrobot-v9': "),
        (lambda: gymnasium.make("CartPole-v1"), {"partners": NAMES}, "expected the id of a task"),
    ],
)
def test_partners_that_cannot_be_are_refused(name, how, told):
    with pytest.raises(ConfigurationError, match=told):
        cadenza.PPO(name, **how)


def test_agents_know_tasks_by_their_names_without_partners_too(tmp_path):
    agent = learned(cadenza.PPO("crossing", **SMALL))
    assert_same(agent, learned(cadenza.PPO("cadenza/Crossing-v1", **SMALL)))
    assert cadenza.load(agent.save(tmp_path / "agent")).evaluate(1).mean
    with pytest.raises(UnknownNameError, match=r"'crosing': expected one of .*mean 'crossing'"):
        cadenza.PPO("crosing")
    assert cadenza.PPO("Acrobot", num_envs=1).envs.num_envs == 1  # as Gymnasium, the latest one


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"vary": {"ranges": {}}}, "vary: expected the partner 'open', got partner=None"),
        ({"partner": "open", "sampler": "rank"}, "sampler: expected another partner than 'open'"),
        ({"partner": "open", "partners": NAMES}, "partners: expected another partner than 'open'"),
    ],
)
def test_arguments_without_effect_are_refused(how, told):
    with pytest.raises(ConfigurationError, match=told):
        gymnasium.make_vec("cadenza/Crossing-v1", 2, **how)


def test_zoo_of_another_task_is_refused(zoo):
    with pytest.raises(ConfigurationError, match="a zoo of task 'crossing', got one of 'foraging'"):
        cadenza.PPO("crossing", partners=zoo)


def test_tasks_of_choices_have_imitation_batches_and_experts():
    batch = imitation_batch("foraging", 4, expert=None, partners=FORAGERS)
    learned(cadenza.PPO(batch, seed=0, rollout_length=8, batch_size=32))
    taught = imitation_batch("foraging", 4, expert="forager_nearest", partners=FORAGERS)
    taught.reset(seed=2)
    one = imitation_env("foraging", expert="forager_nearest", partners=FORAGERS)()
    one.reset(seed=2)
    assert taught.expert_action()[0] == one.expert_action()
    assert taught.action_space.contains(taught.expert_action())
