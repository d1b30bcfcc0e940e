"""Tables as plain values, and as Markdown or LaTeX: text from outside cannot break either."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

_MARKDOWN_ESCAPES: Final = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\|`*_[]"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_LATEX_ESCAPES: Final = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "–": "--",
        "—": "---",
        "−": r"$-$",
        "λ": r"$\lambda$",
        "²": r"\textsuperscript{2}",
        "\u00a0": "~",
        "\u202f": r"\,",
    }
)
#: First line of a file of LaTeX tables.
LATEX_HEAD: Final = r"% needs \usepackage{booktabs} and \usepackage{graphicx}"
#: Most characters of a row that a page holds; wider tables are scaled.
_PAGE: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table as text; ``text_columns`` hold words, not numbers.

    ``caption`` is a note below it, or what stands for it if there are no rows.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    text_columns: Sequence[int] = (0,)

    def without_empty_columns(self, empty: str) -> Self:
        """Return the table without the columns in which every row says ``empty``."""
        columns = range(len(self.columns))
        kept = [i for i in columns if not self.rows or any(r[i] != empty for r in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            text_columns=tuple(k for k, i in enumerate(kept) if i in self.text_columns),
        )

    def to_markdown(self) -> str:
        """Return a heading of level two, the table and its note."""
        parts = [f"## {markdown_text(self.title)}"]
        if self.rows:
            columns = range(len(self.columns))
            rule = ["---" if i in self.text_columns else "---:" for i in columns]
            lines = [[markdown_text(cell) for cell in row] for row in (self.columns, *self.rows)]
            lines.insert(1, rule)
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        if self.caption:
            parts.append(markdown_text(self.caption))
        return "\n\n".join(parts)

    def to_latex(self) -> str:
        r"""Return a float, labelled ``tab:`` and its title; see `LATEX_HEAD`."""
        name = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(self.title)}}}"]
        lines.append(rf"\label{{tab:{name}}}")
        if self.rows:
            indices = range(len(self.columns))
            columns = "".join("l" if i in self.text_columns else "r" for i in indices)
            header, *rows = (
                " & ".join(latex_text(cell) for cell in row) + r" \\"
                for row in (self.columns, *self.rows)
            )
            widths = [
                max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)
            ]
            scaled = sum(widths) + 2 * len(widths) > _PAGE
            lines += [r"\resizebox{\linewidth}{!}{%"] * scaled
            lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule"]
            lines += [*rows, r"\bottomrule", r"\end{tabular}" + "}" * scaled]
        if self.caption:
            lines.append(rf"\par\medskip{{\footnotesize {latex_text(self.caption)}\par}}")
        return "\n".join([*lines, r"\end{table}"])


def markdown_text(text: str) -> str:
    """Return ``text`` for one line of Markdown, table cells included."""
    return "<br>".join(line.translate(_MARKDOWN_ESCAPES) for line in text.splitlines())


def latex_text(text: str) -> str:
    """Return ``text`` for one table cell of LaTeX, with the minus of numbers as such."""
    text = re.sub(r"(?<![\w-])-(?=\.?\d)", "−", " ".join(text.splitlines()))
    return text.translate(_LATEX_ESCAPES)
