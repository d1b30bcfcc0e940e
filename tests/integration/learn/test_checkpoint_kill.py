"""A training that is killed at any moment leaves a checkpoint that loads; no saved step is lost."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from cadenza.learn.callbacks.checkpoint_files import existing_indices, read_checkpoint

PROGRAM = textwrap.dedent(
    """
    import sys
    import torch
    from cadenza.learn import Callback, Trainer
    from cadenza.learn.callbacks import Checkpointer, CheckpointLoader

    class Weights(Callback):
        def __init__(self):
            super().__init__()
            self.weights = torch.zeros(1000)
        def begin_training(self, bp_step):
            assert bool((self.weights == bp_step - 1).all()), "torn state"
        def backward(self, bp_step):
            self.weights += 1
        def state_dict(self):
            return {"weights": self.weights}
        def load_state_dict(self, state_dict, *switches):
            self.weights.copy_(state_dict["weights"])

    class Say(Callback):
        def __init__(self):
            super().__init__(cycle=1)
            self._order = 1500  # behind the checkpointer
        def end_cycle(self, bp_step):
            print(bp_step, flush=True)

    def batches():
        while True:
            yield {"batch_size": 1}

    root, weights = sys.argv[1], Weights()
    parts = {"restorees": [weights], "run_root": root}
    save = Checkpointer(**parts, checkpoint_interval=1, keep_last=2)
    load = CheckpointLoader(**parts, checkpoint_index="latest", missing_ok=True)
    Trainer([weights, save, load, Say()], batches()).train()
    """
)


@pytest.mark.slow
def test_killed_training_loses_no_saved_step(tmp_path):
    folder = tmp_path / "checkpoints"
    last = 0
    for pause_s in (0.0, 0.013, 0.031):
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        first = int(child.stdout.readline())
        assert first == last + 1
        time.sleep(pause_s)
        child.send_signal(signal.SIGKILL)
        said = [first, *(int(line) for line in child.stdout.read().split("\n")[:-1] if line)]
        child.wait()
        newest = existing_indices(folder)[-1]
        content = read_checkpoint(folder, newest, max_bytes=None, require_manifest=True)
        last = content["training_state"]["bp_step"]
        assert last in (said[-1], said[-1] + 1)  # killed between writing and saying
        weights = content["callback_state_dicts"]["Weights"]["weights"]
        assert bool((weights == last).all())
