"""Everything that a run leaves, as plain values that two runs can be compared by.

Compared: every column of every table of the store, the event log, the bytes of the blessed policy,
the pages, and the names of all files. What may differ between two runs of one configuration is
listed in `NEVER_EQUAL` and `ATTEMPT_FILES`; everything else must be equal. Folders are written
``<folder>``, days of pages ``<day>``.
"""

import json
import re

from sqlalchemy import create_engine, select

from cadenza.core.files import sha256_file
from cadenza.loop.store.schema import METADATA

#: Columns that tell when, how often and in which process things were done.
NEVER_EQUAL = {
    "runs": {"created_at", "lease_epoch", "config_sha256"},  # the digest is of the folder too
    "cycles": {"started_at", "finished_at"},
    "jobs": {
        *("attempt", "interruptions", "pid", "pid_start_time"),
        *("started", "heartbeat", "finished", "duration_s", "attempt_s"),
    },
    "events": {"ts", "mono"},
    "approvals": {"requested_at", "decided_at", "deadline"},
}
#: Keys of the payload of an event that do.
NEVER_EQUAL_IN_PAYLOADS = {"duration_s"}
#: Files of a run that tell of its attempts: those below ``jobs`` folders, and these.
ATTEMPT_FILES = {"incidents.jsonl"}
_DAY = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")


def what_is_left(folder, run_id, store_url=None, *, runs="runs", pages="knowledge"):
    """Return what the run left below ``folder``, its current folder, by section."""
    run = folder / runs / run_id
    store_url = store_url or f"sqlite:///{folder / runs / 'cadenza.db'}"
    tables = _tables(folder, run_id, store_url)
    blessed = [row for row in tables["checkpoints"] if row["blessed"]]
    events = [_line(line, folder) for line in (run / "events.jsonl").read_text().splitlines()]
    found = sorted((folder / pages).rglob("*.md"))
    return {
        **{f"table {name}": rows for name, rows in tables.items()},
        "events.jsonl": events,
        "blessed policies": [
            sha256_file(folder / row["path"].removeprefix("<folder>/")) for row in blessed
        ],
        "pages": {page.name: without_days(page.read_text()) for page in found},
        "files": sorted(
            str(path.relative_to(run))
            for path in run.rglob("*")
            if "jobs" not in path.relative_to(run).parts and path.name not in ATTEMPT_FILES
        ),
    }


def without_days(text):
    """Return the text of a page without the days on which something was observed."""
    return _DAY.sub("<day>", text)


def differences(one, other):
    """Return a line for each thing in which two results of `what_is_left` differ."""
    found = []
    for section in one | other:
        mine, yours = one.get(section), other.get(section)
        if isinstance(mine, list) and isinstance(yours, list) and len(mine) == len(yours):
            pairs = zip(range(len(mine)), mine, yours, strict=True)
            found += [f"{section}[{n}]: {a} | {b}" for n, a, b in pairs if a != b]
        elif mine != yours:
            found.append(f"{section}: {mine} | {yours}")
    return found


def _tables(folder, run_id, store_url):
    engine = create_engine(store_url)
    tables = {}
    with engine.connect() as connection:
        for table in METADATA.sorted_tables:
            of_run = table.c.id if table.name == "runs" else table.c.run_id
            query = select(table).where(of_run == run_id).order_by(*table.primary_key.columns)
            tables[table.name] = [
                _row(table.name, row, folder) for row in connection.execute(query).mappings()
            ]
    engine.dispose()
    return tables


def _row(table, row, folder):
    left_out = NEVER_EQUAL.get(table, set())
    kept = {key: _plain(value, folder) for key, value in row.items() if key not in left_out}
    if table == "events":
        kept["payload"] = _payload(json.loads(kept["payload"]))
    return kept


def _line(text, folder):
    line = json.loads(_plain(text, folder))
    line["payload"] = _payload(line["payload"])
    return {key: value for key, value in line.items() if key not in NEVER_EQUAL["events"]}


def _payload(payload):
    return {key: value for key, value in payload.items() if key not in NEVER_EQUAL_IN_PAYLOADS}


def _plain(value, folder):
    return value.replace(str(folder), "<folder>") if isinstance(value, str) else value
