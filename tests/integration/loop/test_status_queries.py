"""What `loop status` costs: as many statements, and as many rows, however many cycles there are."""

from sqlalchemy import event
from sqlalchemy.engine import Engine

from cadenza.loop.status_report import all_statuses, run_status
from cadenza.loop.store.changes import (
    add_checkpoint,
    bless,
    finish_cycle,
    record_episodes,
    start_cycle,
)
from tests.loop_runs import event as happened
from tests.loop_runs import job_of, outcomes


def test_status_of_a_thousand_cycles_asks_and_reads_as_much_as_of_twenty(store, tmp_path):
    asked = []

    def note(_connection, _cursor, statement, *_):
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    for run_id, cycles in (("few", 4), ("many", 1000)):
        store.create_run(run_id, "{}")
        lease = store.leases.acquire(run_id, "someone", ttl_s=60.0)
        rows = []
        for idx in range(cycles):
            rows += [start_cycle(idx, rung="bc"), finish_cycle(idx, "iterate")]
            rows.append(record_episodes(idx, "candidate", 0, outcomes(idx % 3, 4)))
            rows.append(add_checkpoint(idx, "bc", f"/{idx}"))
        job = store.jobs.open(lease, job_of(tmp_path, 1, "train", run_id=run_id))
        store.jobs.close(lease, job.key, "failed")
        store.apply(lease, *rows, bless(f"/{min(cycles - 1, 500)}"))
        pages = [{"pages": [f"p{idx % 2}.md"]} for idx in range(cycles)]
        store.events.append(
            lease,
            [
                happened("knowledge", "knowledge_updated", idx, told, idx)
                for idx, told in enumerate(pages)
            ],
        )
    counts = []
    for run_id in ("few", "many", None):
        asked.clear()
        statuses = (
            all_statuses(store, workdir=tmp_path)
            if run_id is None
            else [run_status(store, run_id, workdir=tmp_path)]
        )
        counts.append(len(asked))
    few, many = statuses
    whole = run_status(store, "many", workdir=tmp_path, newest=None)
    event.remove(Engine, "before_cursor_execute", note)
    assert counts[0] == counts[1] == counts[2] < 20
    assert (few.decided, few.cycles_left_out, len(few.cycles)) == (4, 0, 4)
    assert (many.decided, many.cycles_left_out) == (1000, 980)
    assert [cycle.idx for cycle in many.cycles] == list(range(980, 1000))
    assert many.cycles == whole.cycles[980:]
    assert (len(whole.cycles), whole.cycles_left_out) == (1000, 0)
    assert many.cycles[-1].candidate.rate == 0.0  # 999 is a multiple of 3
    assert (many.blessed.cycle, many.blessed.score) == (500, whole.blessed.score)
    assert many.knowledge_pages == whole.knowledge_pages == ("p0.md", "p1.md")
    assert few.failed_log.endswith("few/cycle_1/train.log")
