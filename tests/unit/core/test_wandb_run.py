import json
import sys
import warnings
from dataclasses import dataclass

import pytest

from cadenza.core.log_sinks import make_wandb_run_sink
from cadenza.core.runlog import bind_run_logger
from tests.unit.core.test_runlog import CONTEXT


@dataclass
class Settings:
    enabled: bool = True
    project: str = "tests"


class FakeError(Exception):
    pass


class FakeRun:
    def __init__(self):
        self.tags = ("a",)
        self.logged = []
        self.updates = []
        self.config = self
        self.finish_error = None
        self.finished = 0

    def log(self, data, step=None):
        self.logged.append((data, step))

    def update(self, values, allow_val_change=False):
        self.updates.append((values, allow_val_change))

    def finish(self):
        self.finished += 1
        if self.finish_error is not None:
            raise self.finish_error


class FakeWandb:
    Error = FakeError

    def __init__(self):
        self.run = FakeRun()
        self.calls = []
        self.init_error = None

    def init(self, **arguments):
        self.calls.append(arguments)
        if self.init_error is not None:
            raise self.init_error
        return self.run


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_sink_switched_off_is_none_without_a_warning(wandb, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    with warnings.catch_warnings(action="error"):
        assert make_wandb_run_sink(Settings(enabled=False), CONTEXT) is None
    assert wandb.calls == []


@pytest.mark.parametrize("mode", [None, "online"])
def test_sink_without_a_key_is_none_with_a_warning(wandb, monkeypatch, mode):
    monkeypatch.delenv("WANDB_API_KEY")
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    with pytest.warns(UserWarning, match="WANDB_API_KEY missing") as caught:
        assert make_wandb_run_sink(Settings(), CONTEXT) is None
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_sink_without_the_package_is_none_with_a_warning(wandb, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(UserWarning, match=r"import failed .*pip install 'cadenza\[wandb\]'"):
        assert make_wandb_run_sink(Settings(), CONTEXT) is None


@pytest.mark.parametrize("error", [FakeError("quota"), OSError("no route"), ValueError("name")])
def test_sink_that_cannot_start_is_none_with_a_warning(wandb, error):
    wandb.init_error = error
    with pytest.warns(UserWarning, match=r"wandb\.init failed"):
        assert make_wandb_run_sink(Settings(), CONTEXT) is None


def test_sink_starts_a_run_with_the_identity(wandb):
    sink = make_wandb_run_sink(Settings(), CONTEXT, tags=["x"], config_extras={"lr": 0.1})
    assert sink is not None
    assert wandb.calls == [
        {
            "id": "r" * 16,
            "name": "r" * 16,
            "project": "tests",
            "tags": ("x",),
            "config": {
                "run_id": "r" * 16,
                "seed": 3,
                "git_sha": "g",
                "pyproject_hash": "p",
                "run_kind": "k",
                "task": "crossing",
                "lr": 0.1,
            },
            "resume": "never",
            "reinit": "finish_previous",
        }
    ]
    make_wandb_run_sink(Settings(), CONTEXT, resume=True)
    assert wandb.calls[1]["resume"] == "allow"


def test_sink_passes_events_config_and_tags_to_the_run(wandb, caplog):
    sink = make_wandb_run_sink(Settings(), CONTEXT)
    sink.log({"loss": 1.0}, step=4)
    sink.set_config({"seed": 3})
    sink.add_tags(["b", "a", "c", "b"])
    sink.add_tags(["c"])
    wandb.run.finish_error = OSError("lost")
    sink.close()
    assert "could not finish the run: lost" in caplog.text
    assert wandb.run.logged == [({"loss": 1.0}, 4)]
    assert wandb.run.updates == [({"seed": 3}, True)]
    assert wandb.run.tags == ("a", "b", "c")
    assert wandb.run.finished == 1


def test_real_wandb_offline_takes_the_events_of_a_run(tmp_path, monkeypatch):
    client = pytest.importorskip("wandb")
    client.teardown()  # it keeps the folder and the variables it was first used with
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "200")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    sink = make_wandb_run_sink(Settings(), CONTEXT, tags=["x"])
    assert sink is not None
    with bind_run_logger(CONTEXT, jsonl_path=tmp_path / "log", wandb_sink=sink) as logger:
        logger.info("scalar", step=1, loss=0.5)
        sink.add_tags(["y"])
        assert logger.sink_failures == {}
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events == ["scalar"]
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
