"""Bundles that want to harm the verifier, older bundles, and playing episodes again."""

import hashlib
import json
import os
import zipfile

import numpy as np
import pytest

from cadenza.aht.config import EnvConfig
from cadenza.benchmark import verify as verify_module
from cadenza.benchmark.bundle import build_bundle_files, encode_sums, write_bundle_dir
from cadenza.benchmark.cells import CellRunner
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.bootstrap import cluster_bootstrap
from cadenza.evaluation.results import LEGACY_ESTIMATOR, load_run_archive
from cadenza.partners.spec import PartnerSpec
from tests.unit.benchmark.samples import make_plan, make_request
from tests.unit.benchmark.test_verify import edited, failed, reseal, stored


def one_sentence(rows):
    """Return the details of what failed, each one line of at most 300 characters."""
    details = [row.detail for row in rows if not row.ok]
    assert details
    assert all(detail and "\n" not in detail and len(detail) <= 300 for detail in details)
    return " ".join(details)


def rewritten(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def many(levels):
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (rewritten("bundle.json", many(100_000)), "expected strict JSON"),
        (rewritten("bundle.json", b'{"n": ' + b"9" * 10_000 + b"}"), "expected strict JSON"),
        (rewritten("bundle.json", b'{"n": 1e999}'), "is too large"),
        (rewritten("bundle.json", b'{"n": 1, "n": 2}'), "a key is repeated"),
        (rewritten("bundle.json", b"\xff\xfe"), "expected strict JSON"),
        (rewritten("plan.json", many(50_000)), "expected strict JSON"),
        (rewritten("episodes_seed0.jsonl", many(50_000) + b"\n"), "expected strict JSON"),
        (rewritten("partners.json", b"[]"), "expected a JSON object"),
        (rewritten("three_tables.json", many(50_000)), "expected strict JSON"),
        (edited(lambda c: c["summary"].update(n_resamples=10**9)), "n_resamples"),
        (edited(lambda c: c["manifest"].update({"../../etc/passwd": "0" * 64})), "plain file"),
        (edited(lambda c: c["manifest"].update({"a\\b": "0" * 64})), "plain file"),
        (edited(lambda c: c.update(policy_id="../x")), "expected one the plan names"),
    ],
)
def test_hostile_content_is_refused_in_one_sentence(tmp_path, tamper, told):
    folder = stored(tmp_path)
    tamper(folder)
    assert told in one_sentence(verify_bundle_dir(folder))


@pytest.mark.parametrize("field", ["episodes_per_seed", "block_size"])
def test_plan_of_absurd_size_is_not_listed(tmp_path, field):
    content = make_plan().model_dump(mode="json") | {"block_size": 1}
    content |= {"episodes_per_seed": 10**15, field: 10**15}
    folder = stored(tmp_path)
    data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    (folder / "plan.json").write_bytes(data)
    reseal(folder)
    assert "expected at most 1000000 cells" in one_sentence(verify_bundle_dir(folder))


def test_archives_pipes_links_and_odd_names_are_refused(tmp_path):
    bomb = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../bundle.json", b"0" * 10_000_000)
    assert "unpack it first" in one_sentence(verify_bundle_dir(bomb))
    folder = stored(tmp_path)
    os.mkfifo(folder / "pipe")  # reading it would never end
    assert "plain files only" in one_sentence(verify_bundle_dir(folder))
    (folder / "pipe").unlink()
    (folder / "link").symlink_to("/dev/zero")
    assert "plain files only" in one_sentence(verify_bundle_dir(folder))
    (folder / "link").unlink()
    (folder / "folder").mkdir()
    assert "plain files only" in one_sentence(verify_bundle_dir(folder))
    (folder / "folder").rmdir()
    (folder / "..x").write_bytes(b"")
    assert "plain files only" in one_sentence(verify_bundle_dir(folder))


def test_files_are_too_large_together_as_well(tmp_path, monkeypatch):
    folder = stored(tmp_path)
    total = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(verify_module, "MAX_BUNDLE_BYTES", total)
    assert all_ok(verify_bundle_dir(folder))
    monkeypatch.setattr(verify_module, "MAX_BUNDLE_BYTES", total - 1)
    assert "bytes, got more" in one_sentence(verify_bundle_dir(folder))


SPEC = PartnerSpec("crossing_chaser", 0, extra={"uid": "partner"})


def older_bundle(tmp_path, **summary):
    """Write a bundle as CHAMBER does: version 3, neither kind nor plan nor chains."""
    solved = {0: [1, 0, 1, 1], 7: [0, 0, 1, 1]}
    stream = derive_substream("evaluation.bundle_bootstrap", root_seed=3)
    values = {seed: [float(v) for v in row] for seed, row in solved.items()}
    expected = cluster_bootstrap(values, n_resamples=1000, rng=stream.default_rng())
    files = {
        f"episodes_seed{seed}.jsonl": b"".join(
            json.dumps(
                {
                    "seed": seed,
                    "episode_idx": k,
                    "initial_state_seed": k,
                    "success": bool(value),
                    "constraint_violation_peak": 0.0,
                    "fallback_fired": 0,
                    "force_peak": None,
                    "metadata": {"member": "chaser"},
                }
            ).encode()
            + b"\n"
            for k, value in enumerate(row)
        )
        for seed, row in solved.items()
    }
    fields = ("class_name", "seed", "checkpoint_step", "weights_uri")
    partner = {name: getattr(SPEC, name) for name in fields} | {"extra": dict(SPEC.extra)}
    files["partners.json"] = json.dumps({"chaser": partner}, indent=2).encode()
    files["REPRO.txt"] = b"chamber-eval run\n"
    bundle = {
        "schema_version": 3,
        "task_id": "mpe_cooperative_push",
        "task_version": 1,
        "policy_id": "random",
        "partner_set_id": "adhoc:chaser",
        "partner_hashes": {"chaser": SPEC.partner_id},
        "git_sha": "1" * 40,
        "dirty": False,
        "package_version": "0.9",
        "seed_schedule": {
            "root_seed": 3,
            "seeds": [0, 7],
            "episodes_per_seed": 4,
            "substream_labels": [],
        },
        "repro_command": "chamber-eval run",
        "platform": {"os": "x", "python": "3", "numpy": "2", "torch": None, "device": "cpu"},
        "manifest": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "summary": {
            "n_episodes": 8,
            "success_mean": expected.mean,
            "success_iqm": expected.iqm,
            "success_ci_low": expected.ci_low,
            "success_ci_high": expected.ci_high,
            "n_resamples": 1000,
            "bootstrap_root_seed": 3,
        }
        | summary,
        "prereg_git_tag": None,
        "prereg_blob_sha": None,
    }
    files["bundle.json"] = json.dumps(bundle, indent=2).encode()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    files["SHA256SUMS.txt"] = encode_sums(digests)
    folder = tmp_path / "older"
    write_bundle_dir(folder, files)
    return folder


def test_older_bundle_verifies_by_the_estimator_it_names(tmp_path):
    folder = older_bundle(tmp_path)
    assert load_run_archive(folder / "bundle.json").summary.estimator == LEGACY_ESTIMATOR
    rows = {row.name: row for row in verify_bundle_dir(folder)}
    assert [row for row in rows.values() if not row.ok] == []
    assert rows["bundle:estimator"].detail == LEGACY_ESTIMATOR
    assert "no chain in this format" in rows["episodes:seed7"].detail


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"success_iqm": 0.9}, "summary:success_iqm"),
        ({"n_episodes": 9}, "summary:n_episodes"),
        ({"n_resamples": 0}, "summary"),  # a failed row, where upstream ends with a traceback
    ],
)
def test_older_bundle_with_other_figures_fails(tmp_path, changes, expected):
    assert failed(verify_bundle_dir(older_bundle(tmp_path, **changes))) == [expected]


def test_bundle_of_today_cannot_pass_as_an_older_one(tmp_path):
    folder = stored(tmp_path)
    (folder / "plan.json").unlink()
    edited(lambda c: c.pop("kind"))(folder)
    reseal(folder)
    assert "bundle:estimator" in failed(verify_bundle_dir(folder))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Files of a bundle whose episodes were really played."""
    whole = make_plan()
    plan = make_plan(
        env=EnvConfig(task="crossing", episode_length=12, options={"num_robots": 2}),
        policies=whole.policies[1:],
        seeds=(3,),
        episodes_per_seed=2,
    )
    runner = CellRunner(plan=plan, artifacts_root=None)
    episodes = [
        runner.replay(cell, cell.first_episode + k)[0]
        for cell in plan.cells.values()
        for k in range(cell.n_episodes)
    ]
    return plan, episodes


def test_replay_repeats_what_was_recorded(tmp_path, played):
    plan, episodes = played
    folder = tmp_path / "bundle"
    write_bundle_dir(
        folder, build_bundle_files(make_request(plan, policy="zero", episodes=episodes))
    )
    rows = verify_bundle_dir(folder, replay=3)
    again = [row for row in rows if row.name.startswith("replay:")]
    assert [row.detail for row in again] == ["as recorded"] * 3
    assert all_ok(rows)
    assert [r.name for r in again] == [
        r.name for r in verify_bundle_dir(folder, replay=3) if r.name.startswith("replay:")
    ]


def test_replay_finds_episodes_that_were_never_played(tmp_path, played):
    plan, episodes = played
    invented = [
        e.model_copy(update={"goal_distance_m": 0.0, "episode_return": 1.0, "success": True})
        for e in episodes
    ]
    folder = tmp_path / "bundle"
    write_bundle_dir(
        folder, build_bundle_files(make_request(plan, policy="zero", episodes=invented))
    )
    assert failed(verify_bundle_dir(folder)) == []  # every file agrees with every other
    rows = verify_bundle_dir(folder, replay=100)  # all there are
    assert len(failed(rows)) == len(episodes) == 8
    assert rows[-1].detail == "differs in episode_return, goal_distance_m, success"


def test_replay_tolerates_the_last_bits_of_another_machine(tmp_path, played):
    plan, episodes = played
    rounded = [
        e.model_copy(update={"min_distance_m": float(np.nextafter(e.min_distance_m, 1.0))})
        for e in episodes
    ]
    folder = tmp_path / "bundle"
    write_bundle_dir(
        folder, build_bundle_files(make_request(plan, policy="zero", episodes=rounded))
    )
    assert failed(verify_bundle_dir(folder, replay=2)) == []
