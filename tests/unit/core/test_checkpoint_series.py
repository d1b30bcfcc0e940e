from pathlib import Path

import pytest

from cadenza.core.checkpoints import (
    CheckpointMetadata,
    checkpoint_uri,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
)
from cadenza.core.errors import InputError


def save_steps(root: Path, *steps: int, run_id: str = "run") -> None:
    for step in steps:
        save_checkpoint(
            state_dict={"step": step},
            uri=checkpoint_uri(run_id, step),
            metadata=CheckpointMetadata(
                run_id=run_id, seed=0, step=step, git_sha="g", pyproject_hash="p"
            ),
            artifacts_root=root,
        )


def test_checkpoint_uri_has_the_published_form():
    assert checkpoint_uri("0123abcd", 50_000) == "local://artifacts/0123abcd_step50000.pt"


@pytest.mark.parametrize(("run_id", "step"), [("", 1), ("a/b", 1), ("..", 1), ("run", -1)])
def test_checkpoint_uri_with_a_bad_name_or_step_is_refused(run_id, step):
    with pytest.raises(InputError, match="expected a run_id of letters"):
        checkpoint_uri(run_id, step)


def test_list_checkpoints_is_ordered_by_number_and_knows_only_its_run(tmp_path):
    save_steps(tmp_path, 10, 9, 100)
    save_steps(tmp_path, 5, run_id="run2")
    (tmp_path / "artifacts" / "run_step7.pt.bak").write_bytes(b"")
    (tmp_path / "artifacts" / "run_stepx.pt").write_bytes(b"")
    listed = list_checkpoints("run", artifacts_root=tmp_path)
    assert list(listed.items()) == [(step, checkpoint_uri("run", step)) for step in (9, 10, 100)]


def test_prune_keeps_the_newest(tmp_path):
    save_steps(tmp_path, 10, 20, 30)
    removed = prune_checkpoints("run", artifacts_root=tmp_path, keep_last=2)
    assert removed == [checkpoint_uri("run", 10)]
    assert list(list_checkpoints("run", artifacts_root=tmp_path)) == [20, 30]
    names = {path.name for path in (tmp_path / "artifacts").iterdir()}
    assert names == {f"run_step{s}.pt{e}" for s in (20, 30) for e in ("", ".json")}


def test_prune_with_a_count_below_one_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected keep_last >= 1"):
        prune_checkpoints("run", artifacts_root=tmp_path, keep_last=0)
