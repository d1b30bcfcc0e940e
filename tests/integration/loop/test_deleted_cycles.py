"""What the guide allows to delete of ended cycles is not missed by the run."""

import shutil
from pathlib import Path

from cadenza.loop.store import JobStore
from tests.integration.loop.loop_harness import Loop, outcome_of
from tests.loop_fakes import FakeStack

IMPROVE = {"enabled": True, "episodes": 4, "adapt_steps": 3}
RATES = (0.3, 0.6, 0.9, 0.1, 0.9)


class TidyStack(FakeStack):
    """Deletes before each training whatever may be deleted."""

    store = None

    def __init__(self):
        super().__init__(RATES)
        self.gone = []

    def __call__(self, cmd, log_path):
        if log_path.stem == "train":
            cycle = int(log_path.parent.name.removeprefix("cycle_"))
            self.tidy(log_path.parent.parent, cycle)
        return super().__call__(cmd, log_path)

    def tidy(self, run, cycle):
        best = self.store.blessed_checkpoint("run")
        merges = [number for number in range(cycle) if (run / f"cycle_{number}/merge").is_dir()]
        for number in range(cycle):
            folder = run / f"cycle_{number}"
            allowed = [*folder.glob("eval_*"), *folder.glob("*.log")]
            allowed += [folder / name for name in ("data", "jobs")]
            for name in ("train", "adapt"):
                if best is not None and folder / name not in Path(best["path"]).parents:
                    allowed.append(folder / name)
            if any(number <= merge for merge in merges):
                allowed.append(folder / "harvest")
            if merges and number < merges[-1]:
                allowed.append(folder / "merge")
            for path in allowed:
                if path.is_dir():
                    shutil.rmtree(path)
                    self.gone.append(f"{number}/{path.name}")
                path.unlink(missing_ok=True)


def run_in(folder, stack):
    with JobStore(folder / "cadenza.db") as store:
        stack.store = store
        loop = Loop(store, folder, stack, improve=IMPROVE, budgets={"max_cycles": len(RATES)})
        loop.run()
        left = outcome_of(loop, folder)
    del left["files"]
    return left


def test_a_run_does_not_miss_what_may_be_deleted(tmp_path):
    stack = TidyStack()
    tidied = run_in(tmp_path / "tidied", stack)
    assert tidied == run_in(tmp_path / "kept", FakeStack(RATES))
    assert {"0/data", "0/train", "0/harvest", "1/merge", "3/train"} <= set(stack.gone)
    assert tidied["table runs"][0]["stop_reason"] == "budget: max_cycles"
