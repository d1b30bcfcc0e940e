"""The pages for users of other packages: their programs run, and their tables name what exists."""

import importlib
import inspect
import re
from collections import defaultdict

import pytest

import cadenza
from cadenza.learn.settings import ELSEWHERE
from tests.integration.docs.pages import execute, text

SB3 = "how-to/coming-from-stable-baselines3.md"
CONCERTO = "how-to/coming-from-concerto.md"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below ``heading``."""
    lines = text(page).split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("|") and "---" not in line
    ]


def test_page_on_stable_baselines3_runs_both_libraries(capsys, tmp_path):
    pytest.importorskip("stable_baselines3")
    execute(SB3)
    evaluated, steps = capsys.readouterr().out.splitlines()
    assert evaluated.endswith(" over 3 episodes")
    assert steps == "1024"  # the callback ends a training of 5000
    assert (tmp_path / "runs/mine/best").is_file()
    assert list((tmp_path / "runs/mine/tensorboard").iterdir())


def test_settings_of_that_page_exist_in_both_libraries():
    theirs = pytest.importorskip("stable_baselines3")
    names = ("PPO", "SAC", "TD3", "DQN")
    ours = {field for name in names for field in getattr(cadenza, name).Config.model_fields}
    known = {key for name in names for key in inspect.signature(getattr(theirs, name)).parameters}
    table = rows(SB3, "Settings")[1:]
    table = table[: next(i for i, row in enumerate(table) if row[0] == "default")]
    before = {name for row in table for name in re.findall(r"`(\w+)[`=]", row[0])}
    after = {name for row in table for name in re.findall(r"`(\w+)[`=]", row[1])}
    assert len(after) > 15
    assert before <= known
    assert after <= ours | {"network", "seed"}


def test_errors_about_settings_say_what_that_page_says():
    told = defaultdict(set)
    for heading in ("Calls", "Settings", "Environments", "Callbacks, logs, checkpoints"):
        for row in rows(SB3, heading):
            theirs, ours = (re.findall(r"`(\w+)`", cell) for cell in row[:2])
            if len(theirs) > 1 and len(theirs) == len(ours):
                for name, here in zip(theirs, ours, strict=True):
                    told[name].add(here)
                continue
            for name in re.findall(r"\w+", row[0]):
                told[name] |= set(re.findall(r"\w+", row[1]))
    assert len(ELSEWHERE) > 15
    for name, here in ELSEWHERE.items():
        if name != "lr":
            assert set(re.findall(r"\w+", here)) <= told[name], name


def test_defaults_of_that_page_are_those_of_both_libraries():
    theirs = pytest.importorskip("stable_baselines3")
    sac, td3, dqn = (getattr(theirs, name) for name in ("SAC", "TD3", "DQN"))

    def default(algorithm, key):
        return inspect.signature(algorithm).parameters[key].default

    assert {default(a, "buffer_size") for a in (sac, td3, dqn)} == {1_000_000}
    assert {default(a, "learning_starts") for a in (sac, td3, dqn)} == {100}
    assert (default(td3, "learning_rate"), default(dqn, "learning_rate")) == (1e-3, 1e-4)
    assert (default(dqn, "batch_size"), default(dqn, "train_freq")) == (32, 4)
    assert default(dqn, "target_update_interval") == 10_000
    assert default(td3, "action_noise") is None
    configs = [getattr(cadenza, name).Config().model_dump() for name in ("SAC", "TD3", "DQN")]
    for config in configs:
        assert (config["memory_size"], config["warmup_steps"]) == (100_000, 1_000)
        assert (config["learning_rate"], config["hidden_sizes"]) == (3e-4, (256, 256))
        assert (config["batch_size"], config["train_every"], config["tau"]) == (256, 1, 0.005)
    assert (configs[0]["initial_alpha"], configs[1]["exploration_noise"]) == (0.2, 0.1)
    pairs = {
        "n_steps": "rollout_length",
        "batch_size": "batch_size",
        "n_epochs": "epochs",
        "learning_rate": "learning_rate",
        "gamma": "gamma",
        "gae_lambda": "gae_lambda",
        "clip_range": "clip_epsilon",
        "clip_range_vf": "clip_value",
        "ent_coef": "entropy_coefficient",
        "vf_coef": "value_coefficient",
        "max_grad_norm": "max_gradient_norm",
        "normalize_advantage": "normalize_advantages",
        "target_kl": "target_kl",
    }
    ppo = cadenza.PPO.Config().model_dump()
    assert {key: default(theirs.PPO, key) for key in pairs} == {
        key: ppo[name] for key, name in pairs.items()
    }


NAMES = [
    (name, cells[2].strip("`"))
    for cells in rows(CONCERTO, "Where names are")[1:]
    for name in re.findall(r"`(\w+)`", cells[1])
]


def test_table_of_concerto_and_chamber_covers_their_packages():
    old = {cells[0].strip("`").split(".")[1] for cells in rows(CONCERTO, "Where names are")[1:]}
    packages = {"safety", "training", "envs", "agents", "comm", "partners", "evaluation"}
    packages.add("contracts")  # of release 0.9
    assert packages | {"benchmarks", "utils"} == old
    assert len(NAMES) > 120


@pytest.mark.parametrize(("name", "module"), NAMES, ids=[f"{m}.{n}" for n, m in NAMES])
def test_name_of_concerto_or_chamber_is_where_the_page_says(name, module):
    assert hasattr(importlib.import_module(module), name)


def test_program_of_that_page_filters_an_action(capsys):
    execute(CONCERTO)
    drawn, action = capsys.readouterr().out.splitlines()
    assert drawn == "678920255"  # the stream's first number is CHAMBER's
    assert float(action.strip("[]").split()[0]) < 0.0  # brakes for the partner ahead
