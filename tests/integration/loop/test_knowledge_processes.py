"""Real processes write the pages: at once, and killed at random."""

import multiprocessing
import os
import re
import signal
import time

import numpy as np
import pytest

from cadenza.loop.agents.knowledge_agent import KnowledgeAgent
from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import EventBus
from cadenza.loop.knowledge.lint import findings
from cadenza.loop.knowledge.pages import read_page
from tests.campaigns import size

#: Kills, and seconds that a process gets before each of them at most.
KILLS, LONGEST_S = size(3, 20), 0.15


def ingest_all(root, run, cycles, times=1):
    agent = KnowledgeAgent(root, EventBus(root.parent / f"{run}.jsonl"), clock=lambda: 1.7e9)
    for cycle in [*range(cycles)] * times:
        report = EvalReport(
            checkpoint="c", env_type="e", task_suite="crossing", n_episodes=40,
            success_rate=(cycle % 5) / 4,
        )  # fmt: skip
        agent.ingest(run_id=run, cycle=cycle, policy="bc", report=report, decision="iterate")


@pytest.fixture
def start():
    processes = []

    def one(*arguments):
        process = multiprocessing.get_context("fork").Process(target=ingest_all, args=arguments)
        processes.append(process)
        process.start()
        return process

    yield one
    for process in processes:
        process.kill()
        process.join()


def everything(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_processes_that_ingest_at_once_lose_nothing(tmp_path, start):
    root, cycles, runs = tmp_path / "knowledge", size(4, 12), ["a", "b", "c"]
    processes = [start(root, run, cycles) for run in runs]
    for process in processes:
        process.join(timeout=800)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    wanted = {(run, cycle) for run in runs for cycle in range(cycles)}
    for path in ("tasks/crossing.md", "policies/bc.md"):
        page = read_page((root / path).read_bytes())
        found = re.findall(r"· run (\w+) · cycle (\d+) ·", page.section("Observations"))
        listed = [(run, int(cycle)) for run, cycle in found]
        assert set(listed) == wanted
        assert len(listed) == len(wanted)
        assert {(e["run"], e["cycle"]) for e in page.meta["provenance"]} == wanted
    for run in runs:
        table = (root / f"experiments/{run}.md").read_text()
        assert sum(line.startswith("| ") for line in table.split("\n")) == cycles + 1
    assert findings(root) == []


def test_killed_ingest_ends_like_an_undisturbed_one(tmp_path, start):
    rng = np.random.default_rng(6)
    undisturbed, disturbed, cycles = tmp_path / "calm", tmp_path / "killed", size(12, 30)
    ingest_all(undisturbed, "r", cycles)
    for _ in range(KILLS):
        process = start(disturbed, "r", cycles, 10_000)  # it does not end before it is killed
        time.sleep(float(rng.uniform(0.0, LONGEST_S)))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    ingest_all(disturbed, "r", cycles)
    assert everything(disturbed) == everything(undisturbed)
