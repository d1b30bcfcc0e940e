"""``learn(log=...)``: names and rhythm of figures, and logs that go on with their training."""

import json
import re
import sys
from pathlib import Path

import pytest

import cadenza
from cadenza.core.errors import ConfigurationError, InputError, MissingExtraError


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def learned(steps, agent=None, **options):
    agent = agent or cadenza.DQN("CartPole-v1", seed=0, warmup_steps=20, hidden_sizes=[8])
    return agent.learn(steps, **{"progress": False, "log": "jsonl", "log_every": 100, **options})


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]


def test_figures_stand_under_the_documented_names():
    learned(250, folder="run", evaluate_every=200, evaluation_episodes=3)
    found = lines("run")
    assert [line["step"] for line in found] == [100, 200, 200, 250, 250]
    first, evaluation = found[0], found[1]
    assert first["training/updates"] == 80
    assert first["training/steps_per_second"] > 0
    assert first["training/mean_return"] > 0
    assert first["loss/q_loss"] > 0
    names = {f"evaluation/{name}" for name in ("mean_return", "mean_length")}
    assert names <= evaluation.keys()
    assert evaluation["evaluation/mean_length"] == evaluation["evaluation/mean_return"]


def test_logging_changes_no_result():
    plain, told = learned(150, log=()), learned(150, log=["jsonl", "tensorboard"])
    expected, found = plain.learner.state_dict(), told.learner.state_dict()
    assert repr(expected) == repr(found)


def test_killed_training_goes_on_without_repeats():
    agent = learned(200, log=["jsonl", "tensorboard"])
    agent.save("half")
    learned(200, agent, log=["jsonl", "tensorboard"])  # nobody saves this
    resumed = learned(200, cadenza.DQN.load("half"), log=["jsonl", "tensorboard"])
    assert resumed.log_name == agent.log_name
    folder = Path("logs", agent.log_name)
    assert [line["step"] for line in lines(folder)] == [100, 200, 300, 400]
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [point.step for point in events.Scalars("loss/q_loss")] == [100, 200, 300, 400]


def test_new_training_moves_an_old_log_aside():
    for _ in range(2):
        learned(100, folder="run", evaluation_episodes=1)
        for file in Path("run").glob("*t*"):  # best, last and what is beside them
            file.unlink()
    assert [line["step"] for line in lines("run")] == [100, 100]
    assert Path("run/log.jsonl.1").is_file()


class FakeWandb:
    """Stands for Weights & Biases: keeps what it is given."""

    class Error(Exception):
        pass

    def __init__(self):
        self.started, self.logged, self.finished = [], [], 0

    def init(self, **options):
        self.started.append(options)
        return self

    def log(self, data, step):
        self.logged.append((step, data))

    def finish(self):
        self.finished += 1


def test_resumed_training_goes_on_in_its_run_of_wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    agent = learned(100, log="wandb")
    agent.save("half")
    learned(100, cadenza.DQN.load("half"), log="wandb")
    first, second = fake.started
    assert re.fullmatch(r"DQN-CartPole-v1-0-[0-9a-f]{8}", first["id"])
    assert (second["id"], first["resume"], second["resume"]) == (first["id"], "never", "allow")
    assert first["config"]["hidden_sizes"] == [8]
    assert [step for step, _ in fake.logged] == [100, 200]
    assert fake.finished == 2


def test_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[wandb\]'"):
        learned(100, log=["jsonl", "wandb"])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[tensorboard\]'"):
        learned(100, log="tensorboard")


def test_sink_that_fails_ends_no_training(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)

    def refuse(data, step):
        raise fake.Error("quota")

    fake.log = refuse
    with pytest.warns(UserWarning, match="goes on without its log 'wandb': wandb: quota"):
        agent = learned(200, log=["wandb", "jsonl"])
    assert [line["step"] for line in lines(f"logs/{agent.log_name}")] == [100, 200]


def test_unknown_sink_and_rhythm_are_refused():
    with pytest.raises(ConfigurationError, match=r"'tensorboard', 'wandb'.*got \['csv'\]"):
        learned(100, log="csv")
    with pytest.raises(InputError, match=r"log_every"):
        learned(100, log_every=0)


def test_progress_says_where_the_log_is(capsys):
    agent = learned(100, progress=True)
    assert f"DQN: the log is in logs/{agent.log_name}\n" in capsys.readouterr().err
