"""The comparison of two runs sees every change of what they leave, and no change of times."""

import json

import pytest
from sqlalchemy import create_engine, text

from cadenza.core.files import sha256_file
from tests.integration.loop.loop_harness import Loop, store_in
from tests.integration.loop.what_is_left import differences, what_is_left
from tests.loop_fakes import FakeStack

RUN = "run"


@pytest.fixture
def finished(tmp_path, sqlite_template):
    """Call it with a name of a folder; a small run has ended in it."""

    def run(name):
        folder = tmp_path / name
        (folder / "runs").mkdir(parents=True)
        (folder / "knowledge").mkdir()
        (folder / "knowledge" / "page.md").write_text("updated: 2026-01-01, success 50 %\n")
        stack = FakeStack([0.4, 0.9])
        improve = {"enabled": True, "episodes": 4}
        with store_in(folder / "runs", sqlite_template) as store:
            loop = Loop(store, folder / "runs", stack, run_id=RUN, improve=improve)
            loop.run()
        return folder

    return run


def execute(folder, statement):
    engine = create_engine(f"sqlite:///{folder / 'runs' / 'cadenza.db'}")
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()


def change_line(folder, change):
    log = folder / "runs" / RUN / "events.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    change(lines)
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def blessed_file(folder):
    [policy] = what_is_left(folder, RUN)["blessed policies"]
    return next(path for path in (folder / "runs" / RUN).rglob("*") if digest(path) == policy)


def digest(path):
    return sha256_file(path) if path.is_file() else None


#: Changes, each with the section that must show it.
CHANGES = {
    "payload of an event": (
        "table events",
        lambda folder: execute(
            folder,
            "UPDATE events SET payload = replace(payload, 'promote', 'iterate') "
            "WHERE kind = 'decision' AND cycle = 0",
        ),
    ),
    "payload of a line": (
        "events.jsonl",
        lambda folder: change_line(folder, lambda lines: lines[3]["payload"].update(more=1)),
    ),
    "kind of a line": (
        "events.jsonl",
        lambda folder: change_line(folder, lambda lines: lines[2].update(kind="other")),
    ),
    "lost line": ("events.jsonl", lambda folder: change_line(folder, lambda lines: lines.pop())),
    "repeated line": (
        "events.jsonl",
        lambda folder: change_line(folder, lambda lines: lines.append(lines[-1])),
    ),
    "state": (
        "table runs",
        lambda folder: execute(folder, "UPDATE runs SET state_version = state_version + 1"),
    ),
    "lease that stayed": (
        "table runs",
        lambda folder: execute(folder, "UPDATE runs SET lease_owner = 'somebody'"),
    ),
    "decision": (
        "table cycles",
        lambda folder: execute(folder, "UPDATE cycles SET decision = 'iterate' WHERE idx = 0"),
    ),
    "blessed policy": (
        "table checkpoints",
        lambda folder: execute(folder, "UPDATE checkpoints SET blessed = 0"),
    ),
    "bytes of the blessed policy": (
        "blessed policies",
        lambda folder: blessed_file(folder).write_bytes(b"other"),
    ),
    "episode": (
        "table episodes",
        lambda folder: execute(folder, "UPDATE episodes SET success = 1 - success WHERE idx = 1"),
    ),
    "seeds": (
        "table seed_ranges",
        lambda folder: execute(folder, "UPDATE seed_ranges SET start = start + 1 WHERE cycle = 1"),
    ),
    "repeated job": (
        "table jobs",
        lambda folder: execute(folder, "UPDATE jobs SET status = 'failed' WHERE cycle = 1"),
    ),
    "page": (
        "pages",
        lambda folder: (folder / "knowledge" / "page.md").write_text("success 60 %\n"),
    ),
    "left over file": (
        "files",
        lambda folder: (folder / "runs" / RUN / "cycle_0" / "x.tmp").touch(),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen_in_its_section(finished, name):
    section, change = CHANGES[name]
    folder = finished("one")
    before = what_is_left(folder, RUN)
    change(folder)
    found = differences(before, what_is_left(folder, RUN))
    assert any(line.startswith(section) for line in found)


def test_equal_runs_in_two_folders_differ_in_nothing_and_a_third_does(finished):
    one, other = finished("one"), finished("other")
    execute(other, "UPDATE jobs SET pid = 7, attempt = 9, duration_s = 3.5")
    execute(other, "UPDATE cycles SET started_at = 1.0")
    change_line(other, lambda lines: [line.update(ts=1.0, mono=2.0) for line in lines])
    (other / "runs" / RUN / "incidents.jsonl").touch()
    (other / "knowledge" / "page.md").write_text("updated: 2026-01-02, success 50 %\n")
    assert differences(what_is_left(one, RUN), what_is_left(other, RUN)) == []
    assert what_is_left(one, RUN)["events.jsonl"]
    execute(other, "UPDATE runs SET stop_reason = 'other'")
    assert len(differences(what_is_left(one, RUN), what_is_left(other, RUN))) == 1
