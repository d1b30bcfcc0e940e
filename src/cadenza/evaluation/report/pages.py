"""The frame of every page: one HTML file that needs nothing else, and what stands in it.

The content security policy in its head allows the embedded style and the embedded script by their
hashes and nothing from anywhere else, so a browser enforces what the promise says.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cadenza.core.tables import LATEX_HEAD, markdown_text
from cadenza.evaluation.report.svg import ASSETS
from cadenza.evaluation.report.view import Section

Format: TypeAlias = Literal["html", "markdown", "latex", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One headline number, what it counts, how sure it is, and the class of its accent."""

    value: str
    label: str
    detail: str
    css: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryPage:
    """What a page says.

    Attributes:
        kind: What it is, beside the name of the package, e.g. ``"sweep"``.
        title: Heading.
        task: Task, if it is about one.
        subtitle: One or two sentences below the heading.
        badge: State and text of its verification, if it has one.
        verdict: The result in a sentence.
        tiles: Headline numbers.
        measured: Sentences on what was measured.
        not_measured: Sentences on what was not.
        cautions: Sentences on how far that holds.
        sections: Figures and tables.
        facts: Value of what the provenance says, by label.
    """

    kind: str
    title: str
    task: str = ""
    subtitle: str = ""
    badge: Mapping[str, str] = field(default_factory=dict[str, str])
    verdict: str = ""
    tiles: tuple[Tile, ...] = ()
    measured: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    def markdown(self) -> str:
        """Return what it says without its pictures, as Markdown."""
        standing = " ".join(f"{text}." for text in (self.task, self.badge.get("text")) if text)
        parts = [f"# {markdown_text(self.title)}", markdown_text(standing)]
        parts += [markdown_text(self.verdict), _listed(self._statements())]
        parts += [table.to_markdown() for section in self.sections for table in section.tables]
        parts += [_listed([f"{label}: {value}" for label, value in self.facts.items()])]
        return "\n\n".join(filter(None, parts)) + "\n"

    def latex(self) -> str:
        """Return its tables as LaTeX; the first line names the packages they need."""
        texts = [text for text in (self.title, self.task, *self._statements()) if text]
        head = "\n".join([LATEX_HEAD, *(f"% {' '.join(text.split())}" for text in texts)])
        tables = [table.to_latex() for section in self.sections for table in section.tables]
        return "\n\n".join([head, *tables]) + "\n"

    def _statements(self) -> list[str]:
        """Return what was measured, what was not, and cautions."""
        missing = [f"Not measured: {text}" for text in self.not_measured]
        return [*self.measured, *missing, *(f"Caution: {text}" for text in self.cautions)]


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(text)}" for text in texts)


def render_story(page: StoryPage, form: Format, record: Mapping[str, Any]) -> str:
    """Return the page in any format; ``record`` is what it says as JSON values."""
    if form == "json":
        return json.dumps(record, indent=2, allow_nan=False) + "\n"
    if form == "html":
        return render_page(page)
    return page.markdown() if form == "markdown" else page.latex()


def render_page(
    page: StoryPage, template: str = "page.html.j2", script: str = "", **content: Any
) -> str:
    """Return the page as HTML, equal text for equal pages; ``template`` may fill its blocks."""
    style = Markup("").join(asset(f"{x}.css") for x in ("palette", "figures", "player", "style"))
    code = asset(script) if script else Markup("")
    scripts = f"script-src '{policy_hash(code)}'; " if script else ""
    return (
        template_environment()
        .get_template(template)
        .render(
            page=page,
            style=style,
            script=code,
            policy=f"default-src 'none'; img-src data:; style-src '{policy_hash(style)}'; "
            f"{scripts}base-uri 'none'; form-action 'none'",
            **content,
        )
    )


def template_environment() -> Environment:
    """Return a template environment that escapes everything and knows no undefined name."""
    return Environment(
        loader=PackageLoader("cadenza.evaluation.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def asset(name: str) -> Markup:
    """Return a style sheet or script of the package, as it is."""
    source = ASSETS / name
    return Markup(source.read_text(encoding="utf-8"))  # noqa: S704 -- a file of this package


def policy_hash(text: str) -> str:
    """Return the policy's name for ``text``."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
