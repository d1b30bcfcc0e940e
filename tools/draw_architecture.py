"""Draw the floors of the package and what imports what into `docs/images/architecture.svg`.

Run from the repository root:  python -m tools.draw_architecture [FILE]

Floors come from the first contract of import-linter, captions from the first line of each folder,
arrows from the import statements in its files; one that follows from others is left out.
"""

import ast
import sys
import tomllib
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

SOURCE = Path("src/cadenza")
TARGET = Path("docs/images/architecture.svg")
#: Width of the drawing, height of a box, distance of floors, gap between boxes, all in pixels.
WIDTH, BOX, STEP, GAP = 960, 62, 100, 16
#: The wing that is judged; the other one judges.
METHOD = {"core", "learn", "safety", "stream", "aht"}
#: Boxes that stand at the edge, so that arrows between other floors have a way.
ASIDE = {"benchmark", "aht", "comm"}
COLORS = {True: ("#e3edf7", "#1f4e79"), False: ("#f3ead9", "#7a5414")}


def floors() -> list[list[str]]:
    """Return the folders of every floor, the highest first; folders to come are left out."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    rows = [layer.split(" | ") for layer in contracts["contracts"][0]["layers"]]
    return [[name for name in row if (SOURCE / name).is_dir()] for row in rows]


def imports(folder: str) -> set[str]:
    """Return the other folders of the package that any file of ``folder`` imports."""
    found: set[str] = set()
    for path in (SOURCE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
    parts = [module.split(".") for module in found]
    return {part[1] for part in parts if part[0] == "cadenza" and len(part) > 1} - {folder}


def caption(folder: str) -> str:
    """Return what the folder says it is, without its name."""
    text = ast.get_docstring(ast.parse((SOURCE / folder / "__init__.py").read_text("utf-8"))) or ""
    return text.splitlines()[0].partition(": ")[2].rstrip(".")


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return ``edges`` without those that a longer way replaces."""

    def reached(name: str) -> set[str]:
        return edges[name].union(*map(reached, edges[name]))

    return {
        name: {goal for goal in goals if not any(goal in reached(other) for other in goals)}
        for name, goals in edges.items()
    }


def drawing() -> str:
    """Return the picture, SVG."""
    rows = [row for row in floors() if row]
    names = [name for row in rows for name in row]
    edges = direct({name: imports(name) & set(names) for name in names})
    place: dict[str, tuple[float, float, float]] = {}
    shapes: list[str] = []
    for number, row in enumerate(rows):
        width = min(340.0, (WIDTH - GAP) / len(row) - GAP)
        left = (WIDTH - len(row) * (width + GAP) + GAP) / 2
        if len(row) == 1 and row[0] in ASIDE:  # arrows pass beside it
            left = WIDTH - width - GAP if row[0] in METHOD else GAP
        for index, name in enumerate(sorted(row, key=METHOD.__contains__)):
            x, y = left + index * (width + GAP), GAP + number * STEP
            place[name] = (x, y, width)
            fill, ink = COLORS[name in METHOD]
            lines = wrap(caption(name), int(width / 6.2))
            shapes.append(
                f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="6" '
                f'fill="{fill}" stroke="{ink}"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 16:.0f}" class="name" fill="{ink}">'
                f"{name}</text>"
            )
            shapes += [
                f'<text x="{x + width / 2:.0f}" y="{y + 30 + 13 * line:.0f}" fill="{ink}">'
                f"{escape(text)}</text>"
                for line, text in enumerate(lines)
            ]
    arrows = [arrow(place[name], place[goal]) for name in names for goal in sorted(edges[name])]
    height = GAP + (len(rows) - 1) * STEP + BOX + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="11" text-anchor="middle">',
            "<style>.name{font-size:14px;font-weight:bold}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *arrows,
            *shapes,
            "</svg>\n",
        ]
    )


def arrow(start: tuple[float, float, float], goal: tuple[float, float, float]) -> str:
    """Return a curve from the lower edge of one box to the upper edge of another."""
    (x0, y0, w0), (x1, y1, w1) = start, goal
    lean = (x1 + w1 / 2 - x0 - w0 / 2) / WIDTH
    a, b = x0 + w0 / 2 + 0.5 * w0 * lean, x1 + w1 / 2 - 0.5 * w1 * lean
    top, end = y0 + BOX, y1 - 2
    bend = 0.5 * (end - top)
    return (
        f'<path d="M{a:.0f} {top:.0f}C{a:.0f} {top + bend:.0f} {b:.0f} {end - bend:.0f} '
        f'{b:.0f} {end:.0f}" fill="none" stroke="#888" marker-end="url(#head)"/>'
    )


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET).write_text(drawing(), encoding="utf-8")
