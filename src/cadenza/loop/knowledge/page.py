"""A knowledge page: YAML front matter between ``---`` lines, then Markdown in sections.

Reading never fails: what is no front matter stays in the text, what is no UTF-8 is replaced, and
`Page.problem` says so. Writing and reading again gives the same page.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import yaml

#: Longest front matter that is parsed, characters, and its deepest nesting: the parser is slow, and
#: its time grows with the square of the depth.
_MAX_FRONT_CHARS: Final = 1 << 16
_MAX_DEPTH: Final = 20
#: What the parser of YAML raises on text that people and models wrote, beside its own errors:
#: its constructors trust the tags ``!!int``, ``!!bool`` and ``!!timestamp``.
_YAML_ERRORS: Final = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
)
#: Line ends of Unicode, and the byte order mark, which come back from YAML as something else.
_FOLDED: Final = re.compile("[\x85\u2028\u2029\ufeff]")
#: Lines of front matter are not broken.
_ANY_WIDTH: Final = 1_000_000
_HEADING: Final = re.compile(r"^## (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A second-level heading and the text below it, up to the next one."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page.

    Attributes:
        meta: The front matter; empty if there is none that can be read.
        preamble: Text before the first section.
        sections: Sections in order.
        problem: Why the bytes are no proper page; None if they are.
    """

    meta: Mapping[str, Any]
    preamble: str = ""
    sections: tuple[Section, ...] = ()
    problem: str | None = field(default=None, compare=False)

    def section(self, heading: str) -> str:
        """Return the text of the first section with this heading; empty without one."""
        return next((s.text for s in self.sections if s.heading == heading), "")

    def with_section(self, heading: str, text: str) -> "Page":
        """Return the page with this section's text replaced, or the section added at the end."""
        sections = list(self.sections)
        place = next((i for i, s in enumerate(sections) if s.heading == heading), len(sections))
        sections[place : place + 1] = [Section(heading, text.strip("\n"))]
        return replace(self, sections=tuple(sections))


def read_page(data: bytes) -> Page:
    """Return the page that ``data`` holds, whatever it holds."""
    problem: str | None = None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        problem = f"no UTF-8 at byte {error.start}"
    text = text.removeprefix("\N{BYTE ORDER MARK}")
    text = re.sub("\r\n?", "\n", text)
    meta, body, front_problem = _split(text)
    parts = _HEADING.split(body)
    sections = tuple(
        Section(heading.rstrip(), content.strip("\n"))
        for heading, content in zip(parts[1::2], parts[2::2], strict=True)
    )
    return Page(
        meta=meta,
        preamble=parts[0].strip("\n"),
        sections=sections,
        problem=problem or front_problem,
    )


def write_page(page: Page) -> bytes:
    """Return the bytes of a page; equal pages give equal bytes."""
    front = _dumped(dict(page.meta)).strip()
    blocks = [f"---\n{front}\n---", page.preamble.strip("\n")]
    for section in page.sections:
        blocks += [f"## {section.heading}", section.text.strip("\n")]
    text = "\n\n".join(block for block in blocks if block)
    return f"{text}\n".encode("utf-8", "replace")


def _split(text: str) -> tuple[dict[str, Any], str, str | None]:
    """Return front matter, body, and what is wrong with the front matter."""
    if not text.startswith("---\n"):
        return {}, text, None
    end = text.find("\n---\n", len("---"))
    if end < 0:
        end = len(text) - len("\n---") if text.endswith("\n---") else -1
    if end < 0:
        return {}, text, "front matter without an end"
    front, body = text[len("---\n") : end + 1], text[end + len("\n---\n") :]
    if len(front) > _MAX_FRONT_CHARS:
        return {}, text, f"front matter longer than {_MAX_FRONT_CHARS} characters"
    try:
        meta = _loaded(front)
    except _YAML_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        return {}, text, f"front matter is no YAML: {type(error).__name__}: {reason}"
    if meta is None:
        return {}, body, None
    if not isinstance(meta, dict):
        return {}, text, f"front matter is no mapping but {type(meta).__name__}"
    return cast("dict[str, Any]", meta), body, None


def _loaded(front: str) -> Any:
    """Return plain values that can be written again.

    Raises:
        yaml.YAMLError: ``front`` is no YAML, nests too deep, or has aliases, which would multiply
            what it holds.
    """
    if _bracket_depth(front) > _MAX_DEPTH:
        raise yaml.YAMLError(f"expected at most {_MAX_DEPTH} brackets within one another")
    loaded = yaml.load(front, _Loader)  # noqa: S506  # a SafeLoader
    _require_shallow(loaded, 0)
    return loaded


def _require_shallow(value: object, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise yaml.YAMLError(f"expected at most {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        value = list(cast("dict[object, object]", value).values())
    if isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            _require_shallow(item, depth + 1)


def _bracket_depth(text: str) -> int:
    """Return how deep brackets nest, those in quotes included."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _dumped(value: Any) -> str:
    """Return ``value`` as YAML: readable, or escaped where it has line ends that YAML folds."""
    for allow_unicode in (True, False):
        text = yaml.dump(
            value,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=allow_unicode,
            width=_ANY_WIDTH,
        )
        if not _FOLDED.search(text):
            break
    return text


class _Loader(yaml.SafeLoader):
    """Plain values, each written out where it stands."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        if cast("Any", self).check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Plain values, each written out where it stands."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # every value
        """Return that no alias is written."""
        return True
