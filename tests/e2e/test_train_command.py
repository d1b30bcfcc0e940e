import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.commands import LIMIT_S, REPOSITORY, Started, cadenza, wait_for
from tests.e2e.in_process import here

MPE = REPOSITORY / "configs" / "train" / "mpe_cooperative_push.yaml"
CROSSING = REPOSITORY / "configs" / "train" / "crossing.yaml"
#: Two episodes at the end, where a hundred are usual.
BRIEFLY_SHOWN = "++evaluation.episodes=2"
#: A crossing run of two short rollouts.
SHORT = (
    "total_frames=512",
    "env.num_envs=1",
    "happo.rollout_length=256",
    "evaluation.every_frames=0",
    BRIEFLY_SHOWN,
)
#: A partner that never moves, whose forecasts therefore are never wrong.
NEVER_MOVES = ("partners=[crossing_stationary]",)


@pytest.fixture(scope="module")
def short_training():
    """Words that train for 512 frames."""
    sizes = ("happo.rollout_length=256", "happo.batch_size=128", BRIEFLY_SHOWN)
    return ["train", MPE, "total_frames=512", "checkpoint_every=256", *sizes]


@pytest.fixture(scope="module")
def trained(short_training, tmp_path_factory):
    """A folder with a finished training, and what the command printed."""
    folder = tmp_path_factory.mktemp("trained")
    done = cadenza(*short_training, "--json", "--plot", "plots", cwd=folder)
    assert done.code == 0, done.err
    return folder, done.json


@pytest.fixture
def copy_of_trained(trained, tmp_path):
    """A copy of the folder with a finished training, to write to."""
    return shutil.copytree(trained[0], tmp_path / "copy")


def test_train_reports_the_run_as_one_json_object(trained):
    folder, summary = trained
    assert summary["frames"] == 512
    assert summary["n_episodes"] == 10  # 512 frames hold 10 whole episodes of 50 steps
    assert summary["status"] == "completed"
    assert (folder / summary["checkpoint"]).is_file()
    name = Path(summary["checkpoint"]).name
    assert summary["policy"] == f"local://artifacts/{name}"
    assert (folder / "artifacts" / name).is_file()  # below artifacts_root
    assert (folder / summary["plot"]).read_bytes().startswith(b"\x89PNG")
    last_line = (folder / summary["log"]).read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last_line)["event"] == "training_end"


def test_train_twice_with_one_seed_gives_the_same_weights(trained, short_training, tmp_path):
    # A fresh interpreter has another hash seed, so it orders its sets otherwise.
    again = cadenza(*short_training, "--json", cwd=tmp_path, fresh=True).json
    digests = [
        json.loads((folder / f"{summary['checkpoint']}.json").read_text("utf-8"))["sha256"]
        for folder, summary in (trained, (tmp_path, again))
    ]
    assert digests[0] == digests[1]


def test_train_refuses_to_repeat_a_run_and_says_what_to_do(short_training, copy_of_trained):
    again = cadenza(*short_training, "--quiet", cwd=copy_of_trained)
    assert again.code == 2
    assert "resume" in again.err
    assert "overwrite" in again.err
    over = cadenza(*short_training, "--json", "--overwrite", cwd=copy_of_trained)
    assert over.json["status"] == "completed"


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["happo.learning_rate=1"], "learning_rate"),
        (["total_frames=0"], "total_frames"),
        (["algo=ego_aht_magic"], "ego_aht_happo"),
        (["env.task=rehearsal"], "crossing"),
        (["algo=scac"], "sac, td3, upd, got 'scac' (did you mean 'sac'?)."),
    ],
)
def test_train_with_a_wrong_value_names_it_and_ends_with_usage_code(words, fragment, tmp_path):
    done = here("train", MPE, *words, cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert fragment in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.rglob("*.pt"))


def test_a_setting_without_effect_is_an_error(tmp_path):
    config = MPE.with_name("mpe_cooperative_push_sac.yaml")
    done = cadenza("train", config, "+happo.lr=0.1", cwd=tmp_path)
    assert done.code == 2
    assert "algo=sac: expected only settings that it reads, got happo.lr" in done.err


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        ((CROSSING, *SHORT), 0, "passed."),
        ((CROSSING, *SHORT, *NEVER_MOVES), 9, "gate B: the prediction loss was 0 in all"),
        ((MPE, "total_frames=256", BRIEFLY_SHOWN), 3, "the run had no filter"),
    ],
)
def test_train_with_check_safety_ends_with_the_verdict_on_the_filters_record(
    words, code, verdict, tmp_path
):
    done = cadenza("train", *words, "--check-safety", "--json", cwd=tmp_path)
    assert done.code == code, done.err
    audit = done.json["safety_audit"]
    assert audit["passed"] == (code == 0)
    assert verdict in audit["message"]


def test_train_with_a_tampered_state_refuses_to_resume(short_training, copy_of_trained):
    for payload in copy_of_trained.rglob("*.pt"):
        content = bytearray(payload.read_bytes())
        content[len(content) // 2] ^= 1
        payload.write_bytes(bytes(content))
    done = cadenza(*short_training, "--resume", cwd=copy_of_trained)
    assert done.code == 10, done.out + done.err
    assert "expected" in done.err


@pytest.mark.slow
def test_training_that_is_asked_to_stop_says_how_to_go_on_and_keeps_its_checkpoints(tmp_path):
    words = ["train", CROSSING, "total_frames=6000000", "checkpoint_every=512", *SHORT[1:]]
    started = Started("cadenza", *words, cwd=tmp_path)
    try:
        # older ones are deleted
        wait_for(lambda: any(tmp_path.rglob("*-state_step*.pt.json")), started.process)
        started.process.send_signal(signal.SIGTERM)
        done = started.outcome(LIMIT_S)
    finally:
        started.process.kill()
    assert done.code == 143
    assert done.err.splitlines()[-1] == (  # after lines of progress on a slow machine
        "error: stopped; finished work is kept, run the same command with --resume to continue"
    )
    (log,) = tmp_path.rglob("*.jsonl")
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    assert last["event"] == "training_failed"
    assert [path for path in tmp_path.rglob("*step*.pt.json") if "state" not in path.name]
