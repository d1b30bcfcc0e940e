"""The pages on the stream: their programs run as they stand there, their names exist."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from torch.utils.data import DataLoader

from cadenza.stream import OnlineDataEngine, OnlineDataEngineCfg, OnlineDataset
from cadenza.stream.environment import space_fields
from cadenza.stream.recorded_draws import RecordedStream
from tests.campaigns import size
from tests.integration.docs.pages import block, text
from tests.stream_engines import nothing_left, small_cfg

PAGE, MOVING = "stream.md", "how-to/coming-from-embodichain.md"


@pytest.mark.slow
def test_quick_start_clones_the_expert(tmp_path: Path) -> None:
    program = block(PAGE, "def main").replace("range(500)", size("range(100)", "range(500)"))
    (tmp_path / "expert.py").write_text(block(PAGE, "class Expert"), encoding="utf-8")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    agreement = re.fullmatch(r"agrees with the expert in (\d+)% of the steps\n", done.stdout)
    assert agreement is not None
    assert int(agreement[1]) >= size(70, 80)  # always the same action: about 50


def run_other_programs() -> None:
    seen = []

    def train(batch) -> None:
        seen.append(batch["obs"].data_ptr())
        if len(seen) == 7:
            raise StopIteration

    with OnlineDataEngine(small_cfg(2, {"lengths": [65, 70]}, max_episode_steps=70)) as engine:
        names = {"engine": engine, "train": train}
        exec(block(PAGE, "out=batch)"), names)  # noqa: S102
        assert names["batch"].batch_size == torch.Size([32, 64])
        assert set(names["batch"].keys()) == {"obs", "actions"}
        exec(block(PAGE, "GMMChunkSampler([16.0"), names)  # noqa: S102
        with pytest.raises(StopIteration):
            exec(block(PAGE, "BatchRing(").replace('"cuda"', '"cpu"'), names)  # noqa: S102
        assert len(set(seen)) == 3
        exec(block(PAGE, "RecordedStream(Path"), names)  # noqa: S102
        assert isinstance(names["stream"], RecordedStream)
        assert all((a == b).all() for a, b in zip(names["batches"], names["again"], strict=True))
        loaders = {"DataLoader": DataLoader, "OnlineDataset": OnlineDataset}
        exec(block(PAGE, "def train(source)"), names | loaders, names)  # noqa: S102
        assert len(names["first"]) == 100
        assert all((a == b).all() for a, b in zip(names["first"], names["second"], strict=True))


def test_other_programs_run_beside_a_live_engine(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with nothing_left():
        run_other_programs()


class Mixed(gymnasium.Env):
    """Observes a tuple and takes a dictionary."""

    observation_space = spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)))
    action_space = spaces.Dict(push=spaces.Box(-1.0, 1.0, (1,)), turn=spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (np.array([0.5, -0.5], np.float32), 2), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return (
            (np.array([0.0, action["push"][0]], np.float32), action["turn"]),
            0.0,
            True,
            False,
            {},
        )


def test_spaces_of_several_arrays_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Mixed-v0", EnvSpec("Mixed-v0", Mixed))
    names: dict[str, Any] = {}
    exec(block(PAGE, "def make(num_envs, name)"), names)  # noqa: S102
    worlds = names["make"](1, "Mixed-v0")
    shapes = {field.name: (field.shape, field.kind) for field in space_fields(worlds)}
    assert shapes == {"obs": ((5,), "state"), "actions": ((3,), "step")}
    assert worlds.reset()[0].tolist() == [[0.5, -0.5, 0.0, 0.0, 1.0]]
    # Keys are in the order of the alphabet: push, turn.
    assert worlds.step(np.array([[0.25, 0.0, 1.0]], np.float32))[0].tolist() == [
        [0.0, 0.25, 0.0, 1.0, 0.0]
    ]


def test_names_of_the_table_are_where_it_says() -> None:
    rows = re.findall(
        r"^\| `embodichain[^|]*\| ([^|]*) \| `(cadenza[\w.]*)` \|", text(MOVING), re.MULTILINE
    )
    assert len(rows) == 3
    for names, module in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(importlib.import_module(module), name)
    for name in ("PPO", "GRPO"):
        for kind, module in ((name, "cadenza"), (f"{name}Config", "cadenza.learn.configs")):
            assert hasattr(importlib.import_module(module), kind)
            assert f"{kind}`" in text(MOVING)


def test_defaults_of_the_table_are_those_of_the_configuration() -> None:
    section = text(MOVING).split("## Configuration")[1].split("All further")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]*)`? \|", section, re.MULTILINE))
    cfg = OnlineDataEngineCfg()
    positional = [
        name
        for name, parameter in inspect.signature(OnlineDataEngineCfg).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert list(rows) == positional
    values = {name: '"cpu"' if value == "cpu" else str(value) for name, value in vars(cfg).items()}
    assert rows == {name: values[name] for name in positional}


def test_signatures_are_those_of_embodichain() -> None:
    parameters = inspect.signature(OnlineDataset).parameters
    assert list(parameters)[:4] == ["engine", "chunk_size", "batch_size", "transform"]
    assert list(inspect.signature(OnlineDataEngine.sample_batch).parameters)[1:3] == [
        "batch_size",
        "chunk_size",
    ]
    exec(block(MOVING, "# after").split("# after")[1], {})  # noqa: S102
