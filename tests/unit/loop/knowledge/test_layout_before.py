"""Pages that held their observations themselves are taken over once, and nothing of them is lost.

``layout_before`` is as the version before the file of rows wrote it: 43 cycles of a run ``demo``,
one of a run of the same id in another store, and one of a third run; then a person edited two.
"""

import json
import shutil
from pathlib import Path

import pytest

from cadenza.loop.agents.knowledge_agent import KnowledgeAgent
from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import EventBus
from cadenza.loop.knowledge.lint import findings
from cadenza.loop.knowledge.pages import read_page

FIRST, SECOND = "demo", "demo~3fc4ccfe"


@pytest.fixture
def root(tmp_path):
    return Path(shutil.copytree(Path(__file__).with_name("layout_before"), tmp_path / "knowledge"))


@pytest.fixture
def ingest(tmp_path, root):
    def one(run, cycle, origin, policy="bc", success=0.5):
        agent = KnowledgeAgent(
            root, EventBus(tmp_path / "events.jsonl"), clock=lambda: 1.704e9, origin=lambda: origin,
            seed=9,
        )  # fmt: skip
        report = EvalReport(
            checkpoint="c", env_type="e", task_suite="crossing", n_episodes=40, success_rate=success
        )
        agent.ingest(run_id=run, cycle=cycle, policy=policy, report=report, decision="promote")

    return one


def rows(root):
    return [json.loads(line) for line in (root / "observations.jsonl").read_text().splitlines()]


def test_observations_seeds_and_names_of_runs_are_taken_over(root, ingest):
    assert findings(root) == []
    ingest("demo", 42, "one")  # the last step of the first run, repeated
    ingest("demo", 1, "two")  # the run of the other store goes on
    found = [
        (row["run"], row["cycle"], row["seed"]) for row in rows(root) if row["row"] != "lessons"
    ]
    assert found == [
        *((FIRST, cycle, 7) for cycle in range(43)),
        (SECOND, 0, 8),
        ("other", 0, 9),
        (SECOND, 1, 9),
    ]
    kept = {row["cycle"]: row["measured"] for row in rows(root) if row.get("decision") == "promote"}
    assert kept[5] == {"rate": 0.6, "episodes": 40}
    assert findings(root) == []


def test_page_is_written_anew_and_keeps_what_a_person_wrote(root, ingest):
    before = read_page((root / "policies/bc.md").read_bytes())
    ingest("demo", 42, "one")
    data = (root / "policies/bc.md").read_bytes()
    page = read_page(data)
    assert page.below == b"\nSee the video.\n\n## Notes\n\nMine.\n"
    assert page.section("Observations") == before.section("Observations")
    assert page.section("Lessons") == before.section("Lessons")
    derived = {"derived_lessons": f"sha256:{before.meta['derived_lessons']}"}
    assert page.meta == {**before.meta, **derived}
    task = read_page((root / "tasks/crossing.md").read_bytes())
    run = read_page((root / "experiments/demo.md").read_bytes())
    assert (task.below, run.below) == (b"", b"")
    ingest("demo", 42, "one")
    assert (root / "policies/bc.md").read_bytes() == data


def test_what_a_person_confirmed_is_taken_over(root, ingest):
    ingest("demo", 43, "one", policy="bc large", success=0.9)
    page = read_page((root / "policies/bc-large.md").read_bytes())
    assert page.meta["status"] == "human-confirmed"
    assert page.section("Lessons") == "Too large for this."
    assert [one["run"] for one in page.meta["provenance"]] == ["other", "demo"]
    assert rows(root)[-1] == {
        "row": "lessons", "page": "policy", "name": "bc large", "text": "Too large for this.",
    }  # fmt: skip


def test_table_of_a_run_without_its_page_is_kept_as_text(root, ingest):
    (root / "experiments/demo.md").unlink()
    ingest("demo", 42, "one")
    below = read_page((root / "policies/bc.md").read_bytes()).below
    assert b"| demo | crossing | bc | 0-3 | 50.0% of 40 |" in below
    assert b"cycle:" not in below


def test_page_of_leagents_is_taken_over(tmp_path, root, ingest):
    line = (
        "- 2023-01-02 · run q · cycle 3 · crossing · policy bc · success 50.0% · decision promote"
    )
    shutil.rmtree(root)
    page = root / "policies/bc.md"
    page.parent.mkdir(parents=True)
    page.write_text(
        "---\nname: bc\ntype: policy\nstatus: observed-once\nprovenance:\n- run: q\n  cycle: 3\n"
        f"updated: '2023-01-02'\n---\n\n# Policy: bc\n\n## Observations\n\n{line}\n\n## Lessons\n\n"
        "- Learned.\n"
    )
    ingest("demo", 0, "one")
    (first, second, lessons) = rows(root)
    assert (first["run"], first["cycle"], first["seed"]) == ("q", 3, None)
    assert first["measured"] == {"rate": 0.5, "episodes": 0}
    assert (second["run"], lessons["text"]) == ("demo", "- Learned.")
    taken = read_page(page.read_bytes())
    assert taken.section("Observations").split("\n")[0] == line
    assert (taken.section("Lessons"), taken.below) == ("- Learned.", b"")
