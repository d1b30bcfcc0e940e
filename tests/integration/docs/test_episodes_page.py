"""The page on taking episodes out of a stream: its programs run as they stand there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import minari
import numpy as np
import pytest

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn import Callback
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.stream import OnlineDataEngine
from cadenza.stream.back_pressure import unread_episodes
from cadenza.stream.bridges.episodes import EpisodeReader
from tests.campaigns import nightly
from tests.integration.docs.pages import block
from tests.stream_engines import eventually, nothing_left, small_cfg

PAGE = "how-to/take-episodes-out-of-a-stream.md"


@nightly
def test_files_program_writes_both_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "expert.py").write_text(block("stream.md", "class Expert"), encoding="utf-8")
    (tmp_path / "episodes.py").write_text(block(PAGE, "def main"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "episodes.py"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = re.fullmatch(r"(\d+) episodes of (\d+) steps, 0 lost\n", done.stdout)
    assert printed is not None
    episodes, steps = map(int, printed.groups())
    assert episodes >= 40
    info = json.loads((tmp_path / "poles/meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"], info["fps"]) == (episodes, steps, 50)
    assert info["features"]["observation.state"]["shape"] == [4]
    dataset = minari.load_dataset("poles/expert-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (episodes, steps)


class WaitForAnEpisode(Callback):
    """Lets training be no faster than the producers, so that each look finds an episode."""

    def __init__(self, engine: OnlineDataEngine) -> None:
        super().__init__(cycle=200)
        self._engine = engine

    def end_cycle(self) -> None:
        eventually(lambda: unread_episodes(self._engine.store) > 0, "no episode")


def run_memory_program() -> tuple[int, dict[str, float]]:
    """Return the size of the memory and what was logged."""
    spaces = MDPSpace(
        rewards=None,
        actions=BoxSpace(np.float32, (1,)),
        state=DictSpace({"obs": BoxSpace(np.float32, (2,))}),
    )
    table = DictObsMemoryTable(
        spaces=spaces, use_terminal_column=True, maxlen=5_000, device="cpu", seed=0
    )
    cfg = small_cfg(worlds={"lengths": [50]}, max_episode_steps=50, mode="continuous", high_water=4)
    with OnlineDataEngine(cfg) as engine:
        names = {
            "EpisodeReader": EpisodeReader,
            "engine": engine,
            "table": table,
            "algorithm": [BackPropStepsTerminator(401), WaitForAnEpisode(engine)],
        }
        exec(block(PAGE, "feeder = StreamToMemory("), names)  # noqa: S102
        return table.size(), dict(names["feeder"].scalar_logs)


def test_memory_program_trains_beside_a_live_engine() -> None:
    with nothing_left():
        size, logged = run_memory_program()
    # Twenty episodes of 50 steps before the first update, one each after updates 200 and 400.
    assert size == 1_100
    assert (logged["stream/episodes"], logged["stream/lost_episodes"]) == (22, 0)
