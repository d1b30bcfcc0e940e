"""A writer killed at any moment leaves a dataset, or a folder that the next writer takes over."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cadenza.stream.bridges.lerobot_files import MARKER
from tests.integration.stream.killed_lerobot_writer import write


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_folder_of_a_killed_writer_is_taken_over_unless_it_is_a_dataset(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed_lerobot_writer.py")
    subprocess.run([sys.executable, str(program), str(tmp_path)], check=True, timeout=800)
    killed = [tmp_path / str(i) for i in range(len(list(tmp_path.iterdir())))]
    expected = files(killed.pop())
    assert MARKER not in expected
    seen = {"unfinished": 0, "temporary": 0, "part": 0, "dataset": 0}
    for root in killed:
        before = files(root)
        seen["unfinished"] += MARKER in before
        seen["temporary"] += any(name.endswith(".cadenza-tmp") for name in before)
        seen["part"] += "meta/stats.json" in before and "meta/info.json" not in before
        if "meta/info.json" in before:
            seen["dataset"] += 1
            assert {name: before[name] for name in expected} == expected
        else:
            write(root)
            assert files(root) == expected
    assert all(seen.values()), seen
    assert json.loads(expected["meta/info.json"])["total_frames"] == 3
    assert pq.read_table(killed[0] / "data").num_rows == 3
