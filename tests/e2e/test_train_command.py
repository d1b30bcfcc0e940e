import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.commands import REPOSITORY, cadenza

MPE = REPOSITORY / "configs" / "train" / "mpe_cooperative_push.yaml"
CROSSING = REPOSITORY / "configs" / "train" / "crossing.yaml"
#: A crossing run of two short rollouts.
SHORT = ("total_frames=1024", "happo.rollout_length=512", "evaluation.every_frames=0")
#: A partner that never moves, whose forecasts therefore are never wrong.
NEVER_MOVES = (
    "partner.class_name=crossing_stationary",
    "~partner.extra.max_speed",
    "~partner.extra.speed_spread",
)


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
    assert summary["frames"] == 2560
    assert summary["n_episodes"] == 51  # 2 560 frames hold 51 whole episodes of 50 steps
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


def test_train_resumed_after_the_end_changes_nothing(trained, short_training):
    folder, first = trained
    before = _modification_times(folder)
    again = cadenza(*short_training, "--json", "--resume", cwd=folder)
    assert again.json["status"] == "already_finished"
    assert again.json["run_id"] == first["run_id"]
    assert _modification_times(folder) == before


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["happo.learning_rate=1"], "learning_rate"),
        (["total_frames=0"], "total_frames"),
        (["algo=ego_aht_magic"], "ego_aht_happo"),
        (["env.task=rehearsal"], "crossing"),
    ],
)
def test_train_with_a_wrong_value_names_it_and_ends_with_usage_code(words, fragment, tmp_path):
    done = cadenza("train", MPE, *words, cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert fragment in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        ((CROSSING, *SHORT), 0, "passed."),
        ((CROSSING, *SHORT, *NEVER_MOVES), 9, "gate B: the prediction loss was 0 in all"),
        ((MPE, "total_frames=1024"), 3, "the run had no filter"),
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


def _modification_times(folder: Path) -> dict[Path, int]:
    """Return when each file below ``folder`` was written, locks aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.stat().st_mtime_ns for path in files}
