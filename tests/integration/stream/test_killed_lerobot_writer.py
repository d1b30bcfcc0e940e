"""A writer killed at any moment leaves a whole dataset, or no folder."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.stream.killed_lerobot_writer import write


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_folder_of_a_killed_writer_is_a_dataset_or_not_there(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed_lerobot_writer.py")
    subprocess.run([sys.executable, str(program), str(tmp_path)], check=True, timeout=800)
    made = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal())
    expected = files(tmp_path / str(made[-1]))
    for number in range(made[-1]):
        root = tmp_path / str(number)
        if not root.exists():
            write(root)
        assert files(root) == expected
    assert not list(tmp_path.glob(".*"))
    assert made[0] > 0  # some were killed before there was a folder
    assert json.loads(expected["meta/info.json"])["total_frames"] == 3
    assert pq.read_table(tmp_path / "0" / "data").num_rows == 3
