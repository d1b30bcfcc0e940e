"""Flags and releases of LeRobot, from help texts recorded from 0.4.4."""

import os
import sys
from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.loop.backends.lerobot_probe import (
    TOOLS,
    LeRobotEnvironment,
    LeRobotTools,
    lerobot_programs,
    lerobot_python,
    output_of,
)

RECORDED = Path(__file__).with_name("recorded")
TEXTS = {tool: (RECORDED / f"{tool}-0.4.4.txt").read_text() for tool in TOOLS}
#: 0.6 renamed training's flag, and 0.5 gave merging its folders; the rest is as recorded.
TEXTS_06 = {
    "lerobot-train": TEXTS["lerobot-train"].replace("--eval_freq", "--env_eval_freq"),
    "lerobot-eval": TEXTS["lerobot-eval"],
    "lerobot-edit-dataset": TEXTS["lerobot-edit-dataset"].replace(
        "--operation.repo_ids [List]\n", "--operation.repo_ids [List]\n  --operation.roots [List]\n"
    ),
}


def environment(folder):
    """Return a folder that looks like an environment with LeRobot."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    for name in ("python", *TOOLS):
        (folder / "bin" / name).touch(mode=0o755)
    return LeRobotEnvironment(python=folder / "bin" / "python", cache=folder / "cache")


@pytest.mark.parametrize(
    ("texts", "version", "flag", "merge"),
    [(TEXTS, "0.4.4", "eval_freq", "home"), (TEXTS_06, "0.6.1", "env_eval_freq", "roots")],
)
def test_release_is_told_by_its_flags(texts, version, flag, merge):
    assert LeRobotTools.from_help(version, texts).capabilities == {
        "lerobot": version,
        "train_eval_flag": flag,
        "edit_dataset_merge": merge,
    }


@pytest.mark.parametrize(
    ("texts", "expected"), [(TEXTS, "--eval_freq"), (TEXTS_06, "--env_eval_freq")]
)
@pytest.mark.parametrize("given", ["--eval_freq=0", "--env_eval_freq=0"])
def test_renamed_flag_is_given_in_the_name_of_the_release(texts, expected, given):
    tools = LeRobotTools.from_help("x", texts)
    words = tools.translated("lerobot-train", [given, "--policy.path=a", "loose"])
    assert words == (f"{expected}=0", "--policy.path=a", "loose")


def test_unknown_flag_is_refused_before_it_is_run():
    tools = LeRobotTools.from_help("0.4.4", TEXTS)
    with pytest.raises(ConfigurationError, match=r"lerobot-eval 0.4.4: .* got --steps"):
        tools.translated("lerobot-eval", ["--steps=3"])


def test_tool_that_fails_is_named():
    assert output_of([sys.executable, "-c", "print(3)"]) == "3\n"
    with pytest.raises(
        ConfigurationError,
        match=r"expected '.* -c 1/0' to answer, got exit code 1 and 'ZeroDivisionError: .*'; inst",
    ):
        output_of([sys.executable, "-c", "1/0"])
    with pytest.raises(ConfigurationError, match=r"to answer, got exit code 3; install"):
        output_of([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ConfigurationError, match=r"to answer, got .*No such file"):
        output_of(["/nowhere/python"])
    with pytest.raises(ConfigurationError, match=r"to answer, got nothing within 0.1 s; install"):
        output_of([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.1)


def test_named_interpreter_wins_over_the_newest_finished_one(tmp_path):
    cache = tmp_path / "cadenza" / "environments"
    for number, name in enumerate(("lerobot-old", "lerobot-new", "lerobot-half", "other-1")):
        (cache / name).mkdir(parents=True)
        if name != "lerobot-half":
            (cache / name / ".complete").touch()
            os.utime(cache / name / ".complete", (number, number))
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert lerobot_python(environ) == cache / "lerobot-new" / "bin" / "python"
    assert lerobot_python({**environ, "CADENZA_LEROBOT_PYTHON": "/bin/sh"}) == Path("/bin/sh")
    assert lerobot_python({**environ, "CADENZA_LEROBOT_PYTHON": "/no/where"}) is None
    with pytest.raises(MissingExtraError, match=r"environments/install.py"):
        LeRobotEnvironment.find({"XDG_CACHE_HOME": str(tmp_path / "nothing")})
    found = LeRobotEnvironment.find(environ)
    assert found.cache == tmp_path / "cadenza" / "lerobot"


def test_programs_are_lerobots_own_or_our_scripts(tmp_path):
    programs = lerobot_programs(environment(tmp_path))
    assert programs["lerobot-eval"] == (str(tmp_path / "bin" / "lerobot-eval"),)
    for name, word in {"lerobot-train": "train", "cadenza-lerobot-collect": "collect"}.items():
        python, isolated, script, last = programs[name]
        assert (python, isolated, last) == (str(tmp_path / "bin" / "python"), "-P", word)
        assert Path(script).is_file()
    (tmp_path / "bin" / "lerobot-train").unlink()
    with pytest.raises(ConfigurationError, match="expected lerobot-train beside"):
        lerobot_programs(LeRobotEnvironment(python=tmp_path / "bin" / "python", cache=tmp_path))
