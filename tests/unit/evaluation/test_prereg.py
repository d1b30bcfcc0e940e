"""A registration is what its tag locks, and says what reviewers need."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError, PreregistrationError
from cadenza.core.git import run_git
from cadenza.evaluation.prereg import (
    CANONICAL_AXIS_ORDER,
    PREREG_MISMATCH_EXIT_CODE,
    PreregDocument,
    PreregistrationSpec,
    freeze_registration,
    load_prereg,
    load_prereg_document,
    parse_prereg,
    run_differences,
    verify_git_tag,
)
from cadenza.evaluation.results import EpisodeResult, SpikeRun

GIT = shutil.which("git") or "git"
SPEC = {
    "axis": "CM",
    "condition_pair": {"homogeneous_id": "ideal", "heterogeneous_id": "lossy"},
    "seeds": [0, 1],
    "episodes_per_seed": 2,
    "estimator": "iqm_success_rate",
    "git_tag": "prereg-cm",
}


def spec(**changes):
    return PreregistrationSpec.model_validate(SPEC | changes)


@pytest.fixture
def repo(tmp_path):
    for name, text in (("cm.yaml", json.dumps(SPEC)), ("other.yaml", "task_id: x\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    identity = ("config user.name t", "config user.email t@example.org")
    for words in ("init -q", *identity, "add .", "commit -qm x", "tag prereg-cm"):
        subprocess.run([GIT, *words.split()], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"bootstrap_method": "iid"}, "expected 'cluster' for a leaderboard run"),
        ({"seeds": []}, "expected at least one seed"),
        ({"seeds": [1, 1]}, "no repeats"),
        ({"episodes_per_seed": 0}, "greater than 0"),
        ({"estimator": "best_of_five"}, "expected iqm_success_rate or mean_success_rate"),
        ({"condition_pair": {"homogeneous_id": "a", "heterogeneous_id": "a"}}, "two different"),
        ({"failure_policy": "hide"}, "strict"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_spec_refuses(changes, told):
    with pytest.raises(ValidationError, match=told):
        spec(**changes)


def test_iid_bootstrap_serves_power_and_debugging():
    assert spec(bootstrap_method="iid", run_purpose="power").bootstrap_method == "iid"
    assert spec(bootstrap_method="hierarchical").run_purpose == "leaderboard"


def test_loading_tells_the_two_forms_apart(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(SPEC))
    assert load_prereg(path) == spec()
    with pytest.raises(ValidationError):
        load_prereg_document(path)
    path.write_text("{task_id: x, git_tag: t, parameters: {}, decision_rules: ''}")
    assert load_prereg_document(path) == PreregDocument(
        task_id="x", git_tag="t", parameters={}, decision_rules=""
    )
    with pytest.raises(ValidationError):
        load_prereg(path)
    path.write_text("")
    with pytest.raises(ValidationError):
        load_prereg(path)
    with pytest.raises(FileNotFoundError):
        load_prereg(tmp_path / "none.yaml")
    with pytest.raises(
        ConfigurationError, match=r"\['AS', 'CM', 'CR', 'OM', 'PF', 'SA'\], got 'X'"
    ):
        parse_prereg(json.dumps(SPEC | {"axis": "X"}).encode(), source="p")
    assert sorted(CANONICAL_AXIS_ORDER) == ["AS", "CM", "CR", "OM", "PF", "SA"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a: &a [x]\nb: [*a, *a]\n", "got an alias"),
        (b"- 1\n", "expected a mapping, got list"),
        (b"[" * 5000, "nested without end"),
        (b"a: !!python/object:os.system {}\n", "remove the tag"),
        (b"#" * (1 << 20) + b"\n", "expected at most 1048576 bytes"),
        (b"\xff", "expected YAML in UTF-8"),
    ],
)
def test_hostile_registrations_are_refused_in_one_sentence(content, told):
    with pytest.raises(ConfigurationError, match=told) as refused:
        parse_prereg(content, source="p")
    assert "\n" not in str(refused.value)


def test_tag_locks_exactly_the_committed_bytes(repo):
    blob = run_git(repo, "rev-parse", "prereg-cm:cm.yaml").decode().strip()
    assert verify_git_tag(spec(), Path("cm.yaml"), repo_path=repo) == blob
    assert verify_git_tag(spec(), repo / "cm.yaml", repo_path=repo) == blob
    (repo / "cm.yaml").write_text(json.dumps(SPEC | {"seeds": [7, 8]}))
    with pytest.raises(PreregistrationError, match="edited after its registration") as refused:
        verify_git_tag(spec(), Path("cm.yaml"), repo_path=repo)
    assert blob in str(refused.value)


@pytest.mark.parametrize(
    ("tag", "path", "told"),
    [
        ("no-such-tag", "cm.yaml", "the tag does not exist"),
        ("prereg-cm^{tree}", "cm.yaml", "git failed"),  # an expression is no name
        ("--help", "cm.yaml", "does not exist"),
        ("prereg-cm", "new.yaml", "none at this path"),
        ("prereg-cm", "none.yaml", "expected a file"),
        ("prereg-cm", "../outside.yaml", "outside repo"),
        ("prereg-cm", "link.yaml", "outside repo"),
    ],
)
def test_what_the_tag_does_not_lock_is_refused(repo, tag, path, told):
    outside = repo.parent / "outside.yaml"
    outside.write_text("x")
    (repo / "new.yaml").write_text("x")
    (repo / "link.yaml").symlink_to(outside)
    with pytest.raises(PreregistrationError, match=told):
        verify_git_tag(spec(git_tag=tag), Path(path), repo_path=repo)


def test_without_a_repository_or_git_nothing_is_registered(tmp_path, repo, monkeypatch):
    (tmp_path / "bare").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "bare" / "cm.yaml").write_text("x")
    with pytest.raises(PreregistrationError, match="not a git repository"):
        verify_git_tag(spec(), Path("cm.yaml"), repo_path=tmp_path / "bare")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PreregistrationError, match="expected the program on PATH"):
        verify_git_tag(spec(), Path("cm.yaml"), repo_path=repo)


def test_freezing_needs_a_commit_and_repeats_harmlessly(repo):
    other = spec(git_tag="prereg-new")
    (repo / "cm.yaml").write_text(json.dumps(SPEC | {"git_tag": "prereg-new"}))
    with pytest.raises(PreregistrationError, match="as the last commit has it"):
        freeze_registration(other, repo / "cm.yaml", repo_path=repo)
    run_git(repo, "commit", "--all", "--quiet", "--message", "y")
    first = freeze_registration(other, repo / "cm.yaml", repo_path=repo)
    assert freeze_registration(other, repo / "cm.yaml", repo_path=repo) == first
    assert run_git(repo, "cat-file", "-t", "prereg-new") == b"tag\n"
    with pytest.raises(PreregistrationError, match="edited after"):  # a tag is never moved
        freeze_registration(spec(), repo / "cm.yaml", repo_path=repo)


def run_of(**changes):
    episodes = [
        EpisodeResult(
            seed=seed, episode_idx=k, initial_state_seed=k, success=True, condition=condition
        )
        for seed in (0, 1)
        for condition in ("ideal", "lossy")
        for k in range(2)
    ]
    fields = {
        "spike_id": "s",
        "prereg_sha": "0" * 40,
        "git_tag": "prereg-cm",
        "axis": "CM",
        "sub_stage": "2",
        "condition_pair": SPEC["condition_pair"],
        "seeds": [0, 1],
        "episode_results": episodes,
    }
    return SpikeRun.model_validate(fields | changes)


def test_run_is_compared_with_its_registration():
    assert run_differences(spec(), run_of()) == []
    shorter = run_of(episode_results=run_of().episode_results[:-1])
    assert run_differences(spec(), shorter) == ["episodes of seed 1, 'lossy': 2 registered, 1 run"]
    assert run_differences(spec(axis="PF"), run_of()) == ["axis: PF registered, CM run"]


def command(*words):
    done = CliRunner().invoke(app, ["prereg", *map(str, words)])
    return done.exit_code, done.output


def test_commands_register_check_lock_and_compare(repo):
    path, there = repo / "p.yaml", ("--repo-root", repo)
    words = ("crossing", "policies=[zero]", "--tag", "prereg-p", "--out", path)
    assert command("new", *words, "--rules", "")[0] == 0
    assert command("lint", path) == (
        1,
        "decision_rules: expected what is concluded from which outcome, got nothing.\n",
    )
    path.write_text(path.read_text().replace("decision_rules: ''", "decision_rules: 'A if B'"))
    assert command("lint", path)[0] == 0
    code, told = command("freeze", path, *there)
    assert (code, "as the last commit has it" in told) == (PREREG_MISMATCH_EXIT_CODE, True)
    run_git(repo, "add", ".")
    run_git(repo, "commit", "--quiet", "--message", "z")
    assert command("freeze", path, *there)[0] == 0
    assert command("verify", path, repo / "cm.yaml", *there)[0] == 0
    path.write_text(path.read_text().replace("A if B", "A if C"))
    code, told = command("verify", path, repo / "cm.yaml", *there, "--json")
    assert code == PREREG_MISMATCH_EXIT_CODE
    assert [row["ok"] for row in json.loads(told)["registrations"]] == [False, True]
