"""Run every benchmark: `python -m perf [--only envs safety] [--json FILE] [--markdown FILE]`.

A benchmark is a module ``bench_<name>`` with ``rows()``; the first line of its docstring is its
title. The Markdown file keeps its text and gets new tables between its two markers. A missed target
is exit code 1.
"""

import argparse
import json
import os
import platform
from importlib import import_module, metadata
from pathlib import Path

from perf.timing import Row, print_table, rows_document

#: Modules, in the order of the printed tables.
BENCHMARKS = ("envs", "comm", "safety", "batched", "oscbf", "training", "sac", "memory", "stream")
#: What the measured tables stand between in a Markdown file.
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--markdown", type=Path, help="renew the tables in this file")
    options = parser.parse_args()
    if options.markdown and not options.markdown.is_file():
        parser.error(f"--markdown: expected a file with tables to renew, got {options.markdown}")
    tables: dict[str, list[Row]] = {}
    for name in options.only:
        module = import_module(f"perf.bench_{name}")
        title = (module.__doc__ or name).strip().splitlines()[0]
        tables[title] = module.rows()
        print_table(title, tables[title])
    if options.json:
        document = [rows_document(title, rows) for title, rows in tables.items()]
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.markdown:
        renew_tables(options.markdown, tables)
    missed = [row.name for rows in tables.values() for row in rows if row.within_budget is False]
    if missed:
        raise SystemExit("\n".join(["", "missed:", *(f"  {name}" for name in missed)]))


def renew_tables(path: Path, tables: dict[str, list[Row]]) -> None:
    """Replace what stands between the markers of ``path`` by ``tables``."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{path}: expected the markers {BEGIN} and {END}.")
    parts = [f"Measured on {machine()}.", *(markdown_table(t, r) for t, r in tables.items())]
    measured = "\n\n".join(parts)
    path.write_text(f"{before}{BEGIN}\n{measured}\n{END}{after}", encoding="utf-8")


def machine() -> str:
    """Return processor, cores and versions in one phrase."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "torch"))
    processor = names[0] if names else platform.machine()
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def markdown_table(title: str, rows: list[Row]) -> str:
    """Return ``rows`` as a Markdown table under a heading."""
    lines = [
        f"### {title.rstrip('.')}",
        "",
        "| measurement | cadenza | peer | target | unit | ratio to peer | peer is |",
        "|---|---:|---:|---:|---|---:|---|",
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        cells = (figure(row.ours), figure(row.peer), figure(row.budget), row.unit, ratio)
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.peer_name} |")
    return "\n".join(lines)


def figure(value: float | None) -> str:
    """Return a figure with three significant digits, or nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
