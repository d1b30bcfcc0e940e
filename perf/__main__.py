"""Run every benchmark: `python -m perf [--only envs safety] [--json FILE]`.

A benchmark is a module ``bench_<name>`` with ``rows()``; the first line of its docstring is its
title. `python -m tools.records --performance FILE` writes the page from the file. Judged are ratios
to a peer that was measured in the same run: one below its aim is exit code 1.
"""

import argparse
import json
from importlib import import_module
from pathlib import Path

from perf.record import measured_with
from perf.timing import Row, print_table, rows_document

#: Modules, in the order of the printed tables.
BENCHMARKS = (
    "envs",
    "comm",
    "safety",
    "batched",
    "oscbf",
    "robots",
    "training",
    "zoo",
    "population",
    "sac",
    "memory",
    "stream",
    "statistics",
    "evaluation",
    "dash",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    tables: dict[str, list[Row]] = {}
    for name in options.only:
        module = import_module(f"perf.bench_{name}")
        title = (module.__doc__ or name).strip().splitlines()[0]
        tables[title] = module.rows()
        print_table(title, tables[title])
    if options.json:
        measured = [rows_document(title, rows) for title, rows in tables.items()]
        document = {**measured_with(), "tables": measured}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    missed = [row.name for rows in tables.values() for row in rows if row.kept is False]
    if missed:
        raise SystemExit("\n".join(["", "missed:", *(f"  {name}" for name in missed)]))


if __name__ == "__main__":
    main()
