import json

import pytest

from cadenza.benchmark.jobs import cloning
from cadenza.benchmark.jobs.encounters import BLOCKS
from cadenza.benchmark.output_folder import Blocks, JobFolder
from cadenza.core.checkpoints import sidecar_path
from cadenza.loop.jobs.outcomes import kept_by, progress_of

TRAIN = ("lerobot-train", "--policy.type=act", "--steps=2000")
NOTE = b"=== 2026-11-21T15:00:00+00:00 run/0/train attempt 2: lerobot-train\n"


@pytest.mark.parametrize(
    ("log", "share"),
    [
        (b"eval:  10%|#  | 2/20 [00:01<..]\reval:  60%|## | 12/20 [00:04<00:03]", 0.6),
        (b"INFO step:1K smpl:8K ep:3 loss:0.1\nINFO step:1.5K smpl:12K ep:4 loss:0.1\n", 0.75),
        (b"INFO step:9K smpl:8K\n", 1.0),
        (b"nothing of the kind\n", None),
        (b"0/0 [00:00<?]", None),
        (b"19/20 [00:04<00:00]" + NOTE, None),
        (b"19/20 [00:04<00:00]" + NOTE + b"1/20 [00:01<00:19]", 0.05),
    ],
)
def test_bars_and_steps_of_the_present_attempt_are_read_from_the_log(log, share, tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"x" * 20_000 + log)
    assert progress_of(TRAIN, path) == share
    assert progress_of(TRAIN, tmp_path / "none.log") is None


@pytest.mark.parametrize(("bar", "share"), [("100/500", 0.8), ("100/400", 0.25)])
def test_a_bar_of_the_steps_that_were_left_counts_those_before(bar, share, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"Training:  20%|## | {bar} [00:10<00:40]")
    assert progress_of(TRAIN, path, begun=0.75) == share


def test_a_checkpoint_of_their_training_is_gone_on_from_and_nothing_else_of_theirs(tmp_path):
    command = (*TRAIN, f"--output_dir={tmp_path}")
    assert kept_by(command) == 0.0
    state = tmp_path / "checkpoints" / "last" / "training_state"
    state.mkdir(parents=True)
    (state / "training_step.json").write_text('{"step": 1500}')
    assert kept_by(command) == 0.75
    assert kept_by(("lerobot-eval", f"--output_dir={tmp_path}")) == 0.0


def test_finished_parts_of_our_evaluation_are_counted(tmp_path):
    out = tmp_path / "eval"
    words = ("--episodes=40", "--batch-size=16", f"--out={out}")
    command = ("cadenza", "job", "evaluate", *words)
    log = tmp_path / "eval.log"
    assert progress_of(command, log) == 0.0
    blocks = Blocks(folder=out / BLOCKS, request_sha256="0" * 64)
    for number, share in enumerate((0.4, 0.8, 1.0)):
        blocks.write(number, {"episodes": []})
        assert progress_of(command, log) == kept_by(command) == share
    assert progress_of(command[:-1], log) is None  # nobody says where


def test_the_last_save_of_our_training_is_read(tmp_path):
    folder = JobFolder(root=tmp_path / "train", kind="train", request={}, code_sha256="0" * 64)
    command = ("cadenza", "job", "train", "--steps=4000", f"--out={folder.root}")
    log = tmp_path / "train.log"
    assert progress_of(command, log) == 0.0
    folder.work.mkdir(parents=True)
    save = sidecar_path(folder.work / cloning.SAVE)
    save.write_text(json.dumps({"step": 3000}))
    assert progress_of(command, log) == kept_by(command) == 0.75
    assert progress_of((*command, "--max-epochs=3"), log) is None  # may end before
    save.write_text("{")
    assert progress_of(command, log) == 0.0
    (folder.root / cloning.POLICY).touch()
    assert progress_of(command, log) == 1.0
