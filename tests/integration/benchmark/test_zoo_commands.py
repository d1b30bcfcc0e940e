"""`cadenza zoo`, through the command line."""

import json
import re
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from cadenza.cli.main import app
from cadenza.partners.zoo_manifest import Skill, read_manifest, write_manifest

TINY = (
    "population=1 steps=240 num_envs=4 episode_length=10 snapshots=3 episodes=4 "
    "ppo.rollout_length=10 ppo.batch_size=40 ppo.epochs=1 ppo.hidden_sizes=[8]"
)


def cadenza(line):
    return CliRunner().invoke(app, ["zoo", *line.split()])


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoos") / "z"
    ended = cadenza(f"train fcp --task mpe_cooperative_push -j 1 --json --out {folder} {TINY}")
    assert ended.exit_code == 0, ended.output
    made = json.loads(ended.stdout)
    assert (made["task"], len(made["members"])) == ("mpe_cooperative_push", 3)
    assert made["requests"][0]["ppo"]["hidden_sizes"] == [8]
    # 240 steps teach nothing, and the command says so.
    assert made["unlearned"] == ["fcp-s0-0-final"]
    assert "1 of 1 members are not better than before their training" in ended.stderr
    return folder


def test_members_that_beat_their_beginnings_are_not_named(zoo, tmp_path):
    assert "(as at its start)" in cadenza(f"show {zoo}").stdout
    copy = shutil.copytree(zoo, tmp_path / "z")
    made = read_manifest(copy)
    last = made.members[2]
    better = last.began.model_copy(update={"low": last.began.high + 0.1, "value": 0.0})
    learned = (*made.members[:2], last.model_copy(update={"skill": better}))
    write_manifest(copy, made.model_copy(update={"members": learned}))
    assert read_manifest(copy).unlearned == []
    assert "(as at its start)" not in cadenza(f"show {copy}").stdout


def test_zoo_is_listed_and_shown(zoo, monkeypatch):
    listed = json.loads(cadenza(f"list {zoo.parent} --json").stdout)["zoos"]
    assert [(row["zoo"], row["members"], row["public"]) for row in listed] == [(str(zoo), 3, 3)]
    monkeypatch.chdir(zoo.parent)
    listed = cadenza("list .").stdout.split()
    assert listed[-5:] == ["z", "mpe_cooperative_push@v1", "fcp", "3", "3"]
    shown = cadenza(f"show {zoo}").stdout
    assert "fcp-s0-0-mid" in shown
    assert "skill: beside the ego of the member's last checkpoint" in shown


def test_skills_are_shown_in_the_units_of_their_metric(zoo, tmp_path):
    copy = shutil.copytree(zoo, tmp_path / "z")
    made = read_manifest(copy)
    skills = [
        Skill(metric=metric, value=0.984, low=0.9, high=1.0, episodes=9)
        for metric in ("success", "return")
    ]
    members = [
        m.model_copy(update={"skill": s}) for m, s in zip(made.members, skills, strict=False)
    ]
    write_manifest(copy, made.model_copy(update={"members": (*members, *made.members[2:])}))
    shown = cadenza(f"show {copy}").stdout
    assert "98 % [90, 100]" in shown
    assert "1.0 [0.9, 1.0]" in shown


def test_printed_partners_play_in_an_evaluation_with_a_member_as_ego(zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(zoo.parent)
    printed = yaml.safe_load(cadenza("show z --as-partners").stdout)
    config = EvaluationConfig.model_validate(
        {
            "task": "mpe_cooperative_push",
            "episode_length": 10,
            "policies": [{"name": "ego", "source": printed["partners"][2]["weights_uri"]}],
            "conditions": [{"name": "plain"}],
            "seeds": [0],
            "episodes_per_seed": 2,
            **printed,
        }
    )
    played = run_evaluation(config, out=tmp_path / "out", workers=1).episodes["ego"]
    assert {episode.partner for episode in played} == {p["name"] for p in printed["partners"]}


def test_selection_and_matrix_are_written(zoo, tmp_path):
    for limits, left in (
        ("", {"fcp-s0-0-init", "fcp-s0-0-mid", "fcp-s0-0-final"}),
        ("--quota final=0", {"fcp-s0-0-init", "fcp-s0-0-mid"}),
        ("--floor 99", {"fcp-s0-0-init"}),
    ):
        line = f"select {zoo} -n 3 -c fcp {limits} --seed 3 --overwrite --out {tmp_path / 's'}"
        chosen = json.loads(cadenza(f"{line} --json").stdout)
        assert (chosen["selection"]["criterion"], chosen["requests"][0]["seed"]) == ("fcp", 3)
        assert set(chosen["selection"]["names"]) == left
    for criterion, kind in (("pe", "diversity, nats"), ("br_div", "determinant")):
        line = f"select {zoo} -n 2 -c {criterion} --overwrite --out {tmp_path / 's'}"
        told = cadenza(line).stdout
        first, second = json.loads(cadenza(f"{line} --json").stdout)["selection"]["trace"]
        assert f"\n{kind}: {first:.3g}, {second:.3g}\n" in told
        # pe and fcp both choose the first and the last member
        gains = re.findall("more than by the criterion fcp: (.*)", told)
        assert gains == (["+0 [0, 0]"] if criterion == "pe" else [])
    out = tmp_path / "m"
    ended = cadenza(f"matrix {zoo} --episodes 5 --out {out} -j 1")
    assert ended.exit_code == 0, ended.output
    assert len(json.loads((out / "matrix.json").read_text())["cells"][0]) == 3
    bundle = out / "bundles" / "fcp-s0-0-final"
    assert all_ok(verify_bundle_dir(bundle, allow_dirty=True))
    assert cadenza(f"matrix {zoo} --episodes 5 --out {out}").exit_code == 2  # it is in use
    assert cadenza(f"matrix {zoo} --episodes 5 --out {out} --resume -j 1 --json").exit_code == 0
    assert "--seen among the zoos" in cadenza(f"matrix {zoo} --seen {out} --out {out}").stderr
    assert "at least 2, or 0 for none" in cadenza(f"matrix {zoo} --encounters 1").stderr
    assert "a multiple of 5" in cadenza(f"matrix {zoo} --episodes 7 --out {out}").stderr


@pytest.mark.parametrize("command", ["show {}", "matrix {}", "best-response {}"])
def test_folder_without_a_zoo_is_told_in_one_sentence(command, tmp_path):
    ended = cadenza(command.format(tmp_path))
    told = "expected a zoo, got no manifest.json in it; make one with `cadenza zoo train`, or name"
    assert ended.stderr == f"error: {tmp_path}: {told} the folder of another.\n"
    assert ended.exit_code == 10
    assert "expected a zoo, got no such folder" in cadenza(command.format(tmp_path / "no")).stderr


def test_best_response_without_partners_says_what_it_takes():
    told = "expected one zoo, or --task, --partners and --option of it, got"
    assert f"{told} neither." in cadenza("best-response").stderr
    both = cadenza("best-response z --task crossing --partners crossing_chaser").stderr
    assert f"{told} z, --task crossing, --partners crossing_chaser." in both


def test_swapped_weights_end_with_the_code_of_damaged_data(zoo, tmp_path):
    copy = tmp_path / "z"
    shutil.copytree(zoo, copy)
    for suffix in (".pt", ".pt.json"):
        members = copy / "members"
        shutil.copyfile(members / f"fcp-s0-0-init{suffix}", members / f"fcp-s0-0-final{suffix}")
    ended = cadenza(f"show {copy}")
    assert ended.exit_code == 10
    assert "zoo member 'fcp-s0-0-final'" in ended.stderr


def test_policy_files_beside_members_are_checked(zoo, tmp_path):
    members = shutil.copytree(zoo, tmp_path / "z") / "members"
    end = ".ego.policy.safetensors"
    shutil.copyfile(members / f"fcp-s0-0-init{end}", members / f"fcp-s0-0-final{end}")
    ended = cadenza(f"show {tmp_path / 'z'}")
    assert ended.exit_code == 10
    assert "expected the policy of 'fcp-s0-0-final', got another one" in ended.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("train fcp steps", "expected key=value, got 'steps'"),
        ("train fcp stepz=1", "stepz: expected a known key, got 'stepz'; did you mean 'steps'?"),
        (
            "train fcp ppo.gama=1",
            "ppo.gama: expected a known key, got 'gama'; did you mean 'gamma'",
        ),
        ("train fcq", "method: expected 'fcp', 'mep', 'brdiv', 'lbrdiv', 'comedi', 'behavior'"),
        ("train fcp --executor slurm", "expected local or ray"),
        ("train fcp --resume --overwrite", "got both"),
        ("select z -n 1 -o s --criterion best", "expected one of mep, pe, fcp, br_div"),
        ("select z -n 1 -o s --quota final", "expected key=value, got 'final'"),
        ("select z -n 1 -o s --quota final=some", "expected e.g. final=4"),
    ],
)
def test_wrong_words_are_told(line, told):
    ended = cadenza(line)
    assert ended.exit_code == 2
    assert told in " ".join(ended.stderr.split())
