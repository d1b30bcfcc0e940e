"""What is asked of a store about its runs: what it costs, and what it finds, on both databases."""

from sqlalchemy import event
from sqlalchemy.engine import Engine

from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.status_report import all_statuses, cycle_evaluation, run_list, run_status
from cadenza.loop.store.changes import (
    add_checkpoint,
    bless,
    finish_cycle,
    record_episodes,
    request_approval,
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


def test_runs_are_listed_newest_first_in_pages_with_the_statements_of_one_page(store):
    asked = []

    def note(_connection, _cursor, statement, *_):
        asked.append(statement)

    names = [f"run-{number:02d}" for number in range(25)]
    for name in names:
        store.create_run(name, '{"budgets": {"max_cycles": 3}}')
    lease = store.leases.acquire("run-24", "someone", ttl_s=60.0)
    store.apply(
        lease,
        start_cycle(0),
        add_checkpoint(0, "bc", "/0"),
        record_episodes(0, "candidate", 0, outcomes(6, 10)),
        bless("/0"),
        finish_cycle(0, "promote"),
        request_approval(0, "promote"),
    )
    store.finish_run("run-03", "failed", "no room")
    event.listen(Engine, "before_cursor_execute", note)
    first = run_list(store, limit=10)
    cost = len(asked)
    rest = run_list(store, limit=100, before=first[-1].run_id)
    event.remove(Engine, "before_cursor_execute", note)
    assert [one.run_id for one in first + rest] == names[::-1]
    assert len(asked) == 2 * cost < 20
    newest = first[0]
    assert (newest.decided, newest.max_cycles, newest.pending) == (1, 3, 1)
    assert (newest.success.rate, newest.success.n_episodes) == (0.6, 10)
    assert newest.worked_on_by == "someone"
    assert (first[1].decided, first[1].pending, first[1].success) == (0, 0, None)
    [failed] = run_list(store, status="failed")
    assert (failed.run_id, failed.stop_reason) == ("run-03", "no room")
    assert run_list(store, before="no such run") == []


def test_events_are_found_by_number_and_by_what_they_tell(store):
    store.create_run("r", "{}")
    lease = store.leases.acquire("r", "someone", ttl_s=60.0)
    told = [{"note": "100% Ünder_way" if number == 7 else "plain"} for number in range(40)]
    kinds = ("job_started", "job_finished")
    store.events.append(
        lease,
        [
            happened("train", kinds[number % 2], number // 10, payload, number)
            for number, payload in enumerate(told)
        ],
    )

    def numbers(**filters):
        return [one.seq for one in store.events.find("r", **filters)]

    assert numbers(limit=3) == [38, 39, 40]
    assert numbers(before=38, limit=3) == [35, 36, 37]
    assert numbers(after=0, limit=3) == [1, 2, 3]
    assert numbers(after=2, before=5) == [3, 4]
    assert numbers(cycle=1, kind="job_finished") == [12, 14, 16, 18, 20]
    assert numbers(stage="eval") == numbers(text="absent") == numbers(text="1_0") == []
    assert numbers(text="0% Ünder_") == numbers(text="Ünder_WAY") == [8]


def test_a_cycle_is_evaluated_by_task_and_policy_with_exact_intervals(store):
    store.create_run("r", "{}")
    lease = store.leases.acquire("r", "someone", ttl_s=60.0)
    for subject, wins in (("baseline", 0), ("candidate", 10)):
        played = [
            EpisodeOutcome(task=task, seed=seed, success=task == "easy" or seed < wins)
            for task in ("easy", "hard")
            for seed in range(10)
        ]
        store.apply(lease, record_episodes(0, subject, 0, played))
    found = {(one.subject, one.task): one.measured for one in cycle_evaluation(store, "r", 0)}
    assert set(found) == {(s, t) for s in ("baseline", "candidate") for t in ("easy", "hard")}
    lost = found["baseline", "hard"]
    assert (lost.rate, lost.low, lost.n_episodes) == (0.0, 0.0, 10)
    assert abs(lost.high - (1.0 - 0.025 ** (1 / 10))) < 1e-9  # Clopper-Pearson of 0 in 10
    assert found["candidate", "hard"].rate == 1.0
