"""Files, card and lock of one run."""

import json
import subprocess
import sys

import pytest
import torch

from cadenza.aht.run import RunFiles, unfinished_runs
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.errors import NotReadyError, StorageError


@pytest.fixture
def files(tmp_path):
    return RunFiles(run_id="abc", artifacts_root=tmp_path, log_dir=tmp_path / "logs")


def save(files, uri, step):
    metadata = CheckpointMetadata(
        run_id=files.run_id, seed=0, step=step, git_sha="unknown", pyproject_hash="0"
    )
    save_checkpoint(
        state_dict={"x": torch.zeros(1)},
        uri=uri,
        metadata=metadata,
        artifacts_root=files.artifacts_root,
    )


def test_policies_and_states_are_told_apart_and_sorted(files):
    for step in (30, 4, 100):
        save(files, files.policy_uri(step), step)
    save(files, files.state_uri(4), 4)
    assert list(files.policies()) == [4, 30, 100]
    assert files.states() == {4: files.state_uri(4)}


def test_prune_keeps_the_newest_states_and_every_policy(files):
    for step in (1, 2, 10):
        save(files, files.policy_uri(step), step)
        save(files, files.state_uri(step), step)
    files.prune_states(2)
    assert list(files.states()) == [2, 10]
    assert list(files.policies()) == [1, 2, 10]
    assert not (files.folder / "abc-state_step1.pt.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "other"}'])
def test_card_that_is_damaged_counts_as_none(files, text):
    files.folder.mkdir(parents=True)
    files.card.write_text(text)
    assert files.read_card() is None


def test_lock_removes_what_killed_writers_of_this_run_left(files):
    files.folder.mkdir(parents=True)
    own = [f".abc{name}.0123.cadenza-tmp" for name in ("_step1.pt", "-state_step1.pt", ".run.json")]
    foreign = [".abcd_step1.pt.0123.cadenza-tmp", ".0123.cadenza-tmp"]
    for name in (*own, *foreign):
        (files.folder / name).write_bytes(b"half")
    with files.locked():
        left = {path.name for path in files.folder.glob("*.cadenza-tmp")}
    assert left == set(foreign)


def test_delete_results_leaves_other_runs_and_the_log(files, tmp_path):
    other = RunFiles(run_id="abcd", artifacts_root=tmp_path, log_dir=tmp_path / "logs")
    for run in (files, other):
        save(run, run.policy_uri(1), 1)
        save(run, run.state_uri(1), 1)
        run.write_card(status="finished", fingerprint="f", config={})
        run.curve.write_text("{}")
    files.log.parent.mkdir()
    files.log.write_text("line\n")
    files.delete_results()
    assert (files.policies(), files.states(), files.read_card()) == ({}, {}, None)
    assert not files.curve.exists()
    assert files.log.exists()
    assert (list(other.policies()), list(other.states())) == ([1], [1])
    assert other.read_card() is not None


def test_lock_held_by_another_process_is_refused(files):
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    files.folder.mkdir(parents=True)
    lock = files.folder / ".abc.lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"
        with (
            pytest.raises(NotReadyError, match="run abc: expected no other process"),
            files.locked(),
        ):
            pass
        process.kill()  # the lock dies with its process
    with files.locked():
        assert lock.exists()


def test_lock_in_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    files = RunFiles(run_id="abc", artifacts_root=tmp_path / "file", log_dir=tmp_path)
    with pytest.raises(StorageError, match="expected a writable folder"), files.locked():
        pass


def test_unfinished_runs_are_those_of_the_same_configuration_with_a_state(files, tmp_path):
    def run(run_id, status, fingerprint, *, with_state):
        one = RunFiles(run_id=run_id, artifacts_root=tmp_path, log_dir=tmp_path)
        one.write_card(status=status, fingerprint=fingerprint, config={})
        if with_state:
            save(one, one.state_uri(1), 1)

    run("same", "running", "f", with_state=True)
    run("stateless", "running", "f", with_state=False)
    run("finished", "finished", "f", with_state=True)
    run("other", "running", "g", with_state=True)
    run("abc", "running", "f", with_state=True)
    (files.folder / "broken.run.json").write_text(json.dumps({"run_id": "broken"}))
    assert unfinished_runs(files.folder, fingerprint="f", other_than="abc") == ["same"]
