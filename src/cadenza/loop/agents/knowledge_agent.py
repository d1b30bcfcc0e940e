"""Keeps what cycles observed in pages for later runs; see `cadenza.loop.knowledge`."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import Event, EventSink
from cadenza.loop.knowledge import lint
from cadenza.loop.knowledge.observations import Observation, measurement, plain_name
from cadenza.loop.knowledge.pages import (
    Page,
    claimed_name,
    load_page,
    locked,
    page_path,
    read_bounded,
    read_page,
    save_page,
    write_page,
)
from cadenza.loop.knowledge.updates import (
    LESSONS_REQUEST,
    Subject,
    has_observation,
    takes_lessons,
    updated_page,
)
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    LLMClient,
    NullLLM,
    asking,
    data_mark,
    fenced,
    shortened,
    warning,
)

#: Most characters of a page that a model reads.
_MAX_PAGE_CHARS: Final = 16_000
#: Longest prompt, characters, unless told otherwise; what is not the page takes less than the rest.
_MAX_PROMPT_CHARS: Final = 48_000
_MAX_OTHER_CHARS: Final = 2000
#: Run of the events of a lint, which belongs to no run.
_LINT_RUN: Final = "knowledge-lint"


class KnowledgeAgent:
    """Writes observations and lessons into pages, and checks the pages."""

    def __init__(
        self,
        root: Path,
        bus: EventSink,
        llm: LLMClient | None = None,
        *,
        clock: Callable[[], float] = time.time,
        max_prompt_chars: int = _MAX_PROMPT_CHARS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        seed: int | None = None,
        origin: Callable[[], str] | None = None,
    ) -> None:
        """Keep pages below ``root``, created when something is first written.

        ``llm`` writes lessons, None derives them from the observations alone; to keep to
        ``max_prompt_chars`` the page in its prompt is cut. ``clock`` is for observations that come
        without a time. Runs of one ``seed`` do not replicate each other. ``origin``, asked when
        there is something to tell, tells a run from one of its id in another store; None if ids are
        unique.
        """
        self.root: Path = Path(root)
        self.bus = bus
        self.llm: LLMClient | NullLLM = llm or NullLLM()
        self._clock = clock
        self._max_tokens = max_tokens
        self._seed = seed
        self._origin = origin
        self._page_chars = min(_MAX_PAGE_CHARS, max_prompt_chars - _MAX_OTHER_CHARS)

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
        seen = Observation(
            date=datetime.fromtimestamp(self._clock() if at is None else at, UTC)
            .date()
            .isoformat(),
            run=plain_name(run_id),
            cycle=cycle,
            suite=plain_name(report.task_suite),
            policy=plain_name(policy),
            measured=measurement(report.success_rate, report.n_episodes),
            decision=plain_name(decision).replace(",", "_"),
            seed=self._seed,
        )
        name = self._name_of(run_id, seen)
        seen = replace(seen, run=plain_name(name))
        subjects = (
            Subject("policy", policy),
            Subject("task", report.task_suite),
            Subject("experiment", name),
        )
        # asked before the folder is locked: a model takes minutes, other runs write meanwhile
        replies = [self._lessons(subject, seen) for subject in subjects]
        with locked(self.root):
            paths = [
                self._update(subject, seen, reply)
                for subject, reply in zip(subjects, replies, strict=True)
            ]
        pages = [str(path) for path in paths]
        self.bus.emit(Event(run_id, "knowledge", "knowledge_updated", cycle, {"pages": pages}))
        return paths[:2]

    def lint(self) -> list[dict[str, str]]:
        """Return what is wrong with the pages, sorted; see `cadenza.loop.knowledge.lint`."""
        findings = lint.findings(self.root)
        self.bus.emit(Event(_LINT_RUN, "knowledge", "lint_report", payload={"findings": findings}))
        return findings

    def _name_of(self, run_id: str, seen: Observation) -> str:
        """Return the name of the run in the pages."""
        if self._origin is None:
            return run_id
        origin, subject = self._origin(), Subject("experiment", run_id)
        with locked(self.root):
            taken = has_observation(self._page(self._path(subject)), subject, seen)
            return claimed_name(self.root, run_id, origin, taken=taken)

    def _page(self, path: Path) -> Page:
        """Return a page as it is now; an empty one for none, or for one that is no page."""
        return Page(meta={}) if read_bounded(path) is None else load_page(path)

    def _update(self, subject: Subject, seen: Observation, reply: str) -> Path:
        path = self._path(subject)
        page = load_page(path)
        after = updated_page(page, subject, seen, reply)
        if after is not page:
            save_page(path, after)
        return path

    def _lessons(self, subject: Subject, seen: Observation) -> str:
        """Return a model's lessons for a page that is about to get an observation."""
        if isinstance(self.llm, NullLLM) or subject.page_type == "experiment":
            return ""
        path = self._path(subject)
        page = self._page(path)
        if has_observation(page, subject, seen) or not takes_lessons(page):
            return ""
        text = shortened(
            write_page(updated_page(page, subject, seen, "")).decode(), self._page_chars
        )
        mark = data_mark([text, seen.line()])
        prompt = "\n\n".join(
            [
                warning(mark),
                fenced("page", path.name, text, mark),
                fenced("observation", "new", seen.line(), mark),
                "Rewrite the lessons.",
            ]
        )
        with asking(seen.cycle, f"lessons {subject.folder}/{path.name}"):
            return ask_safely(self.llm, prompt, system=LESSONS_REQUEST, max_tokens=self._max_tokens)

    def _path(self, subject: Subject) -> Path:
        return page_path(self.root, subject.folder, subject.name, _owner)


def _owner(path: Path) -> str | None:
    """Return the name in the front matter of a file; None if there is none."""
    data = read_bounded(path)
    name = None if data is None else read_page(data).meta.get("name")
    return name if isinstance(name, str) else None
