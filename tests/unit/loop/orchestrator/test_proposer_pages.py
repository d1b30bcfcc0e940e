"""Pages in prompts: which, how long, and that their text never gets out of its place."""

import hashlib
import json
import os
import re

import pytest

from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import EventBus
from cadenza.loop.knowledge.pages import MAX_PAGE_BYTES
from cadenza.loop.orchestrator.proposer import CuratedProposer, DeterministicProposer, LLMProposer
from tests.loop_fakes import ScriptedLLM, logged

SEED, CAP = "local/seed", 50


def write(root, name, text, age=0):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def both(llm, root, **more):
    fallback = DeterministicProposer(SEED, 10, 2.0, CAP)
    return [
        LLMProposer(llm, root, fallback, **more),
        CuratedProposer(llm, root, fallback, DataConfig(max_episodes=CAP), **more),
    ]


def pages_of(prompt):
    return re.findall(r'^<page ([0-9a-f]{32}) name="([^"\n]*)">$', prompt, re.MULTILINE)


def test_newest_pages_come_first_and_the_guide_is_left_out(tmp_path):
    for i in range(9):
        write(tmp_path, f"tasks/t{i}.md", f"text {i}", age=i)
    write(tmp_path, "KNOWLEDGE.md", "guide")
    write(tmp_path, "tasks/note.txt", "no page")
    llm = ScriptedLLM("")
    for proposer in both(llm, tmp_path):
        proposer.propose(0, None)
    assert [name for _, name in pages_of(llm.prompts[0])] == [f"tasks/t{i}.md" for i in range(6)]
    assert [name for _, name in pages_of(llm.prompts[1])] == [f"tasks/t{i}.md" for i in range(4)]
    assert "guide" not in "".join(llm.prompts)


def test_files_that_are_no_pages_are_passed_over(tmp_path):
    outside = write(tmp_path, "outside.md", "SECRET")
    root = tmp_path / "pages"
    write(root, "tasks/ok.md", b"caf\xff\r\nline")
    write(root, "tasks/.hidden.md", "HIDDEN")
    write(root, "tasks/huge.md", b"x" * (MAX_PAGE_BYTES + 1))
    (root / "tasks/folder.md").mkdir()
    (root / "tasks/link.md").symlink_to(outside)
    (root / "tasks/dangling.md").symlink_to(root / "nowhere")
    llm = ScriptedLLM("")
    for proposer in both(llm, root):
        proposer.propose(0, None)
    for prompt in llm.prompts:
        assert [name for _, name in pages_of(prompt)] == ["tasks/ok.md"]
        assert "caf\N{REPLACEMENT CHARACTER}\nline" in prompt
        assert "SECRET" not in prompt
        assert "HIDDEN" not in prompt


def test_used_pages_are_told_with_their_digests(tmp_path):
    write(tmp_path, "tasks/a.md", "alpha")
    write(tmp_path, "policies/b.md", "beta", age=5)
    reply = json.dumps({"action": "reuse_seed", "num_episodes": 3})
    for proposer_of in (0, 1):
        bus = EventBus(tmp_path / f"events{proposer_of}.jsonl")
        proposer = both(ScriptedLLM(f"[{reply}]"), tmp_path, bus=bus, run_id="r")[proposer_of]
        proposer.propose(3, None)
        event = logged(bus.log_path)[0]
        assert (event["run_id"], event["stage"], event["kind"], event["cycle"]) == (
            "r", "orchestrator", "knowledge_used", 3,
        )  # fmt: skip
        assert event["payload"] == {
            "pages": [
                {"path": "tasks/a.md", "sha256": hashlib.sha256(b"alpha").hexdigest()},
                {"path": "policies/b.md", "sha256": hashlib.sha256(b"beta").hexdigest()},
            ],
            "chars": 9,
        }


def big_report(chars):
    return EvalReport(
        checkpoint="c", env_type="e", task_suite="s", n_episodes=10, success_rate=0.5,
        per_task={"a": 0.25}, raw={"videos": "v" * chars},
    )  # fmt: skip


def test_pages_are_cut_first_then_the_raw_report(tmp_path):
    for i in range(6):
        write(tmp_path, f"tasks/t{i}.md", f"[{i}]" + "p" * 5000, age=i)
    llm = ScriptedLLM("")
    proposer = both(llm, tmp_path, max_prompt_chars=20_000)[0]
    proposer.propose(0, big_report(10))
    proposer.propose(0, big_report(9000))
    proposer.propose(0, big_report(30_000))
    few, fewer, no_raw = llm.prompts
    assert [len(pages_of(p)) for p in (few, fewer)] == [4, 3]
    assert "[cut]" in few
    assert "v" * 9000 in fewer
    assert "vvv" not in no_raw
    assert '"per_task": {"a": 0.25}' in no_raw
    assert all(len(prompt) <= 20_000 for prompt in llm.prompts)


@pytest.mark.parametrize("budget", [6000, 7500, 48_000])
def test_every_prompt_honours_the_budget(tmp_path, budget):
    for i in range(6):
        write(tmp_path, f"tasks/{'ü' * 60}{i}.md", "ü" * 9000, age=i)
    rates = {f"task {i}": 0.1 for i in range(2000)}
    last = big_report(100_000).model_copy(update={"per_task": rates})
    plan = {"action": "reuse_seed", "num_episodes": 3, "notes": "n" * 500}
    for reply in ["no", "x" * 100_000, json.dumps([plan] * 3)]:
        llm = ScriptedLLM(reply)
        for proposer in both(llm, tmp_path, max_prompt_chars=budget):
            proposer.propose(0, last)
        assert len(llm.prompts) >= 4
        assert max(len(prompt) for prompt in llm.prompts) <= budget
