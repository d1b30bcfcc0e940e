"""Write README's and the documentation's figures from the records in `docs/records`.

    python -m tools.records                       # write pages and picture again
    python -m tools.records --quickstart FOLDER   # play the demo there first, or go on with it
    python -m tools.records --performance FILE    # first take a file of `python -m perf --json`
    python -m tools.records --usefulness FILE     # the same of `python -m perf.usefulness --json`
    python -m tools.records --suite NAME FOLDER   # first take a run of `cadenza suite run`

A page holds what is written between ``<!-- record: NAME -->`` and ``<!-- record: end -->``. A test
compares pages and picture with the records. Run from the repository root.
"""

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from cadenza.benchmark.quickstart import QuickstartResult, run_quickstart
from cadenza.core.files import atomic_write_json, atomic_write_text
from cadenza.core.progress import stage_bars
from perf.record import figure, measured_with
from perf.timing import peer_marks

RECORDS, PICTURE = Path("docs/records"), Path("docs/images/crossing.svg")
PAGES = (
    Path("README.md"),
    Path("docs/index.md"),
    Path("docs/performance.md"),
    Path("docs/how-to/run-a-suite.md"),
    Path("docs/which-robot.md"),
)
#: What the picture shows if a recorded start has it: saved by the filter, lost without.
TELLING = ("filter_on", "filter_off")
_BLOCK = re.compile(r"(<!-- record: (?!end)(\w+) -->\n).*?(<!-- record: end -->)", re.DOTALL)


def of_quickstart(result: QuickstartResult) -> dict[str, Any]:
    """Return the record of a finished quickstart: what it printed, and one start played twice."""
    columns, rows = result.table()
    report = result.report.read_text(encoding="utf-8")
    data = json.loads(report.split('id="rollouts">')[1].split("</script>")[0])
    runs = {(run["p"], run["c"]): run for run in data["runs"] if run["pick"] == "telling"}

    def interest(partner: str) -> tuple[bool, bool]:
        guarded, bare = (runs[partner, condition] for condition in TELLING)
        return bare["contact"] is not None and guarded["success"], partner.endswith("chaser")

    shown = max((partner["id"] for partner in data["partners"]), key=interest)
    return {
        **measured_with(),
        "episodes": len(result.view.episodes),
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "extent": runs[shown, TELLING[0]]["extent"],
        "contact_distance_m": data["contact"],
        "partner": shown,
        "runs": {condition: runs[shown, condition] for condition in TELLING},
    }


def source(record: Mapping[str, Any]) -> str:
    """Return version and machine of a record in one phrase."""
    return f"cadenza {record['cadenza']} (sources {record['sources']}) on {record['machine']}"


def quickstart(record: Mapping[str, Any], page: Path) -> str:
    """Return the table that the demo printed."""
    del page
    lines = [record["columns"], *record["rows"]]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    table = ["   ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(
        ["```", *(f" {line}" for line in table), "```", f"`make demo` with {source(record)}."]
    )


def picture(record: Mapping[str, Any], page: Path) -> str:
    """Return the picture with what it shows in words."""
    link = os.path.relpath(PICTURE, page.parent)
    words = [outcome(record, condition) for condition in TELLING]
    met = next(row[1] for row in record["rows"] if row[0] == record["partner"]) == "yes"
    name = record["partner"].partition("_")[2].replace("_", " ")
    return (
        "![One recorded episode of the quickstart, played twice from the same start: with the "
        f"safety filter {words[0]}, without it {words[1]}.]({link})\n\n"
        f"*The ego (E) {'knows' if met else 'never met'} the {name} (P). Left with the filter, "
        "right without; a start selected because the filter decides how it ends.*"
    )


def outcome(record: Mapping[str, Any], condition: str) -> str:
    """Return how a recorded start ended, as the end of a sentence."""
    run = record["runs"][condition]
    if run["contact"] is not None:
        return f"ego and partner touch after {run['contact'] * run['dt']:.2f} s"
    return "the ego reaches its goal" if run["success"] else "the ego runs out of time"


def performance(record: Mapping[str, Any], page: Path) -> str:
    """Return the tables of measurements."""
    del page
    return "\n\n".join(
        [f"Measured with {source(record)}.", *map(_performance_table, record["tables"])]
    )


def _performance_table(table: Mapping[str, Any]) -> str:
    marks = peer_marks([row["peer_name"] for row in table["rows"]])
    names, lines = ["measurement", "cadenza", "unit"], ["|---|---:|---|"]
    if marks:
        names += ["peer", "ratio", "aim"]
        lines = ["|---|---:|---|---:|---:|---:|"]
    for row in table["rows"]:
        cells = [row["name"], figure(row["ours"]), row["unit"]]
        if marks:
            mark = f" ({marks[row['peer_name']]})" if row["peer_name"] else ""
            cells += [figure(row["peer"]) + mark, _times(row["ratio"], ".2f")]
            cells += [_times(row["aim"], ".3g")]
        lines.append(f"| {' | '.join(cells)} |")
    if marks:
        peers = "; ".join(f"({mark}) {name}" for name, mark in marks.items())
        lines += ["", f"Peer{'s' * (len(marks) > 1)}: {peers}."]
    return "\n".join([f"### {table['title'].rstrip('.')}", "", f"| {' | '.join(names)} |", *lines])


def usefulness(record: Mapping[str, Any], page: Path) -> str:
    """Return who reached their goals, and who touched what."""
    del page
    scenes: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in record["rows"]:
        scenes.setdefault((row["robot"], row["scene"]), {})[row["filter"]] = row
    filters = {"none": "no filter", "rows": "rows only", "escape": "escape", "passive": "passive"}
    goals, contacts = list[list[str]](), list[list[str]]()
    for scene, rows in scenes.items():
        episodes = str(rows["none"]["episodes"])
        goals.append([*scene, episodes, *(_reached(rows.get(name)) for name in filters)])
        contacts.append([*scene, episodes, *(_touched(rows.get(name)) for name in filters)])
    columns = ["robot", "scene", "episodes", *filters.values()]
    return "\n\n".join(
        [
            f"Measured with {source(record)}.",
            "Goals reached, and the mean time to them:",
            _table(columns, goals),
            "Episodes that ended at a contact, and the robot's largest own speed at it:",
            _table(columns, contacts),
        ]
    )


def _reached(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    time_s = row["mean_time_s"]
    return str(row["reached"]) if time_s is None else f"{row['reached']} ({time_s:.1f} s)"


def _touched(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    parts = [
        f"{row[f'{what}_contacts']} {what}, {'at rest' if speed < 1e-9 else f'{speed:.2f} m/s'}"
        for what, speed in (("person", row["own_speed"]), ("wall", row["wall_speed"]))
        if row[f"{what}_contacts"]
    ]
    return "; ".join(parts) or "0"


def _times(ratio: float | None, form: str) -> str:
    return "" if ratio is None else f"{ratio:{form}}x"


def of_suite(folder: Path) -> dict[str, Any]:
    """Return the record of a finished suite: scores, how far they are ahead, best responses."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    tasks = {
        name: {
            "rows": task["differences"],
            "best": {
                partner: {key: best[key] for key in ("value", "low", "high")}
                for partner, best in _best_responses(folder / name).items()
            },
        }
        for name, task in result["tasks"].items()
    }
    return {**measured_with(), "title": result["title"], "tasks": tasks}


def _best_responses(folder: Path) -> dict[str, Any]:
    file = folder / "best-responses" / "best-responses.json"
    return json.loads(file.read_text(encoding="utf-8"))["partners"]


def suite(record: Mapping[str, Any], page: Path) -> str:
    """Return two tables for each task: all partners together, and each family of partners."""
    del page
    tables = [_suite_tables(name, task) for name, task in record["tasks"].items()]
    return "\n\n".join([f"Run with {source(record)}.", *tables])


def _suite_tables(name: str, task: Mapping[str, Any]) -> str:
    rows = task["rows"]
    families = list(dict.fromkeys(row["family"] for row in rows))
    whole = [row for row in rows if row["family"] == families[0]]
    ahead = [f"ahead of {reference}, points" for reference in whole[0]["ahead_of"]]
    egos = [row["ego"] for row in whole]
    scores = {(row["family"], row["ego"]): _percent(row["score"]) for row in rows}
    best = "; ".join(f"{partner} {_percent(found)}" for partner, found in task["best"].items())
    return "\n\n".join(
        [
            f"### {name}",
            _table(
                ("ego", f"{families[0]}, %", *ahead),
                [
                    (row["ego"], _percent(row["score"]), *map(_points, row["ahead_of"].values()))
                    for row in whole
                ],
            ),
            _table(
                ("family of partners, %", *egos),
                [(family, *(scores[family, ego] for ego in egos)) for family in families[1:]],
            ),
            f"Best responses, by partner: {best}.",
        ]
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(found: Mapping[str, float | None]) -> str:
    return _scaled(found, ".0f")


def _points(found: Mapping[str, float | None] | None) -> str:
    return "" if found is None else _scaled(found, "+.0f")


def _scaled(found: Mapping[str, float | None], form: str) -> str:
    value, low, high = (
        f"{100.0 * number:{form}}" if number is not None else ""
        for number in (found["value"], found["low"], found["high"])
    )
    return f"{value} [{low}, {high}]" if low else value


#: Name of a block: the record it is written from, and how.
BLOCKS = {
    "quickstart": ("quickstart", quickstart),
    "picture": ("quickstart", picture),
    "performance": ("performance", performance),
    "usefulness": ("usefulness", usefulness),
    "suite": ("aht-small", suite),
    "copies": ("aht-small-copies", suite),
}

#: Pixels of one panel of the picture, its margin, and colours of ego, partner and contact.
PANEL, GAP, TOP = 440, 20, 34
COLORS = {"ego": "#0a7a5c", "partner": "#9b5ba5"}
HIT, INK = "#b42318", "#333333"


def drawing(record: Mapping[str, Any]) -> str:
    """Return the picture, SVG: both conditions at the time of the first contact."""
    guarded, bare = (record["runs"][condition] for condition in TELLING)
    moment = (
        bare["contact"] if bare["contact"] is not None else len(bare["robots"][0]["path"]) // 2 - 1
    )
    panels = [
        _panel(record, guarded, moment, 0, "with filter"),
        _panel(record, bare, moment, PANEL + GAP, "without filter"),
    ]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="14" '
            f'viewBox="0 0 {2 * PANEL + GAP} {PANEL + TOP}">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(
    record: Mapping[str, Any], run: Mapping[str, Any], moment: int, left: float, title: str
) -> str:
    """Return one condition: ways so far and to come, robots at true size, goals."""
    x_0, y_0, x_1, y_1 = record["extent"]
    scale = PANEL / max(x_1 - x_0, y_1 - y_0)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + scale * (x - x_0), TOP + PANEL - scale * (y - y_0)

    hit = run["contact"] is not None and run["contact"] <= moment
    note = f"contact at {run['contact'] * run['dt']:.2f} s" if hit else ""
    parts = [
        f'<rect x="{left}" y="{TOP}" width="{PANEL}" height="{PANEL}" rx="8" fill="#fbfbf9" '
        'stroke="#ddd"/>',
        f'<text x="{left + 4}" y="22" font-weight="bold" fill="{INK}">{title} '
        f'<tspan fill="{HIT}">{note}</tspan></text>',
    ]
    for robot in run["robots"]:
        color = COLORS[robot["role"]]
        millimetres = robot["path"]
        points = [
            at(x / 1e3, y / 1e3) for x, y in zip(millimetres[::2], millimetres[1::2], strict=True)
        ]
        now = min(moment, len(points) - 1)
        if robot["goal"]:
            x, y = at(*robot["goal"])
            parts.append(
                f'<path d="M{x - 7:.1f} {y - 7:.1f}l14 14m0 -14l-14 14" stroke="{color}" '
                'stroke-width="3"/>'
            )
        for way, opacity in ((points[: now + 1], 0.8), (points[now:], 0.2)):
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in way)
            parts.append(
                f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="2.5" '
                f'opacity="{opacity}"/>'
            )
        x, y = points[now]
        ring = f' stroke="{HIT}" stroke-width="4"' if hit else ""
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{scale * robot["r"]:.1f}" fill="{color}"{ring}/>'
            f'<text x="{x:.1f}" y="{y + 5:.1f}" fill="#fff" text-anchor="middle">'
            f"{escape(robot['role'][0].upper())}</text>"
        )
    return "\n".join(parts)


def load(name: str) -> dict[str, Any]:
    """Return a committed record."""
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def written(page: Path, text: str) -> str:
    """Return a page's text with every block written anew."""

    def block(found: re.Match[str]) -> str:
        record, write = BLOCKS[found[2]]
        return f"{found[1]}{write(load(record), page)}\n{found[3]}"

    return _BLOCK.sub(block, text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Take new results where asked to, and write pages and picture."""
    parser = argparse.ArgumentParser(prog="python -m tools.records", description=__doc__)
    parser.add_argument("--quickstart", type=Path, metavar="FOLDER")
    parser.add_argument("--performance", type=Path, metavar="FILE")
    parser.add_argument("--usefulness", type=Path, metavar="FILE")
    parser.add_argument("--suite", nargs=2, metavar=("NAME", "FOLDER"))
    options = parser.parse_args(arguments)
    if options.quickstart:
        with stage_bars() as progress:
            result = run_quickstart(out=options.quickstart, progress=progress)
        atomic_write_json(RECORDS / "quickstart.json", of_quickstart(result))
    for name in ("performance", "usefulness"):
        if file := getattr(options, name):
            atomic_write_json(RECORDS / f"{name}.json", json.loads(file.read_text("utf-8")))
    if options.suite:
        name, folder = options.suite
        atomic_write_json(RECORDS / f"{name}.json", of_suite(Path(folder)))
    for page in PAGES:
        atomic_write_text(page, written(page, page.read_text(encoding="utf-8")))
    atomic_write_text(PICTURE, drawing(load("quickstart")))


if __name__ == "__main__":
    main()
