import json
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


def test_train_reports_the_run_as_one_json_object(short_training, tmp_path):
    done = cadenza(*short_training, "--json", "--plot", "plots", cwd=tmp_path)
    assert done.code == 0, done.err
    summary = done.json
    assert summary["frames"] == 2560
    assert summary["n_episodes"] == 51  # 2 560 frames hold 51 whole episodes of 50 steps
    assert summary["status"] == "completed"
    assert (tmp_path / summary["checkpoint"]).is_file()
    name = Path(summary["checkpoint"]).name
    assert summary["policy"] == f"local://artifacts/{name}"
    assert (tmp_path / "artifacts" / "artifacts" / name).is_file()  # below artifacts_root
    assert (tmp_path / summary["plot"]).read_bytes().startswith(b"\x89PNG")
    last_line = (tmp_path / summary["log"]).read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last_line)["event"] == "training_end"


def test_train_twice_with_one_seed_gives_the_same_weights(short_training, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    digests: list[str] = []
    for folder in folders:
        folder.mkdir()
        summary = cadenza(*short_training, "--json", cwd=folder).json
        sidecar = json.loads((folder / f"{summary['checkpoint']}.json").read_text("utf-8"))
        digests.append(sidecar["sha256"])
    assert digests[0] == digests[1]


def test_train_refuses_to_repeat_a_run_and_says_what_to_do(short_training, tmp_path):
    assert cadenza(*short_training, "--quiet", cwd=tmp_path).code == 0
    again = cadenza(*short_training, "--quiet", cwd=tmp_path)
    assert again.code == 2
    assert "resume" in again.err
    assert "overwrite" in again.err
    assert cadenza(*short_training, "--quiet", "--overwrite", cwd=tmp_path).code == 0


def test_train_resumed_after_the_end_changes_nothing(short_training, tmp_path):
    first = cadenza(*short_training, "--json", cwd=tmp_path).json
    before = _modification_times(tmp_path)
    again = cadenza(*short_training, "--json", "--resume", cwd=tmp_path)
    assert again.json["status"] == "already_finished"
    assert again.json["run_id"] == first["run_id"]
    assert _modification_times(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["happo.learning_rate=1"], "learning_rate"),
        (["+happo.learning_rate=1"], "unknown key"),
        (["total_frames=0"], "total_frames"),
        (["algo=ego_aht_magic"], "ego_aht_happo"),
        (["env.task=rehearsal"], "crossing"),
        (["partner.class_name=soloist"], "scripted_heuristic"),
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


def test_train_without_its_file_says_where_files_are(tmp_path):
    done = cadenza("train", "absent.yaml", "--json", cwd=tmp_path)
    assert done.code == 2
    assert "absent.yaml" in done.json["error"]["message"]


def test_train_with_a_broken_file_ends_with_one_message(tmp_path):
    (tmp_path / "broken.yaml").write_text("env: [unclosed", encoding="utf-8")
    done = cadenza("train", "broken.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "broken.yaml" in done.err
    assert "Traceback" not in done.err


def test_check_learning_ends_with_its_own_code_when_nothing_was_learned(tmp_path):
    words = ["total_frames=1024", "checkpoint_every=1024", "happo.lr=1e-9"]
    done = cadenza("train", MPE, *words, "--check-learning", "--quiet", cwd=tmp_path)
    assert done.code == 3, done.out + done.err
    assert "learning check" in done.out


def test_train_with_a_tampered_state_refuses_to_resume(short_training, tmp_path):
    assert cadenza(*short_training, "--quiet", cwd=tmp_path).code == 0
    for payload in tmp_path.rglob("*.pt"):
        content = bytearray(payload.read_bytes())
        content[len(content) // 2] ^= 1
        payload.write_bytes(bytes(content))
    done = cadenza(*short_training, "--resume", cwd=tmp_path)
    assert done.code == 10, done.out + done.err
    assert "expected" in done.err


def _modification_times(folder: Path) -> dict[Path, int]:
    """Return when each file below ``folder`` was written, locks aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.stat().st_mtime_ns for path in files}
