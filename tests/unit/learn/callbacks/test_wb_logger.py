import builtins
import importlib
import sys

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationKeyError
from cadenza.learn import Trainer
from tests.unit.learn.callbacks.test_jsonl_logger import Logs

MODULE = "cadenza.learn.callbacks.wb_logger"
CONFIG = {"wandb_project": "cadenza-test", "wandb_run": "one", "depth": 3}


class Run:
    """Stands for a run of Weights & Biases."""

    def __init__(self, **options):
        self.options, self.records, self.finished, self.name = options, [], 0, options["name"]

    def log(self, record):
        self.records.append(record)

    def finish(self):
        self.finished += 1


@pytest.fixture
def wb(monkeypatch):
    """The module with a fake client."""
    module = importlib.import_module(MODULE)

    class Client:
        run = None
        Image, Histogram = staticmethod(lambda x: ("image", x.shape)), staticmethod(list)
        Video = staticmethod(lambda x, fps: ("video", x.shape, fps))

        @classmethod
        def init(cls, **options):
            cls.run = Run(**options)
            return cls.run

    monkeypatch.setattr(module, "wandb", Client)
    return module


def test_module_without_wandb_raises_one_exact_message(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "wandb":
            raise ImportError("no wandb here")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(MODULE)
    assert str(caught.value) == "enable the optional `wandb` feature to use the WBLogger"
    assert str(caught.value.__cause__) == "no wandb here"
    assert caught.value.__notes__ == ["Install it with: pip install 'cadenza[wandb]'"]


@pytest.mark.parametrize("key", ["wandb_project", "wandb_run"])
def test_configuration_without_a_name_is_refused(wb, key):
    config = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(ConfigurationKeyError, match=rf"add \['{key}'\]"):
        wb.WBLogger([], config, 5)
    with pytest.raises(KeyError):
        wb.WBLogger([], config, 5)


def test_run_of_a_known_id_goes_on(wb):
    wb.WBLogger([], CONFIG, 2)
    assert (wb.wandb.run.options["id"], wb.wandb.run.options["resume"]) == (None, None)
    wb.wandb.run = None
    wb.WBLogger([], {**CONFIG, "wandb_id": "abc123"}, 2)
    options = wb.wandb.run.options
    assert (options["id"], options["resume"]) == ("abc123", "allow")
    assert options["config"] == {"depth": 3}


def test_everything_goes_into_one_record_per_interval(wb):
    logs = Logs()
    logs.log_histogram("weights/q", [1.0, 2.0])
    logs.log_image("view/front", torch.zeros(4, 3, 1))
    logs.log_video("view/run", (np.zeros((5, 3, 2, 2)), 30))
    logger = wb.WBLogger([logs], CONFIG, 2)
    Trainer([logs, logger], [{"batch_size": 3}] * 4).train()
    run = wb.wandb.run
    first, last = run.records
    assert first["log/bp_step"] == 2
    rates = [last.pop(f"performance/bp_{what}_per_sec") for what in ("steps", "samples")]
    assert min(rates) > 0
    assert last == {
        "training_bp_step/step": 4.0,
        "episode_bp_step/reward": 3.5,
        "episode_bp_step/reward/cumulative": 10.0,
        "weights_bp_step/q": [1.0, 2.0],
        "view_bp_step/front": ("image", (4, 3, 1)),
        "view_bp_step/run": ("video", (5, 3, 2, 2), 30),
        "log/bp_step": 4,
    }
    assert run.finished == 1
