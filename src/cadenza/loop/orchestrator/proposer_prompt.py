"""Prompts of the proposers: facts first, then pages as untrusted data, within a budget."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.knowledge.folder import PageFile
from cadenza.loop.llm.untrusted import data_mark, fenced, fit, shortened, storable, warning

#: Longest prompt, characters; about 12 000 tokens.
MAX_PROMPT_CHARS: Final = 48_000
#: Smallest budget of a prompt: room for facts, delimiters and a repair turn, characters.
MIN_PROMPT_CHARS: Final = 6000
#: Delimiters of one text without its name, characters, rounded up.
_OVERHEAD: Final = 120
#: Characters that one character of a name takes at most as JSON.
_MAX_ESCAPE: Final = 12
#: Characters of a reply, and of its problems, in a repair turn.
_REPAIR_CHARS: Final = 700
#: Characters of a request, with the delimiters of what it is about, rounded up.
_REQUEST_CHARS: Final = 600
#: A mark, for its length.
_ANY_MARK: Final = "0" * 32


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the pages in it.

    Attributes:
        text: What the model reads.
        pages: Pages of which it reads at least the beginning.
        page_chars: Characters of pages in it.
    """

    text: str
    pages: tuple[PageFile, ...]
    page_chars: int

    def about(self) -> str:
        """Return which pages a reply could draw on, as JSON."""
        listed = [{"path": page.path, "sha256": page.sha256} for page in self.pages]
        return json.dumps({"pages": listed, "chars": self.page_chars})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """What a prompt is made of; pages are cut first to fit it into a budget, then the report.

    Attributes:
        facts: What the model must know: cycle, dataset, bounds.
        report: Evaluation of the last cycle; None before the first.
        pages: Pages, most important first.
        raw: Whether to show what the evaluation itself wrote, if that fits.
        max_chars: Longest prompt, characters, at least `MIN_PROMPT_CHARS`.
        page_chars: Most characters of one page.
    """

    facts: str
    report: EvalReport | None
    pages: Sequence[PageFile]
    raw: bool
    max_chars: int
    page_chars: int

    def __post_init__(self) -> None:
        if self.max_chars < MIN_PROMPT_CHARS:
            raise ConfigurationError(
                f"max_prompt_chars: expected at least {MIN_PROMPT_CHARS}, got {self.max_chars}."
            )

    def build(self, request: str) -> Prompt:
        """Return a prompt of at most ``max_chars`` characters that ends with ``request``."""
        facts = shortened(self.facts, MIN_PROMPT_CHARS // 4)
        request = shortened(request, self.max_chars // 2)
        room = self.max_chars - len(facts) - len(request) - len(warning(_ANY_MARK)) - _OVERHEAD
        report_text = _report_json(self.report, raw=self.raw, chars=room)
        longest_path = max((len(page.path) for page in self.pages), default=0)
        texts = fit(
            [shortened(page.text, self.page_chars) for page in self.pages],
            room - len(report_text),
            _OVERHEAD + _MAX_ESCAPE * longest_path,
        )
        used = tuple(self.pages[: len(texts)])
        mark = data_mark([report_text, *texts, *(page.path for page in used)])
        blocks = [fenced("report", "last evaluation", report_text, mark)]
        blocks += [fenced("page", p.path, t, mark) for p, t in zip(used, texts, strict=True)]
        text = "\n\n".join([facts, warning(mark), *blocks, request])
        return Prompt(storable(text), used, sum(len(t) for t in texts))

    def build_about(self, kind: str, text: str, request: str) -> Prompt:
        """Return a prompt that ends with a text of the model's own, as untrusted, and a request.

        Args:
            kind: What the text is.
            text: The text; beyond half of the budget it is cut.
            request: What to do about it.
        """
        shown = shortened(text, self.max_chars // 2 - _REQUEST_CHARS)
        mark = data_mark([shown])
        return self.build(
            "\n\n".join([warning(mark), fenced(kind, "proposed before", shown, mark), request])
        )

    def repair(self, reply: str, problem: str, wanted: str) -> Prompt:
        """Return the prompt of a repair turn: the reply, and what is wrong with it, at its end."""
        shown, wrong = shortened(reply, _REPAIR_CHARS), shortened(problem, _REPAIR_CHARS)
        mark = data_mark([shown, wrong])
        request = "\n\n".join(
            [
                warning(mark),
                fenced("reply", "your last reply", shown, mark),
                fenced("problem", "what is wrong with it", wrong, mark),
                f"Reply again with only {wanted}.",
            ]
        )
        return self.build(request)


def _report_json(report: EvalReport | None, *, raw: bool, chars: int) -> str:
    """Return a report as JSON, without its larger parts or cut if it is too long."""
    if report is None:
        return "none"
    always = {"outcomes"}
    texts = [
        json.dumps(
            report.model_dump(mode="json", exclude=left_out), sort_keys=True, ensure_ascii=False
        )
        for left_out in ([always] if raw else []) + [always | {"raw"}]
    ]
    return next((text for text in texts if len(text) <= chars), shortened(texts[-1], chars))
