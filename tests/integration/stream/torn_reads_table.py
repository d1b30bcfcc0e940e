"""Looks for torn chunks beside one writer, then beside two, and prints a table of what it saw.

Progress goes to standard error. The exit status is 1 if anything was wrong with a chunk or a draw,
and where nothing was drawn anew: then no slot changed under the reader, which proves nothing.

Usage:  python -m tests.integration.stream.torn_reads_table --chunks 10000000
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from tests.integration.stream.torn_reads import Found, search

#: Writers of each search.
WRITERS = (1, 2)
#: Chunks between two lines of progress.
PIECE = 250_000
HEAD = (
    "| writers | chunks | torn | of another episode | drawn anew | episodes written | chunks/s |\n"
    "|---:|---:|---:|---:|---:|---:|---:|\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000_000, help="in each search")
    chunks = parser.parse_args(arguments).chunks
    torch.set_num_threads(1)
    found = {writers: searched(chunks, writers) for writers in WRITERS}
    sys.stdout.write(f"{os.cpu_count()} cores, torch {torch.__version__}\n\n{HEAD}")
    sys.stdout.writelines(row(writers, one) for writers, one in found.items())
    return int(any(one.faults or not one.redraws for one in found.values()))


def searched(chunks: int, writers: int) -> Found:
    """Return the sum of searches of ``PIECE`` chunks, and tell after each how far it is."""
    total = search(min(PIECE, chunks), writers)
    while True:
        told = f"writers: {writers}; {total.chunks:,} of {chunks:,} chunks, {total.torn} torn, "
        sys.stderr.write(f"{told}{total.foreign} of another episode, {total.seconds:.0f} s\n")
        if total.chunks >= chunks:
            return total
        piece = search(min(PIECE, chunks - total.chunks), writers)
        sums = {f.name: getattr(total, f.name) + getattr(piece, f.name) for f in fields(Found)}
        total = replace(total, **sums)


def row(writers: int, found: Found) -> str:
    """Return one line of the table."""
    cells = [writers, found.chunks, found.torn, found.foreign, found.redraws, found.episodes]
    rate = found.chunks / found.seconds
    return f"| {' | '.join(f'{cell:,}' for cell in cells)} | {rate:,.0f} |\n"


if __name__ == "__main__":
    sys.exit(main())
