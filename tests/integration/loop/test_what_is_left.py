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
        with store_in(folder / "runs", sqlite_template) as store:
            Loop(store, folder / "runs", FakeStack([0.4, 0.9]), run_id=RUN).run()
        return folder

    return run


def execute(folder, statement):
    engine = create_engine(f"sqlite:///{folder / 'runs' / 'cadenza.db'}")
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()


def change_lines(folder, change):
    log = folder / "runs" / RUN / "events.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    change(lines)
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def change_blessed_policy(folder):
    [policy] = what_is_left(folder, RUN)["blessed policies"]
    files = [path for path in (folder / "runs" / RUN).rglob("*") if path.is_file()]
    next(path for path in files if sha256_file(path) == policy).write_bytes(b"other")


#: Changes, by the section that must show them.
CHANGES = {
    "table events": lambda folder: execute(
        folder, "UPDATE events SET payload = replace(payload, 'promote', 'iterate')"
    ),
    "table runs": lambda folder: execute(folder, "UPDATE runs SET lease_owner = 'somebody'"),
    "table episodes": lambda folder: execute(folder, "UPDATE episodes SET success = 1 - success"),
    "events.jsonl": lambda folder: change_lines(folder, lambda lines: lines.append(lines[-1])),
    "blessed policies": change_blessed_policy,
    "pages": lambda folder: (folder / "knowledge" / "page.md").write_text("success 60 %\n"),
    "files": lambda folder: (folder / "runs" / RUN / "cycle_0" / "x.tmp").touch(),
}


def test_changes_are_seen_in_their_sections_and_times_are_not(finished):
    one, other = finished("one"), finished("other")
    execute(other, "UPDATE jobs SET pid = 7, attempt = 9, duration_s = 3.5")
    execute(other, "UPDATE cycles SET started_at = 1.0")
    change_lines(other, lambda lines: [line.update(ts=1.0, mono=2.0) for line in lines])
    (other / "runs" / RUN / "incidents.jsonl").touch()
    (other / "knowledge" / "page.md").write_text("updated: 2026-01-02, success 50 %\n")
    assert differences(what_is_left(one, RUN), what_is_left(other, RUN)) == []
    for section, change in CHANGES.items():
        before = what_is_left(other, RUN)
        change(other)
        found = differences(before, what_is_left(other, RUN))
        assert any(line.startswith(section) for line in found), section
