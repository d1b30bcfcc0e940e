import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cadenza.benchmark import verify as verify_module
from cadenza.benchmark.bundle import (
    build_bundle_files,
    encode_sums,
    write_bundle_dir,
)
from cadenza.benchmark.executor import JobFailure
from cadenza.benchmark.registration import plan_differences, registered_block, statistics_of
from cadenza.benchmark.verify import (
    CheckResult,
    all_ok,
    equal_within,
    render_check_table,
    verify_bundle_dir,
)
from cadenza.core import git as git_module
from cadenza.evaluation.prereg import LockedRegistration, locked_registration
from cadenza.evaluation.summary import SummarySettings
from cadenza.safety.reporting import emit_three_tables, parse_three_tables
from tests.unit.benchmark.samples import make_plan, make_request

GIT = shutil.which("git")


def stored(tmp_path, **changes):
    folder = tmp_path / "bundle"
    write_bundle_dir(folder, build_bundle_files(make_request(**changes)))
    return folder


def reseal(folder):
    """Rewrite both checksum layers, as someone who edits a bundle by hand would."""
    path = folder / "bundle.json"
    content = json.loads(path.read_text())
    sealed = {"bundle.json", "SHA256SUMS.txt"}
    content["manifest"] = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.iterdir())
        if p.name not in sealed
    }
    path.write_text(json.dumps(content))
    digests = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.iterdir()
        if p.name != "SHA256SUMS.txt"
    }
    (folder / "SHA256SUMS.txt").write_bytes(encode_sums(digests))


def edited(change, name="bundle.json"):
    """Return what changes the object in a file of a bundle."""

    def edit(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return edit


def replaced(name, old, new):
    """Return what changes a text in a file of a bundle."""
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


def removed(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def failed(rows):
    return [row.name for row in rows if not row.ok]


def test_fresh_bundle_passes_every_check(tmp_path):
    rows = verify_bundle_dir(stored(tmp_path))
    assert failed(rows) == []
    assert all_ok(rows)
    names = {row.name for row in rows}
    assert {
        "bundle:schema",
        "bundle:eligibility",
        "manifest:membership",
        "sha256sums:form",
        "plan:digest",
        "episodes:seed0",
        "episodes:seed5",
        "failures:none",
        "summary:n_episodes",
        "summary:success_mean",
        "partner:seeker:registered",
        "partners:hashes",
        "repro:command",
        "prereg:absent",
    } <= names


def test_missing_folder_and_missing_bundle_are_one_failed_row(tmp_path):
    assert failed(verify_bundle_dir(tmp_path / "none")) == ["bundle"]
    assert failed(verify_bundle_dir(tmp_path)) == ["bundle"]


def test_dirty_bundle_fails_unless_allowed(tmp_path):
    request = make_request()
    dirty = {
        "git_sha": "1" * 40,
        "dirty": True,
        "diff_sha256": "3" * 64,
        "lock_sha256": None,
        "platform": request.provenance["platform"],
    }
    folder = stored(tmp_path, provenance=dirty)
    rows = verify_bundle_dir(folder)
    assert failed(rows) == ["bundle:eligibility"]
    (row,) = (row for row in rows if not row.ok)  # the quickstart shows it, too, without the option
    assert row.detail.endswith("; `cadenza eval verify --allow-dirty` accepts it")
    assert failed(verify_bundle_dir(folder, allow_dirty=True)) == []


def test_bundle_without_a_commit_verifies_where_the_sources_are_the_same(tmp_path, monkeypatch):
    provenance = make_request().provenance | {"git_sha": "unknown", "dirty": True}
    folder = stored(tmp_path, provenance=provenance)
    assert failed(verify_bundle_dir(folder)) == ["bundle:eligibility"]
    monkeypatch.setattr(verify_module, "code_digest", lambda *_: make_plan().code_sha256)
    assert failed(verify_bundle_dir(folder)) == []


def test_missing_sums_file_fails(tmp_path):
    folder = stored(tmp_path)
    (folder / "SHA256SUMS.txt").unlink()
    assert failed(verify_bundle_dir(folder)) == ["sha256sums"]


@pytest.mark.parametrize("name", ["extra.txt", ".hidden", "evil name"])
def test_unlisted_file_fails(tmp_path, name):
    folder = stored(tmp_path)
    (folder / name).write_bytes(b"")
    assert failed(verify_bundle_dir(folder)) != []


def test_removed_journal_line_fails_although_the_checksums_were_rewritten(tmp_path):
    folder = stored(tmp_path)
    path = folder / "episodes_seed0.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:-1]))
    reseal(folder)
    assert "episodes" in failed(verify_bundle_dir(folder))


def test_swapped_journal_lines_fail_although_the_checksums_were_rewritten(tmp_path):
    folder = stored(tmp_path)
    path = folder / "episodes_seed0.jsonl"
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    reseal(folder)
    rows = verify_bundle_dir(folder)
    assert "lines were removed, added or reordered" in next(
        row.detail for row in rows if row.name == "episodes"
    )


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (edited(lambda c: c["summary"].update(n_resamples=999)), "bundle:schema"),
        (edited(lambda c: c["summary"].update(success_mean=0.9)), "summary:success_mean"),
        (edited(lambda c: c["summary"]["cells"][0].update(n_steps=1)), "summary:cells"),
        (edited(lambda c: c["seed_schedule"].update(seeds=[0, 6])), "plan:seeds"),
        (edited(lambda c: c.update(policy_sha256="0" * 64)), "plan:policy"),
        (
            edited(lambda c: c["chaser"].update(extra={"gain": "0"}), "partners.json"),
            "partners:material",
        ),
        (lambda folder: (folder / "REPRO.txt").write_text("rm -rf /\n"), "repro:command"),
        (lambda folder: (folder / "failures.json").write_text('{"0123": {}}'), "failures"),
        (replaced("three_tables.md", "Violations", "Visits"), "safety:markdown"),
        (replaced("three_tables.json", '"n_episodes": 12', '"n_episodes": 13'), "safety"),
        (removed("three_tables.json", "three_tables.md"), "safety:absent"),
    ],
)
def test_changed_bundle_fails_although_the_checksums_were_rewritten(tmp_path, tamper, expected):
    folder = stored(tmp_path)
    tamper(folder)
    reseal(folder)
    assert failed(verify_bundle_dir(folder)) == [expected]


def test_unregistered_partner_class_fails(tmp_path):
    plan = make_plan()
    stranger = plan.partners[0].partner.model_copy(update={"class_name": "stranger"})
    entry = plan.partners[0].model_copy(update={"partner": stranger})
    changed = make_plan(partners=(entry, plan.partners[1]))
    folder = tmp_path / "bundle"
    write_bundle_dir(folder, build_bundle_files(make_request(changed)))
    assert failed(verify_bundle_dir(folder)) == ["partner:seeker:registered"]


def test_bundle_with_failed_cells_shows_them_and_fails(tmp_path):
    plan = make_plan()
    key, cell = next((k, c) for k, c in plan.cells.items() if c.policy == "ego")
    request = make_request(plan)
    lost = range(cell.first_episode, cell.first_episode + cell.n_episodes)
    kept = [
        e
        for e in request.episodes
        if not (
            e.seed == cell.seed
            and e.condition == cell.condition
            and e.partner == cell.partner
            and e.episode_idx in lost
        )
    ]
    failure = JobFailure(key=key, label=cell.label, error="InputError", message="told to")
    folder = stored(tmp_path, episodes=kept, failures=[failure])
    rows = verify_bundle_dir(folder)
    assert failed(rows) == ["failures:none", "summary:n_episodes"]
    assert cell.label in next(row.detail for row in rows if row.name == "failures:none")


def registration(**changes):
    """Return the YAML that registers the sample plan."""
    request = make_request()
    block = registered_block(request.plan, request.settings)
    document = {
        "task_id": "crossing",
        "git_tag": "prereg-x",
        "parameters": {"evaluation": block | changes},
        "decision_rules": "fewer contacts",
    }
    return yaml.safe_dump(document).encode()


@pytest.fixture
def registered(tmp_path):
    """A repository whose tag ``prereg-x`` locks ``plans/p.yaml``, beside another protocol."""
    repo = tmp_path / "repo"
    (repo / "plans").mkdir(parents=True)
    (repo / "plans" / "p.yaml").write_bytes(registration())
    (repo / "plans" / "easier.yaml").write_bytes(registration(seeds=[0]))

    def git(*arguments):
        command = [GIT, "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
        subprocess.run(command, cwd=repo, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "x")
    git("tag", "prereg-x")
    return repo


def test_registration_that_the_tag_holds_passes(tmp_path, registered):
    copy = locked_registration("prereg-x", Path("plans/p.yaml"), repo_path=registered)
    folder = stored(tmp_path, prereg=copy)
    rows = verify_bundle_dir(folder, repo_path=registered)
    assert failed(rows) == []
    assert {"prereg:conforms", "prereg:tag", "prereg:tag_object"} <= {row.name for row in rows}
    assert failed(verify_bundle_dir(folder)) == ["prereg:tag"]


def test_edited_registration_with_matching_blob_fails(tmp_path, registered):
    content = registration().replace(b"fewer", b"more")
    copy = LockedRegistration(content=content, git_tag="prereg-x")
    rows = verify_bundle_dir(stored(tmp_path, prereg=copy), repo_path=registered)
    assert failed(rows) == ["prereg:tag"]
    told = next(row.detail for row in rows if row.name == "prereg:tag")
    assert told == "tag prereg-x holds no such file"


def test_registration_at_another_path_of_the_tag_fails(tmp_path, registered):
    copy = LockedRegistration(content=registration(), git_tag="prereg-x", path="plans/easier.yaml")
    rows = verify_bundle_dir(stored(tmp_path, prereg=copy), repo_path=registered)
    assert failed(rows) == ["prereg:tag"]


def test_tag_that_was_moved_fails(tmp_path, registered):
    copy = locked_registration("prereg-x", Path("plans/p.yaml"), repo_path=registered)
    moved = replace(copy, tag_object="0" * 40)
    rows = verify_bundle_dir(stored(tmp_path, prereg=moved), repo_path=registered)
    assert failed(rows) == ["prereg:tag_object"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seeds": [0]}, "seeds: [0] registered, [0, 5] run"),
        ({"episodes_per_seed": 4}, "episodes_per_seed: 4 registered, 3 run"),
        ({"policies": [{"name": "ego", "source": "zero"}]}, "policies: [{"),
        ({"partners": registered_block(make_plan(), SummarySettings())["partners"][:1]}, "partn"),
        ({"task_version": 0}, "task_version: 0 registered, 1 run"),
        (
            {"summary": statistics_of(SummarySettings(n_resamples=2000), (0, 5))},
            "summary.n_resamples: 2000 registered, 0 run",
        ),
        (
            {"summary": statistics_of(SummarySettings(bootstrap_root_seed=7), (0, 5))},
            "summary.bootstrap_root_seed: 7 registered, 0 run",
        ),
        ({"hidden": 1}, "parameters.evaluation: expected the keys"),
        ({"seeds": "all"}, "seeds: 'all' registered"),
    ],
)
def test_bundle_that_is_not_what_was_registered_fails(tmp_path, changes, told):
    content = registration(**changes)
    folder = stored(tmp_path, prereg=LockedRegistration(content=content, git_tag="prereg-x"))
    details = {row.name: row.detail for row in verify_bundle_dir(folder) if not row.ok}
    assert set(details) == {"prereg:conforms", "prereg:tag"}  # no repository is given
    assert told in details["prereg:conforms"]


def test_policy_that_was_registered_before_its_training_may_have_any_weights():
    block = registered_block(make_plan(), SummarySettings())
    block["policies"][0]["weights_sha256"] = None
    content = registration(policies=block["policies"])
    locked = LockedRegistration(content=content, git_tag="prereg-x")
    request = make_request()
    statistics = statistics_of(request.settings, request.plan.seeds)
    assert plan_differences(locked, request.plan, statistics) == []
    assert plan_differences(locked, request.plan, statistics | {"estimator": "iqm/v0"}) == [
        f"summary.estimator: {statistics['estimator']!r} registered, 'iqm/v0' run"
    ]


def test_missing_tag_is_a_failed_row(tmp_path, registered):
    content = registration().replace(b"prereg-x", b"no-such-tag")
    copy = LockedRegistration(content=content, git_tag="no-such-tag")
    rows = verify_bundle_dir(stored(tmp_path, prereg=copy), repo_path=registered)
    assert failed(rows) == ["prereg:tag"]


def test_check_table_shows_rows_and_the_verdict():
    rows = [CheckResult(name="a", ok=True), CheckResult(name="longer", ok=False, detail="broken")]
    assert render_check_table(rows) == (
        "PASS  a\nFAIL  longer  broken\nverify: FAIL (1/2 checks)\n"
    )
    assert render_check_table(rows[:1]).endswith("verify: PASS (1/1 checks)\n")
    assert not all_ok([])


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-6, False),
        ({"x": [1.0, None]}, {"x": [1.0, None]}, True),
        ({"x": 1.0}, {"y": 1.0}, False),
        ([1.0], [1.0, 2.0], False),
        (None, 0.0, False),
        ("a", "a", True),
        (1, True, False),
    ],
)
def test_equal_within_compares_floats_loosely_and_all_else_exactly(a, b, equal):
    assert equal_within(a, b, 1e-9) is equal


def test_bundle_with_absurdly_many_or_large_files_is_refused_unread(tmp_path, monkeypatch):
    folder = stored(tmp_path)
    monkeypatch.setattr(verify_module, "MAX_JSON_BYTES", 100)
    (row,) = verify_bundle_dir(folder)
    assert "expected at most 100 bytes" in row.detail
    monkeypatch.setattr(verify_module, "MAX_FILES", 3)
    (row,) = verify_bundle_dir(folder)
    assert "expected at most 3 files, got more" in row.detail


def test_registration_with_git_that_never_answers_is_a_failed_row(
    tmp_path, registered, monkeypatch
):
    folder = stored(tmp_path, prereg=LockedRegistration(content=registration(), git_tag="prereg-x"))
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    monkeypatch.setattr(git_module, "GIT_TIMEOUT_S", 0.2)
    rows = verify_bundle_dir(folder, repo_path=registered)
    assert "no answer" in next(row.detail for row in rows if not row.ok)


def without_records(request):
    episodes = [e.model_copy(update={"safety": None}) for e in request.episodes]
    return {"episodes": episodes}


def test_bundle_from_before_safety_was_recorded_passes_without_tables(tmp_path):
    folder = stored(tmp_path, **without_records(make_request()))
    assert not (folder / "three_tables.json").exists()
    rows = {row.name: row for row in verify_bundle_dir(folder)}
    assert rows["safety:absent"].ok
    assert all(row.ok for row in rows.values())


def test_changed_safety_tables_fail_although_all_hashes_were_rewritten(tmp_path):
    folder = stored(tmp_path)
    report = parse_three_tables(folder / "three_tables.json")
    row = replace(report.table_2[0], violations=0)
    emit_three_tables(out_dir=folder, report=replace(report, table_2=(row,)))
    reseal(folder)
    assert failed(verify_bundle_dir(folder)) == ["safety:tables"]


def test_bundle_made_with_another_solver_version_passes(tmp_path):
    folder = stored(tmp_path)
    report = parse_three_tables(folder / "three_tables.json")
    details = replace(report.details, solver_version="0.0.1")
    emit_three_tables(out_dir=folder, report=replace(report, details=details))
    reseal(folder)
    assert failed(verify_bundle_dir(folder)) == []
