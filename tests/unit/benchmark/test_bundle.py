import errno
import hashlib
import json
import os
import shutil
import subprocess

import pytest

from cadenza.benchmark.bundle import (
    CHAIN_KEY,
    build_bundle_files,
    current_provenance,
    journal_genesis,
    write_bundle_dir,
)
from cadenza.core import shipped_configs
from cadenza.core.errors import StorageError
from cadenza.core.git import git_blob_sha
from cadenza.evaluation.prereg import LockedRegistration
from tests.unit.benchmark.samples import make_plan, make_request

GIT = shutil.which("git")


def test_bundle_files_are_the_documented_ones():
    assert sorted(build_bundle_files(make_request())) == [
        "REPRO.txt",
        "SHA256SUMS.txt",
        "bundle.json",
        "episodes_seed0.jsonl",
        "episodes_seed5.jsonl",
        "partners.json",
        "plan.json",
        "three_tables.json",
        "three_tables.md",
    ]


def test_journal_lines_carry_the_hash_of_the_line_before():
    plan = make_plan()
    lines = build_bundle_files(make_request(plan))["episodes_seed5.jsonl"].splitlines(True)
    assert len(lines) == 2 * 2 * 3  # partners x conditions x episodes
    previous = journal_genesis(plan, "ego", 5)
    for line in lines:
        assert json.loads(line)["metadata"][CHAIN_KEY] == previous
        previous = hashlib.sha256(line).hexdigest()


def test_journal_genesis_differs_between_plans_policies_and_seeds():
    genesis = {
        journal_genesis(make_plan(), "ego", 0),
        journal_genesis(make_plan(), "ego", 5),
        journal_genesis(make_plan(), "zero", 0),
        journal_genesis(make_plan(block_size=3), "ego", 0),
    }
    assert len(genesis) == 4


def test_partner_identity_covers_options_and_weight_bytes():
    def hashes(**changes):
        plan = make_plan()
        partner = plan.partners[0].model_copy(update=changes)
        files = build_bundle_files(make_request(make_plan(partners=(partner, plan.partners[1]))))
        return json.loads(files["bundle.json"])["partner_hashes"]

    base = hashes()
    entry = make_plan().partners[0]
    options = entry.partner.model_copy(update={"extra": {"gain": "2"}})
    assert hashes(partner=options)["seeker"] != base["seeker"]
    assert hashes(weights_sha256="0" * 64)["seeker"] != base["seeker"]
    assert hashes(weights_sha256="0" * 64)["chaser"] == base["chaser"]
    assert hashes(seen=False)["seeker"] == base["seeker"]


def test_bundle_states_the_headline_condition_and_the_weights():
    content = json.loads(build_bundle_files(make_request())["bundle.json"])
    # filter_on: no contact; episode 1 of 3 fails in each of 2 partners x 2 seeds
    assert content["summary"]["success_mean"] == pytest.approx(8 / 12)
    assert content["summary"]["n_episodes"] == 24
    assert content["policy_sha256"] == "ab" * 32
    assert content["seed_schedule"]["episodes_per_seed"] == 12


def test_bundle_carries_a_registration_with_gits_own_object_id(tmp_path):
    content = b"task_id: crossing\n"
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    git = subprocess.run(
        [GIT, "hash-object", "--no-filters", str(path)], capture_output=True, check=True, text=True
    )
    assert git_blob_sha(content) == git.stdout.strip()
    files = build_bundle_files(
        make_request(prereg=LockedRegistration(content=content, git_tag="prereg-x"))
    )
    assert files["prereg.yaml"] == content
    assert json.loads(files["bundle.json"])["prereg_blob_sha"] == git.stdout.strip()


def test_write_bundle_dir_refuses_an_existing_folder(tmp_path):
    (tmp_path / "bundle").mkdir()
    with pytest.raises(StorageError, match="expected no such folder"):
        write_bundle_dir(tmp_path / "bundle", {"x": b""})


def test_write_bundle_dir_removes_what_a_killed_writer_left(tmp_path):
    leftover = tmp_path / ".bundle.0123.staging"
    leftover.mkdir()
    (leftover / "x").write_bytes(b"half")
    write_bundle_dir(tmp_path / "bundle", {"x": b"whole"})
    assert not leftover.exists()


def test_write_bundle_dir_on_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_bundle_dir(tmp_path / "bundle", {"x": b"abc"})
    assert list(tmp_path.iterdir()) == []


def test_provenance_of_an_installation_counts_as_dirty(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped_configs, "PACKAGE", tmp_path / "site-packages" / "cadenza")
    provenance = current_provenance(None)
    assert (provenance["git_sha"], provenance["dirty"]) == ("unknown", True)


def test_provenance_of_a_clean_checkout_is_its_commit(tmp_path):
    def git(*arguments):
        command = [GIT, "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    (tmp_path / "pyproject.toml").write_text("")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "x")
    provenance = current_provenance(tmp_path)
    assert provenance["git_sha"] == git("rev-parse", "HEAD")
    assert not provenance["dirty"]
    assert provenance["diff_sha256"] is None
