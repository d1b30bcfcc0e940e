from pathlib import Path

import pytest

from cadenza.loop.backends.native import NativeBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.dry_run import DryBackend, commands_of, dry_jobs, throw_away
from cadenza.loop.orchestrator import build_loop


def config(**changes):
    fixed = {"run_name": "r", "seed_dataset": "local/d", "data": {"initial_episodes": 4}}
    return LoopConfig(**(fixed | changes))


def test_nothing_outside_a_folder_that_goes_is_written_asked_or_waited_for(tmp_path):
    settings = config(
        workdir=tmp_path,
        store="postgresql://host/db",
        llm="openai:m",
        knowledge={"root": tmp_path},
        curation={"enabled": True},
        approval={"gates": ["promote"]},
    )
    with throw_away(settings) as dry:
        folder = dry.workdir.parent
        assert folder.is_dir()
        assert not folder.is_relative_to(tmp_path)
        assert dry.knowledge.root.parent == folder
        assert (dry.store, dry.llm, dry.approval.gates) == (None, None, ())
        assert not dry.curation.enabled
        assert dry.budgets == settings.budgets
    assert not folder.exists()


RETURNS = {"metric": "score", "score_range": [-60.0, 0.0]}
SCORES = {
    "promote_delta": 8.0, "regression_delta": 8.0, "plateau_epsilon": 0.5, "min_promote": -25.0,
    "escalate_floor": -40.0, "plateau_cycles": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"thresholds": {"plateau_cycles": 1}}, {"thresholds": SCORES, "eval": RETURNS}],
)
def test_every_kind_of_command_is_shown_where_there_is_room(changes, tmp_path):
    improve = {"enabled": True, "adapt_steps": 10}
    settings = config(workdir=tmp_path, improve=improve, budgets={"max_cycles": 4}, **changes)
    with throw_away(settings) as dry:
        stack = DryBackend(NativeBackend(settings), settings)
        with build_loop(dry, "dry", backend=stack, open_jobs=dry_jobs) as loop:
            summary = loop.run()
            stages = [(row.key.cycle, row.key.stage) for row in loop.store.jobs.of_run("dry")]
            commands = commands_of(loop.store, "dry", below=dry.workdir, shown_as=Path("runs"))
    assert summary.decisions == ["promote", "promote", "escalate", "escalate"]
    assert {(1, "adapt"), (1, "select_adapted"), (1, "merge"), (2, "eval_baseline_0")} <= {*stages}
    kinds = {" ".join(command.split()[1:3]) for command in commands}
    assert kinds == {f"job {kind}" for kind in ("collect", "train", "evaluate", "harvest", "merge")}
    assert any("--rung=bc_large" in command for command in commands)
