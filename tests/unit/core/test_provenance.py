import hashlib
import json
import os
import shutil
import subprocess

import pytest

from cadenza.core import git as git_module
from cadenza.core import shipped_configs
from cadenza.core.errors import InputError
from cadenza.core.provenance import (
    GIT_SHA_UNKNOWN,
    GitState,
    compute_run_metadata,
    git_state,
    legacy_run_id,
)

EMPTY_DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


GIT = shutil.which("git") or "git"


def git(root, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        [GIT, *identity, "-C", str(root), *arguments], capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "src" / "code.py").write_text("x = 1\n")
    (root / ".gitignore").write_text("*.log\n")
    git(tmp_path, "init", "-q", str(root))
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    return root


def fresh_state(root) -> GitState:
    git_state.cache_clear()
    return git_state(str(root))


def run_id(root, **changes) -> str:
    git_state.cache_clear()
    return compute_run_metadata(**{"seed": 0, "run_kind": "k", "repo_root": root, **changes}).run_id


def test_legacy_run_id_equals_the_published_values():
    facts = {"seed": 0, "git_sha": "unknown", "pyproject_hash": EMPTY_DIGEST}
    assert legacy_run_id(**facts, run_kind="ego_aht_happo") == "fa00d05415410601"
    assert (
        legacy_run_id(**facts, run_kind="ego_aht_happo", config_fingerprint="48aa451e7544199a")
        == "ce53c070c24263b6"
    )


def test_run_id_follows_its_documented_formula(tmp_path):
    git_state.cache_clear()
    context = compute_run_metadata(seed=5, run_kind="k", repo_root=tmp_path, config_fingerprint="c")
    packages = json.dumps(context.packages, sort_keys=True, separators=(",", ":"))
    material = (
        '{"config_fingerprint":"c","diff_hash":"unknown","git_dirty":null,"git_sha":"unknown",'
        f'"lock_hash":"{EMPTY_DIGEST}","packages":{packages},'
        f'"pyproject_hash":"{EMPTY_DIGEST}","run_kind":"k","scheme":2,"seed":5}}'
    )
    assert context.run_id == hashlib.sha256(material.encode()).hexdigest()[:16]


def test_context_without_repository_holds_the_sentinels(tmp_path):
    git_state.cache_clear()
    context = compute_run_metadata(seed=3, run_kind="k", repo_root=tmp_path, extra={"task": "t"})
    assert (context.git_sha, context.git_dirty, context.diff_hash) == ("unknown", None, "unknown")
    assert context.pyproject_hash == EMPTY_DIGEST
    assert (context.seed, context.run_kind, context.extra) == (3, "k", {"task": "t"})
    assert len(context.run_id) == 16
    assert set(context.run_id) <= set("0123456789abcdef")
    assert set(context.packages) == {
        "python", "cadenza", "daqp", "gymnasium", "numpy", "scipy", "torch",
    }  # fmt: skip


def test_run_id_is_stable_and_changes_with_every_fact(repository):
    base = run_id(repository)
    assert run_id(repository) == base
    ids = {base, run_id(repository, seed=1), run_id(repository, run_kind="other")}
    ids.add(run_id(repository, config_fingerprint="c"))
    (repository / "src" / "code.py").write_text("x = 2\n")
    ids.add(run_id(repository))
    git(repository, "commit", "-q", "-a", "-m", "second")
    ids.add(run_id(repository))
    (repository / "constraints.txt").write_text("numpy==2.4.6\n")
    ids.add(run_id(repository))
    assert len(ids) == 7
    assert run_id(repository, extra={"note": "x"}) == run_id(repository)


def test_run_of_an_installation_is_of_no_commit_whatever_folder_it_starts_in(
    repository, monkeypatch
):
    monkeypatch.chdir(repository)
    monkeypatch.setattr(shipped_configs, "PACKAGE", repository / "lib" / "python" / "cadenza")
    context = compute_run_metadata(seed=0, run_kind="k", repo_root=None)
    assert (context.git_sha, context.git_dirty) == (GIT_SHA_UNKNOWN, None)
    assert context.pyproject_hash == EMPTY_DIGEST


def test_git_state_of_a_clean_tree_names_the_commit(repository):
    (repository / "runs").mkdir()  # results in the repository do not block the next run
    (repository / "runs" / "bundle.json").write_text("{}")
    state = fresh_state(repository)
    assert state == GitState(
        sha=git(repository, "rev-parse", "HEAD"), dirty=False, diff_hash=EMPTY_DIGEST
    )


def test_git_state_hashes_names_and_bytes_of_what_differs(repository):
    (repository / "src" / "code.py").unlink()
    (repository / "src" / "new.py").write_text("y = 1\n")
    content = hashlib.sha256(b"y = 1\n").hexdigest()
    material = f"src/code.py\0absent\0src/new.py\0file {content}\0"
    state = fresh_state(repository)
    assert state.dirty is True
    assert state.diff_hash == hashlib.sha256(material.encode()).hexdigest()


def test_git_state_of_odd_names_and_links_is_hashed(repository):
    hashes = {fresh_state(repository).diff_hash}
    (repository / "src" / "new\nline é.py").write_text("")
    hashes.add(fresh_state(repository).diff_hash)
    link = repository / "src" / "link.py"
    for target in ("code.py", "nowhere.py"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        hashes.add(fresh_state(repository).diff_hash)
    assert len(hashes) == 4


def test_git_state_is_read_once_per_process(repository):
    before = fresh_state(repository)
    git(repository, "commit", "-q", "--allow-empty", "-m", "meanwhile")
    assert git_state(str(repository)) == before
    assert fresh_state(repository).sha != before.sha


def test_git_state_ignores_the_variables_of_a_surrounding_git_hook(repository, monkeypatch):
    expected = fresh_state(repository)
    monkeypatch.setenv("GIT_DIR", os.devnull)
    monkeypatch.setenv("GIT_INDEX_FILE", os.devnull)
    assert fresh_state(repository) == expected


def fake_git(folder, script: str, monkeypatch) -> None:
    program = folder / "git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_git_state_with_git_that_hangs_is_unknown(repository, tmp_path, monkeypatch):
    fake_git(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setattr(git_module, "GIT_TIMEOUT_S", 0.05)
    assert fresh_state(repository).sha == GIT_SHA_UNKNOWN


@pytest.mark.parametrize("command", ["diff", "ls-files"])
def test_git_state_with_a_failing_comparison_keeps_the_commit(
    repository, tmp_path, monkeypatch, command
):
    script = f'[ "$3" = {command} ] && exit 3; [ "$3" = rev-parse ] && echo 0123; exit 0'
    fake_git(tmp_path, script, monkeypatch)
    assert fresh_state(repository) == GitState(sha="0123", dirty=None, diff_hash="unknown")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": -1}, "expected seed >= 0 and a run_kind"),
        ({"run_kind": ""}, "expected seed >= 0 and a run_kind"),
        ({"extra": {"a": 1}}, "expected text to text"),
        ({"extra": {1: "a"}}, "expected text to text"),
        *(
            ({"extra": {key: "x"}}, f"expected keys other than .*, got '{key}'")
            for key in ("run_id", "event", "seed", "non_finite")
        ),
    ],
)
def test_run_that_cannot_be_told_apart_is_refused(tmp_path, changes, told):
    with pytest.raises(InputError, match=told):
        run_id(tmp_path, **changes)
