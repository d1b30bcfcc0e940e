"""Keeps what cycles observed in pages for later runs; see `cadenza.loop.knowledge`."""

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import Event, EventBus
from cadenza.loop.knowledge import lint
from cadenza.loop.knowledge.observations import (
    HUMAN_CONFIRMED,
    LESSONS_REQUEST,
    Measurement,
    Observation,
    Subject,
    bounded_lessons,
    own_text,
    page_bytes,
    plain_name,
    read_rows,
    with_own_lessons,
    write_rows,
)
from cadenza.loop.knowledge.pages import (
    digest,
    load_page,
    locked,
    page_path,
    read_bounded,
    read_page,
    save,
)
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    LLMClient,
    NullLLM,
    asking,
    quoted,
    shortened,
)

#: Most characters of a page that a model reads.
_MAX_PAGE_CHARS: Final = 16_000
#: Longest prompt, characters, unless told otherwise; what is not the page takes less than the rest.
_MAX_PROMPT_CHARS: Final = 48_000
_MAX_OTHER_CHARS: Final = 2000
#: Run of the events of a lint, which belongs to no run.
_LINT_RUN: Final = "knowledge-lint"


@dataclass(eq=False)
class KnowledgeAgent:
    """Writes observations and lessons into pages, and checks the pages.

    Attributes:
        root: Folder of the pages, created when something is first written.
        llm: Writes lessons; None derives them from the observations alone.
        clock: For observations that come without a time.
        max_prompt_chars: The page in a prompt is cut to keep to it.
        seed: Runs of one seed do not replicate each other.
        origin: Tells a run from one of its id in another store, asked when there is something to
            tell; None if ids are unique.
    """

    root: Path
    bus: EventBus
    llm: LLMClient | None = None
    _: KW_ONLY
    clock: Callable[[], float] = time.time
    max_prompt_chars: int = _MAX_PROMPT_CHARS
    max_tokens: int = DEFAULT_MAX_TOKENS
    seed: int | None = None
    origin: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        self.root = Path(self.root)

    def ingest(
        self,
        *,
        run_id: str,
        cycle: int,
        policy: str,
        report: EvalReport,
        decision: str,
        at: float | None = None,
    ) -> list[Path]:
        """Write what a cycle observed into the pages of policy, task and run.

        Repeating an ingest of the same run and cycle changes nothing. A run whose id another run
        had first has a digest behind its id in the pages. The task page is that of the
        report's suite; ``at`` is when the decision was made, Unix seconds, now if None. Returned
        are the pages of the policy and of the task.

        Raises:
            StorageError: Another process writes and does not come to an end, the file system
                refused, or a link leads out of the folder.
            StoreError: A language model's reply could not be recorded.
        """
        origin = None if self.origin is None else digest(self.origin())
        moment = datetime.fromtimestamp(self.clock() if at is None else at, UTC)
        seen = Observation(
            date=moment.date().isoformat(),
            run=plain_name(run_id),
            cycle=cycle,
            suite=plain_name(report.task_suite),
            policy=plain_name(policy),
            measured=Measurement(report.success_rate, report.n_episodes),
            decision=plain_name(decision).replace(",", "_"),
            seed=self.seed,
            origin=origin,
        )
        subjects = [Subject("policy", seen.policy), Subject("task", seen.suite)]
        # asked before the folder is locked: a model takes minutes, other runs write meanwhile
        llm = None if isinstance(self.llm, NullLLM) else self.llm
        replies = {} if llm is None else self._replies(llm, subjects, seen)
        with locked(self.root):
            rows = read_rows(self.root)
            seen = rows.named(seen)
            subjects.append(Subject("experiment", seen.run))
            paths = [self._path(subject) for subject in subjects]
            pages = [load_page(path) for path in paths]
            own = [own_text(p, s, rows) for p, s in zip(pages, subjects, strict=True)]
            for subject, page in zip(subjects, pages, strict=True):
                rows = with_own_lessons(rows, subject, page)
            if not rows.has(seen):
                rows = rows.with_observation(seen).with_lessons(replies)
            write_rows(self.root, rows)
            for path, page, subject, text in zip(paths, pages, subjects, own, strict=True):
                save(path, page_bytes(page, subject, rows, text))
        shown = [str(path) for path in paths]
        self.bus.emit(Event(run_id, "knowledge", "knowledge_updated", cycle, {"pages": shown}))
        return paths[:2]

    def lint(self) -> list[dict[str, str]]:
        """Return what is wrong with the pages, sorted; see `cadenza.loop.knowledge.lint`."""
        findings = lint.findings(self.root)
        self.bus.emit(Event(_LINT_RUN, "knowledge", "lint_report", payload={"findings": findings}))
        return findings

    def _replies(
        self, llm: LLMClient, subjects: list[Subject], seen: Observation
    ) -> dict[Subject, str]:
        """Return a model's lessons for pages that are about to get an observation."""
        rows, replies = read_rows(self.root), dict[Subject, str]()
        page_chars = min(_MAX_PAGE_CHARS, self.max_prompt_chars - _MAX_OTHER_CHARS)
        seen = rows.named(seen)
        if rows.has(seen):
            return replies
        for subject in subjects:
            path = self._path(subject)
            page = read_page(read_bounded(path) or b"")
            if page.meta.get("status") == HUMAN_CONFIRMED:
                continue
            after = with_own_lessons(rows, subject, page).with_observation(seen)
            data = page_bytes(page, subject, after, own_text(page, subject, rows))
            text = shortened(data.decode("utf-8", "replace"), page_chars)
            shown = [("page", path.name, text), ("observation", "new", seen.line())]
            prompt = quoted(shown, "Rewrite the lessons.")
            with asking(seen.cycle, f"lessons {subject.folder}/{path.name}"):
                reply = ask_safely(llm, prompt, system=LESSONS_REQUEST, max_tokens=self.max_tokens)
            lessons = bounded_lessons(reply)
            if lessons:
                replies[subject] = lessons
        return replies

    def _path(self, subject: Subject) -> Path:
        return page_path(self.root, subject.folder, subject.name)
