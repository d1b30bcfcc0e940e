"""`cadenza spike`: from a registration to a row, what never gets there, and what is refused."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from cadenza.core.shipped_configs import shipped_config
from tests.e2e.commands import held_at
from tests.e2e.in_process import here

pytest.importorskip("mjbatch")

GIT = shutil.which("git") or "git"
#: The sources need not be those of a commit here.
DIRTY = ("--allow-dirty", "--repo-root", "study")
PLAYED = ("--axis", "OM", "--ego", "cocarry_reference", "--workers", "1", "--quiet")
RUN = ("spike", "run", *PLAYED, *DIRTY)
REGISTERED = ("--prereg", "study/OM.yaml")


def git(folder, *words):
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run([GIT, *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a repository ``study``, a locked registration in it, and what it led to."""
    folder = tmp_path_factory.mktemp("spikes")
    (folder / "study").mkdir()
    git(folder / "study", "init", "--quiet")
    design = ("seeds=[0, 1, 2, 3, 4]", "episodes_per_seed=4")
    done = here("prereg", "new", "OM", *design, "--tag", "om", "--out", "study/OM.yaml", cwd=folder)
    assert done.code == 0, done.err
    git(folder / "study", "add", ".")
    git(folder / "study", "commit", "--quiet", "--message", "Register")
    assert here("prereg", "freeze", "OM.yaml", cwd=folder / "study").code == 0
    done = here(*RUN, *REGISTERED, "--out", "om", "--json", cwd=folder)
    assert done.code == 0, done.err
    (folder / "told.json").write_text(done.out, encoding="utf-8")
    return folder


def judged(folder, *paths):
    """Return code, row of OM and rows of the leaderboard, of `next-stage` and `summarise`."""
    gate = here("spike", "next-stage", *paths, "--prior-stage", "1", *DIRTY, "--json", cwd=folder)
    told = here("spike", "summarise", *paths, *DIRTY, "--json", cwd=folder).json
    (row,) = (row for row in gate.json["axes"] if row["axis"] == "OM")
    return gate.code, row, told["leaderboard"]


def test_registered_spike_gates_and_gets_a_row_and_a_report(folder):
    told = json.loads((folder / "told.json").read_text("utf-8"))
    (entry,) = told["leaderboard"]
    assert (entry["method_id"], entry["spike_runs"]) == (
        "cocarry_reference",
        ["OM-1b-cocarry_reference"],
    )
    code, row, entries = judged(folder, "om")
    assert (code, row["status"], row["passes"], entries) == (0, "Measured", True, [entry])
    assert row["result"]["homogeneous_success"] == 1.0
    assert row["result"]["ci_low_pp"] > 20.0
    assert json.loads((folder / "om/leaderboard.json").read_text("utf-8")) == {"entries": [entry]}
    assert "**Recommendation: Accept-Partial-Defer**" in (folder / "om/summary.md").read_text()
    page = (folder / "om/report.html").read_text("utf-8")
    names = "cocarry_ego_sees_all minus cocarry_ego_sees_own"
    assert f"Measured: {names}: {row['result']['gap_pp']:.1f} points [" in page
    assert "gate 20: PASS (Holm p " in page
    bundle = "om/1b/bundles/cocarry_reference"
    done = here("eval", "verify", bundle, *DIRTY, "--replay", "1", cwd=folder)
    assert done.code == 0, done.out
    assert "PASS  spike:archive" in done.out
    assert "PASS  prereg:conforms" in done.out


def test_stage_1a_and_dry_runs_reach_no_gate_no_table_and_no_report(folder):
    dry = here(*RUN, "--dry-run", "--out", "dry", cwd=folder)
    assert dry.code == 0, dry.err
    rig = here(*RUN[:-2], "--repo-root", "study", "--sub-stage", "1a", *REGISTERED, "--out", "rig",
               cwd=folder)  # fmt: skip
    assert rig.code == 0, rig.err
    for path, reason in (("dry", "a dry run"), ("rig", "stage 1a, which only tries the rig")):
        code, row, entries = judged(folder, path)
        assert (code, row["status"], row["passes"], row["result"]) == (5, reason, None, None)
        assert entries == []
        assert reason in here("spike", "summarise", path, *DIRTY, cwd=folder).out
        assert list((folder / path).glob("report*")) == []
    told = here("report", "rig/1a/bundles/zero", "--out", "r.html", *DIRTY[1:], cwd=folder)
    assert (told.code, "never reaches a table" in told.err) == (12, True)
    assert here("report", "dry", "--out", "r.html", cwd=folder).code == 2
    assert not (folder / "r.html").exists()


def test_archive_that_somebody_changed_counts_for_nothing(folder):
    shutil.copytree(folder / "om", folder / "forged")
    path = folder / "forged/1b/bundles/cocarry_reference/spike_run.json"
    path.write_text(path.read_text("utf-8").replace('"success":false', '"success":true', 1))
    code, row, entries = judged(folder, "forged")
    assert (code, row["result"], entries) == (10, None, [])
    moved = path.read_text("utf-8").replace('"OM"', '"ON"', 1)  # an axis that does not exist
    for text in (moved, "{}"):
        path.write_text(text, encoding="utf-8")
        done = here("spike", "summarise", "forged", *DIRTY, cwd=folder)
        reason = "not verified: sha256sums:spike_run.json: the bytes have changed"
        assert done.code == 10, done.err
        assert f"{path.parent.relative_to(folder)}: {reason}" in done.out
        assert f"No row for `cocarry_reference`: {reason}" in done.out
    alone = folder / "alone"  # out of its bundle, whatever it says
    alone.mkdir()
    invented = json.loads((folder / "dry/1b/spike_run.json").read_text("utf-8"))
    invented |= {"kind": "spike_run", "git_tag": "om", "prereg_sha": "0" * 40}
    (alone / "spike_run.json").write_text(json.dumps(invented), encoding="utf-8")
    assert judged(folder, "alone")[0] == 5


def test_spike_without_registration_shows_its_gap_and_gates_nothing(folder):
    small = ("--seeds", "2", "--episodes", "2", "--sub-stage", "1b")
    assert here(*RUN, *small, "--out", "trial", cwd=folder).code == 0
    code, row, entries = judged(folder, "trial")
    assert (code, row["status"], row["passes"], entries) == (5, "not registered", None, [])
    assert row["result"]["n_episodes"] == 8


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((*REGISTERED, "--episodes", "9"), 4, "episodes_per_seed"),
        ((*REGISTERED, "--axis", "CM"), 4, "axis CM: expected its registration, got that of OM"),
        (("--sub-stage", "2"), 2, "sub-stage"),
        (("--seeds", "1"), 2, "two seeds"),
        (("--axis", "XX"), 2, "XX"),
        (("--task", "crossing"), 2, "cocarry_mj"),
        (("--out", "study"), 2, "expected a new or empty folder"),
        (("--out", "om"), 2, "--resume"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_is_written(folder, words, code, told):
    before = sorted(folder.rglob("*"))
    done = here(*RUN, "--out", "new", *words, cwd=folder)
    assert (done.code, told in done.err) == (code, True), done.err
    assert sorted(folder.rglob("*")) == before


def test_stage_that_was_not_played_is_not_measured_and_an_ego_is_asked_for(folder):
    dry = here(*RUN, "--dry-run", "--overwrite", "--out", "again", cwd=folder)
    dry = here(*RUN, "--dry-run", "--overwrite", "--out", "again", cwd=folder)
    assert (dry.code, "## cocarry_reference" in dry.out) == (0, True), dry.err
    for stage, code in (("1b", 5), ("4", 2)):
        done = here("spike", "next-stage", "again", "--prior-stage", stage, *DIRTY, cwd=folder)
        assert done.code == code
        assert {5: "stage 1b: not measured", 2: "expected 1b, 2 or 3"}[code] in done.out + done.err
    bare = here("spike", "run", "--axis", "OM", "--out", "new", cwd=folder)
    assert (bare.code, "stage 1b: expected --ego POLICY, got none" in bare.err) == (2, True)
    told = here("report", "om", "--out", "r.md", "--repo-root", "study", cwd=folder)
    assert told.code == 0, told.err


def test_missing_simulator_is_told_in_one_sentence(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mani_skill", None)
    words = ("--axis", "AS", "--task", "stage1_pickplace", "--ego", "zero", "--out", "new")
    done = here("spike", "run", *words, cwd=folder)
    assert done.code == 14
    assert done.err.strip().endswith("pip install 'cadenza[maniskill]'")


def test_killed_spike_goes_on_and_ends_with_the_same_bytes(folder):
    running = held_at("*.jsonl", *RUN, *REGISTERED, "--out", "killed", cwd=folder)
    os.kill(running.process.pid, signal.SIGKILL)
    running.outcome(60.0)
    done = here(*RUN, *REGISTERED, "--out", "killed", "--resume", cwd=folder)
    assert done.code == 0, done.err
    files = [p.relative_to(folder / "om") for p in sorted((folder / "om").rglob("*.json*"))]
    assert len(files) > 10
    for file in files:
        assert (folder / "killed" / file).read_bytes() == (folder / "om" / file).read_bytes(), file


def test_every_registration_is_told_whatever_the_others_are(folder):
    (folder / "study/CR.yaml").write_text("axis: nothing\n", encoding="utf-8")
    done = here("spike", "verify", "study", "--all", "--repo-root", "study", "--json", cwd=folder)
    (folder / "study/CR.yaml").unlink()
    found = {row["file"]: (row["ok"], row["detail"]) for row in done.json["registrations"]}
    assert [ok for ok, _ in found.values()] == [False, True, False, False, False, False]
    assert found["study/AS.yaml"][1] == "not registered"
    assert done.code == 4
    alone = here("spike", "verify", "study/OM.yaml", "--repo-root", "study", cwd=folder)
    assert (alone.code, alone.out[:4]) == (0, "PASS")


def test_stage_0_and_the_list_of_axes(folder):
    done = here("spike", "run", "--sub-stage", "0", "--out", "rig0", "--json", cwd=folder)
    assert (done.code, done.json["ok"], len(done.json["checks"])) == (0, True, 3)
    assert json.loads((folder / "rig0/stage0.json").read_text("utf-8")) == done.json
    told = here("spike", "list", "--json", cwd=folder).json
    assert {row["axis"] for row in told["axes"]} == {"AS", "OM", "CR", "CM", "PF", "SA"}
    assert told["profiles"][-1]["name"] == "saturation"
    assert shipped_config("spike/axes").is_file()
