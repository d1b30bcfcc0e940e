import pytest

from cadenza.loop.agents.knowledge_agent import KnowledgeAgent
from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import EventBus
from cadenza.loop.knowledge.lint import findings
from tests.loop_fakes import logged

DAY = 86400.0


@pytest.fixture
def root(tmp_path):
    return tmp_path / "knowledge"


@pytest.fixture
def ingest(tmp_path, root):
    agent = KnowledgeAgent(root, EventBus(tmp_path / "events.jsonl"), clock=lambda: 1.7e9)

    def one(run, cycle, success, *, policy="bc", suite="crossing", at=1.7e9, decision="promote"):
        report = EvalReport(
            checkpoint="c", env_type="e", task_suite=suite, n_episodes=40, success_rate=success
        )
        agent.ingest(
            run_id=run, cycle=cycle, policy=policy, report=report, decision=decision, at=at
        )

    return one


def with_lessons(root, path, *lessons):
    file = root / path
    head = file.read_text().split("## Lessons")[0]
    file.write_text(head + "## Lessons\n\n" + "\n".join(f"- {text}" for text in lessons) + "\n")


def problems(root, path, **more):
    return [f["problem"] for f in findings(root, **more) if f["page"] == str(root / path)]


def test_promised_problems_are_told_by_page(tmp_path, root):
    pages = {
        "a": (b"---\nname: [\n---\n", ["unparseable: front matter is no YAML"]),
        "b": (b"no front matter", ["bad type None", "bad status None", "missing provenance"]),
        "c": (
            b"---\ntype: task\nstatus: proven\nprovenance: [{run: 1}]\n---\n",
            ["bad status 'proven'", "bad provenance: expected a list of {run, cycle}"],
        ),
        "d": (
            b"---\ntype: task\nstatus: replicated\nprovenance: []\n---\n\xff",
            ["unparseable: no UTF-8 at byte 53", "missing provenance"],
        ),
    }
    (root / "tasks").mkdir(parents=True)
    (root / "KNOWLEDGE.md").write_text("never linted")
    for name, (content, _) in pages.items():
        (root / f"tasks/{name}.md").write_bytes(content)
    found = KnowledgeAgent(root, EventBus(tmp_path / "events.jsonl")).lint()
    assert [f["page"] for f in found] == sorted(f["page"] for f in found)
    for name, (_, told) in pages.items():
        page = problems(root, f"tasks/{name}.md")
        assert [page[n][: len(start)] for n, start in enumerate(told)] == told
    (event,) = logged(tmp_path / "events.jsonl")
    assert (event["run_id"], event["stage"]) == ("knowledge-lint", "knowledge")
    assert (event["kind"], event["payload"]["findings"]) == ("lint_report", found)


@pytest.mark.parametrize(
    ("lesson", "contradicted"),
    [
        ("More data improves bc.", False),
        ("bc gets worse with more data.", True),
        ("On Crossing everything drops.", True),
        ("bc does not get worse.", False),
        ("bc_large gets worse.", False),
    ],
)
def test_lesson_against_the_newest_change_is_told(root, ingest, lesson, contradicted):
    ingest("a", 0, 0.2)
    ingest("a", 1, 0.8)
    with_lessons(root, "tasks/crossing.md", lesson)
    found = problems(root, "tasks/crossing.md")
    assert [f"lesson '- {lesson}'" in problem for problem in found] == [True] * contradicted
    assert all("went 20.0% to 80.0%" in problem for problem in found)


def test_lessons_that_contradict_each_other_are_told(root, ingest):
    ingest("a", 0, 0.5)
    with_lessons(root, "tasks/crossing.md", "More data improves bc.", "bc drops with more data.")
    told = "contradiction: lessons say that bc gains and that it loses"
    assert problems(root, "tasks/crossing.md") == [told]
    with_lessons(root, "tasks/crossing.md", "More data improves bc.", "bc does not drop.")
    assert problems(root, "tasks/crossing.md") == []


def test_best_that_is_not_best_is_told(root, ingest):
    ingest("a", 0, 0.3)
    ingest("a", 1, 0.9, policy="bc_large")
    with_lessons(root, "tasks/crossing.md", "bc is the best here.")
    (problem,) = problems(root, "tasks/crossing.md")
    assert "bc_large was at 90.0% on crossing, bc at 30.0%" in problem
    with_lessons(root, "tasks/crossing.md", "bc_large is the best here.")
    assert problems(root, "tasks/crossing.md") == []


def test_page_without_news_is_stale(root, ingest):
    ingest("a", 0, 0.5, suite="old", policy="p", at=1.7e9)
    ingest("b", 0, 0.5, suite="new", policy="q", at=1.7e9 + 30 * DAY)
    assert findings(root) == []
    ingest("b", 1, 0.5, suite="new", policy="q", at=1.7e9 + 31 * DAY)
    assert problems(root, "tasks/old.md") == ["stale: no observation for 31 days before 2023-12-15"]
    assert problems(root, "tasks/new.md") == []


def test_runs_that_do_not_exist_are_told(root, ingest):
    ingest("a", 0, 0.5)
    ingest("b", 0, 0.5)
    (root / "experiments/b.md").unlink()
    told = "missing run: refers to b, which is not known"
    assert problems(root, "tasks/crossing.md") == [told]
