"""Zoos from end to end: trained, killed, resumed, measured, selected, played."""

import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from cadenza.benchmark.ray_executor import RayCluster
from cadenza.benchmark.zoo import jobs
from cadenza.benchmark.zoo.build import train_zoo
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.jobs import episode_seed
from cadenza.benchmark.zoo.matrix import cross_play, family_of, parse_matrix, write_matrix
from cadenza.benchmark.zoo.pairs import open_pairs, play, play_pairs
from cadenza.benchmark.zoo.responses import ResponseConfig, train_responses
from cadenza.benchmark.zoo.selecting import family_diversity, select_members
from cadenza.benchmark.zoo.stacked import PairPlayers, shared_reward
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.learn.nn.portable import policy_path
from cadenza.partners.zoo_manifest import read_manifest
from cadenza.partners.zoo_member import load_member
from tests.campaigns import nightly, size
from tests.e2e.commands import LIMIT_S, warm
from tests.zoo_samples import bytes_of, made, tiny

#: Trains the tiny zoo and is killed at the given call of `save_state` or, after the members, before
#: the result of the job.
CHILD = """
import os, signal, sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))
from cadenza.benchmark.zoo import jobs
from tests.zoo_samples import tiny
from cadenza.benchmark.zoo.build import train_zoo

owner, name = jobs, "write_sealed_json"
if sys.argv[3] == "state":
    owner, name = jobs.ZooJobRunner, "save_state"
original, calls = getattr(owner, name), []

def fatal(*args, **kwargs):
    calls.append(1)
    if len(calls) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

setattr(owner, name, fatal)
train_zoo(tiny(sys.argv[1], population=3), out=Path(sys.argv[2]), workers=1, mode="resume")
"""


@pytest.fixture(scope="module")
def fcp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fcp")
    made(folder, "fcp")
    return folder


@pytest.mark.parametrize("method", size(["fcp"], ["mep", "fcp"]))
def test_killed_at_any_time_and_resumed_gives_the_same_bytes(method, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    made(tmp_path / "whole", method, population=3)
    # The fifth state of fcp is the second policy's at the second mark: the others are elsewhere.
    for where, count in (("state", "5" if method == "fcp" else "3"), ("result", "1")):
        words = (method, tmp_path / "killed", where, count)
        ended = warm(script, *words, cwd=Path.cwd(), timeout=LIMIT_S)
        assert ended.code == -signal.SIGKILL, ended.err
    told = []
    resumed = {"out": tmp_path / "killed", "workers": 2, "mode": "resume"}
    train_zoo(tiny(method, population=3), **resumed, progress=lambda *report: told.append(report))
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "whole")
    done, total, label = told[-1]
    assert done == total
    assert label.startswith(f"zoo job {method}-s0")
    assert label.endswith(" is done")


def test_bytes_of_a_member_do_not_depend_on_those_it_trains_with(tmp_path):
    # One task that chooses with one that acts; both learners' shapes are those of `zoo train`.
    for task in ("foraging", "crossing"):
        ppo = MAPPOConfig(rollout_length=16, batch_size=50, epochs=2, normalize_rewards=True)
        config = tiny(
            task=task, population=6, steps=300, num_envs=5, episode_length=12, episodes=3, ppo=ppo
        )
        whole = tmp_path / task / "whole"
        digests = {m.name: m.sha256 for m in train_zoo(config, out=whole, workers=1).members}
        assert len(set(digests.values())) >= 6
        keys = jobs.job_keys(config)
        for group in ((0,), (5, 0), (1, 2), (3, 4)):
            folder = tmp_path / task / "-".join(map(str, group))
            runner = jobs.ZooJobRunner(
                folder=folder, config=config, task=config.spec, origin=("", ""), modules=()
            )
            assert [key for key, _ in runner.batch([keys[k] for k in group])] == [
                keys[k] for k in group
            ]
            for key in (keys[k] for k in group):
                assert all(
                    m.sha256 == digests[m.name] for m in jobs.finished_members(folder, key)
                ), (task, group, key)


@pytest.mark.slow
@pytest.mark.parametrize("workers", size([3], [2, 3]))
def test_any_number_of_workers_gives_the_bytes_of_one(workers, tmp_path):
    made(tmp_path / "one", population=5)
    train_zoo(tiny(population=5), out=tmp_path / "more", workers=workers)
    assert bytes_of(tmp_path / "more") == bytes_of(tmp_path / "one")


@pytest.mark.parametrize("method", ["mep", "brdiv", "lbrdiv", "comedi", "behavior"])
def test_interrupted_job_goes_on_from_its_newest_state(method, tmp_path, monkeypatch):
    made(tmp_path / "whole", method)
    original, saves = jobs.ZooJobRunner.save_state, []

    def save(self, *arguments):
        original(self, *arguments)
        saves.append(arguments)
        if len(saves) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(jobs.ZooJobRunner, "save_state", save)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "stopped", method)
    train_zoo(tiny(method), out=tmp_path / "stopped", workers=1, mode="resume")
    assert bytes_of(tmp_path / "stopped") == bytes_of(tmp_path / "whole")


def test_folder_of_another_request_is_refused(fcp):
    with pytest.raises(ConfigurationError, match=r"config\.alpha = 0\.01, got 0\.5"):
        train_zoo(tiny("fcp", alpha=0.5), out=fcp, workers=1, mode="resume")


def test_members_are_start_halfway_and_end_of_every_run(fcp):
    manifest = read_manifest(fcp)
    assert [(m.name, m.tier) for m in manifest.members[:3]] == [
        ("fcp-s0-0-init", "init"),
        ("fcp-s0-0-mid", "mid"),
        ("fcp-s0-0-final", "final"),
    ]
    first, middle, last = manifest.members[:3]
    assert (first.step, last.step) == (0, 240)
    assert middle.step in (0, 80, 160, 240)
    assert {m.counterpart for m in manifest.members[:3]} == {last.name}
    assert first.sha256 != last.sha256


def test_behavior_family_is_held_out_with_its_preferences(tmp_path):
    manifest = made(tmp_path, "behavior", preferences=(-1.0, 0.0, 1.0))
    assert {m.split for m in manifest.members} == {"held_out"}
    weights = [m.preference for m in manifest.members]
    assert weights[0] != weights[1]
    assert set(weights[0]) == set(events_of("mpe_cooperative_push").names)


def test_skill_is_the_mean_return_of_the_pair_it_names(fcp):
    config, member = tiny("fcp"), read_manifest(fcp).member("fcp-s0-1-init")
    env = open_pairs(config, config.episodes)
    ego, partner = load_member(fcp, member.counterpart).ego, load_member(fcp, member.name).partner
    played = play(
        env,
        lambda states: ego.act(states[0]),
        lambda states: partner.act(states[1]),
        horizon=10,
        events=events_of(config.task),
        seed=episode_seed(config),
    )
    assert member.skill.value == played.returns.mean()
    assert member.features["waits"] == pytest.approx(played.events[:, 2].mean())


def test_pairs_in_one_batch_play_what_each_plays_alone():
    config = tiny(task="foraging", options={"size": 5}, episode_length=25)
    policies = [
        (lambda states, r=robot, s=shift: (np.abs(states[r, :, :1]) + s) % 6 // 1)
        for robot, shift in ((0, 1), (1, 2), (0, 4))
    ]
    pairs = [(policies[0], policies[1]), (policies[2], policies[1]), (policies[2], policies[2])]
    settings = {"horizon": 25, "events": events_of("foraging"), "seed": 3}
    together = play_pairs(open_pairs(config, 3 * 7), pairs, **settings)
    for (ego, partner), episodes in zip(pairs, together, strict=True):
        alone = play(open_pairs(config, 7), ego, partner, **settings)
        for name in ("returns", "successes", "events", "states"):
            assert np.array_equal(getattr(episodes, name), getattr(alone, name)), name


@pytest.mark.parametrize(("robot", "identity"), [(0, 0), (1, 2)])
def test_plain_policy_acts_as_the_network_with_robot_and_identity_told(robot, identity):
    config = tiny("brdiv", population=3, task="crossing", episode_length=20)
    env = open_pairs(config, 4)
    players = PairPlayers(config, env, seeds=[1, 2], names=["a", "b"], identities=3)
    state = players.learner.member_state(robot)
    # First weights give almost no action.
    players.learner.load_member_state(robot, state | {"parameters": 5.0 * state["parameters"]})
    moments = []

    def rule(moment):
        moments.append(moment.before)
        return shared_reward(moment)

    players.play([0], rule, np.full((2, 4), identity))
    rows = players.learner.scale(players.rows[:, -1], learn=False)
    still = torch.zeros(*rows.shape[:2], env.action_dim)
    unit = players.learner.act(rows, noise=still)[robot]
    policy = players.policy(robot, robot, identity)
    assert policy.act(moments[-1][robot]) == pytest.approx(env.scaled(robot, unit), abs=1e-5)
    half = float(env.high[robot][0])  # the bounds are symmetric
    head = players.learner.policy(robot).head.log_std.detach().numpy()
    assert policy.output.log_std.numpy() == pytest.approx(head + np.log(half), abs=1e-6)


def test_cross_play_plays_learned_egos_with_everybody(fcp, tmp_path):
    made(tmp_path / "scripted", "scripted", population=3)

    def matrix(name, *zoos, **more):
        return cross_play(zoos, episodes=5, out=tmp_path / name, workers=1, **more)

    result = matrix("one", fcp, tmp_path / "scripted")
    assert result.egos == ("fcp-s0-0-final", "fcp-s0-1-final")
    assert result.values.shape == (2, 9)
    assert sorted(result.column_order) == list(range(9))
    again = matrix("two", tmp_path / "scripted", fcp)
    assert again.values[:, 3:].tolist() == result.values[:, :6].tolist()  # starts are common
    egos = []
    for run in ("a", "b"):  # two runs, one name for their files
        (tmp_path / run).mkdir()
        for end in (".pt", ".pt.json"):
            member = fcp / "members" / f"fcp-s0-{len(egos)}-final{end}"
            shutil.copyfile(member, tmp_path / run / f"policy{end}")
        egos.append(tmp_path / run / "policy.pt")
    twins = matrix("three", fcp, egos=egos)
    assert twins.egos[2:] == ("a-policy", "b-policy")
    assert twins.values[2:].tolist() == result.values[:, :6].tolist()
    shutil.copytree(tmp_path / "a", tmp_path / "again" / "a")
    with pytest.raises(ConfigurationError, match=r"a/policy\.pt and .*again/a/policy\.pt, both"):
        matrix("four", fcp, egos=[egos[0], tmp_path / "again" / "a" / "policy.pt"])
    diversity = family_diversity([fcp, tmp_path / "scripted"])
    assert diversity["scripted"]["members"] == 2
    assert diversity["scripted"]["minus_fcp"][0] > 0.0
    made(tmp_path / "physical", "physical", population=3)
    assert family_diversity([fcp, tmp_path / "physical"])["physical"]["jsd"][0] > 0.0
    table = write_matrix(tmp_path, result.model_copy(update={"diversity": diversity}))
    found = parse_matrix(table.read_bytes(), source="matrix")
    assert (found.cells[0][0].episodes, found.diversity) == (5, diversity)
    changed = table.read_bytes().replace(b'"episodes":5', b'"episodes":6')
    with pytest.raises(IntegrityError, match="the file was changed"):
        parse_matrix(changed, source="matrix")


def test_selected_zoo_is_a_zoo_and_holds_the_chosen_weights(fcp, tmp_path):
    manifest, selection = select_members([fcp], size=2, criterion="br_div", out=tmp_path / "new")
    assert read_manifest(tmp_path / "new") == manifest
    for name in selection.names:
        chosen, source = (load_member(folder, name) for folder in (tmp_path / "new", fcp))
        assert chosen.partner.content_id == source.partner.content_id
    before = bytes_of(tmp_path / "new")
    with pytest.raises(ConfigurationError, match="kind of work, got one with 'zoo selection'"):
        train_zoo(tiny("scripted"), out=tmp_path / "new", workers=1, mode="resume")
    assert bytes_of(tmp_path / "new") == before


def test_zoo_is_never_emptied_for_work_that_reads_it(tmp_path):
    source = tmp_path / "run" / "scripted"
    manifest = made(source, "scripted")
    before = bytes_of(source)
    select = partial(select_members, [source], size=1, criterion="br_div")
    play = partial(cross_play, [source], egos=["zero"])
    respond = partial(train_responses, manifest, ResponseConfig(), zoo=source)
    for work, told in ((select, {"mode": "overwrite"}), (play, {"overwrite": True}),
                       (respond, {"mode": "overwrite"})):  # fmt: skip
        for out in (source, source.parent):
            with pytest.raises(ConfigurationError, match=f"emptied, got one with {source}"):
                work(out=out, **told)
    assert bytes_of(source) == before


def test_zoo_without_final_members_is_probed_and_selected_from_again(fcp, tmp_path):
    quota = {"final": 0}
    sealed, _ = select_members([fcp], size=2, criterion="fcp", quota=quota, out=tmp_path / "new")
    assert "final" not in {member.tier for member in sealed.members}
    assert family_diversity([tmp_path / "new"]) == {}
    again = {"size": 1, "criterion": "jsd", "out": tmp_path / "again"}  # probed without finals
    (one,) = select_members([tmp_path / "new"], **again)[0].members
    policy = policy_path(Path(one.file), "partner")
    assert (tmp_path / "again" / policy).read_bytes() == (fcp / policy).read_bytes()


def test_zoos_of_other_settings_or_the_same_members_are_not_mixed(fcp, tmp_path):
    with pytest.raises(ConfigurationError, match=r"distinct members, got 'fcp-s0-0-final' twice"):
        cross_play([fcp, fcp], out=tmp_path / "m")
    made(tmp_path, "scripted", episode_length=11)
    with pytest.raises(ConfigurationError, match=r"10 steps.*11 steps"):
        cross_play([fcp, tmp_path], out=tmp_path / "m")


@nightly
def test_ray_cluster_gives_the_bytes_of_one_process(fcp, tmp_path):
    from tests.integration.loop.ray_cluster import quiet_ray, running_cluster

    with quiet_ray(), running_cluster():
        train_zoo(tiny("fcp"), out=tmp_path, cluster=RayCluster())
    assert bytes_of(tmp_path) == bytes_of(fcp)


def test_foragers_are_a_family_each_and_have_no_other_bodies(tmp_path):
    manifest = train_zoo(ZooConfig(method="scripted", task="foraging", population=11), out=tmp_path)
    families = [family_of(member) for member in manifest.members]
    assert len(set(families)) == 11
    assert families[4] == "forager_nearest"
    with pytest.raises(ConfigurationError, match="physical: expected a task among crossing"):
        train_zoo(ZooConfig(method="physical", task="foraging"), out=tmp_path / "physical")


def test_scripted_partners_that_choose_are_as_diverse_as_their_choices_differ(tmp_path):
    task = {"task": "foraging", "episode_length": 5}
    made(tmp_path / "learned", population=2, **task)
    made(tmp_path / "scripted", "scripted", **task)
    found = family_diversity([tmp_path / "learned", tmp_path / "scripted"])
    # two sure choosers: ln 2 nats where they differ, 0 where they agree
    assert 0.1 < found["scripted"]["jsd"][0] < np.log(2.0)
    assert found["scripted"]["jsd"][0] > found["fcp"]["jsd"][0]


def test_wrong_settings_are_named():
    with pytest.raises(ConfigurationError, match="population: expected at least 2 for brdiv"):
        ZooConfig(method="brdiv", task="crossing", population=1)
