"""Flags and releases of LeRobot, from help texts recorded from 0.4.4."""

import json
import os
import sys
from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.loop.backends.lerobot_probe import (
    TOOLS,
    Interface,
    LeRobotEnvironment,
    LeRobotTools,
    dataset_interface,
    environment_interface,
    lerobot_programs,
    lerobot_python,
    output_of,
    require_agreement,
    require_seeds,
)

RECORDED = Path(__file__).with_name("recorded")
TEXTS = {tool: (RECORDED / f"{tool}-0.4.4.txt").read_text() for tool in TOOLS}
#: 0.6 renamed training's flag; the rest is as recorded.
TEXTS_06 = {
    "lerobot-train": TEXTS["lerobot-train"].replace("--eval_freq", "--env_eval_freq"),
    "lerobot-eval": TEXTS["lerobot-eval"],
}


def environment(folder):
    """Return a folder that looks like an environment with LeRobot."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    for name in ("python", *TOOLS):
        (folder / "bin" / name).touch(mode=0o755)
    return LeRobotEnvironment(python=folder / "bin" / "python", cache=folder / "cache")


@pytest.mark.parametrize(
    ("texts", "version", "flag"),
    [(TEXTS, "0.4.4", "eval_freq"), (TEXTS_06, "0.6.1", "env_eval_freq")],
)
def test_release_is_told_by_its_flags(texts, version, flag):
    assert LeRobotTools.from_help(version, texts).capabilities == {
        "lerobot": version,
        "train_eval_flag": flag,
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


def test_fields_of_a_type_that_help_does_not_list_are_left_to_the_tool():
    # 0.6.1: "--policy.type {act,...}", and no field of a policy until the type is chosen
    texts = {
        "lerobot-train": "--steps int\n--policy.type {act}\n--wandb.enable bool",
        "lerobot-eval": "--eval.n_episodes int\n--env.type {pusht}",
    }
    tools = LeRobotTools.from_help("0.6.1", texts)
    words = ("--policy.device=cpu", "--policy.path=a", "--steps=3")
    assert tools.translated("lerobot-train", words) == words
    for flag in ("--wandb.color=red", "--env.task=a", "--stairs=3"):
        with pytest.raises(ConfigurationError, match="expected a flag that it has"):
            tools.translated("lerobot-train", [flag])


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


GOOD = {"repeats": True, "differs": True}
IN_ORDER = [100, 101, 102, 103, 104]


def facts(evaluated=IN_ORDER, **tasks):
    return {"seeds": tasks or {"pusht_0": GOOD}, "evaluated_seeds": evaluated}


def test_seeds_that_choose_the_state_are_recorded_with_the_tasks_that_show_it():
    assert require_seeds(facts(b_1=GOOD, a_0=GOOD), source="f") == {
        "initial_states": "chosen by the seed, as resets of a_0, b_1 show",
        "evaluated_seeds": "start + episode, as a trial shows",
    }
    assert require_seeds(facts(None), source="f")["evaluated_seeds"] == "not known"


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"repeats": False}, "another state when it was reset from seed 1 again"),
        ({"differs": False}, "the state of seed 1 from seed 2 or 3 too"),
        ({"differs": 1}, "the state of seed 1"),
        ({"repeats": None}, "another state"),
    ],
)
def test_environment_that_does_not_follow_its_seeds_is_refused(changes, got):
    with pytest.raises(
        ConfigurationError,
        match=rf"libero_3: expected the seed to choose where an episode begins, got {got}.*\(f\); "
        r"policies could be tested on the states that they were trained on, .* Set eval.env_type",
    ):
        require_seeds(facts(libero_2=GOOD, libero_3={**GOOD, **changes}), source="f")


@pytest.mark.parametrize("seeds", [None, {}, []])
def test_environment_that_was_not_asked_is_refused(seeds):
    with pytest.raises(ConfigurationError, match="f: expected facts about the seeds of tasks"):
        require_seeds({"seeds": seeds, "evaluated_seeds": IN_ORDER}, source="f")


@pytest.mark.parametrize("evaluated", [[100, 101, 100, 101, 102], IN_ORDER[:4], "all"])
def test_evaluation_that_plays_other_seeds_is_refused(evaluated):
    with pytest.raises(ConfigurationError, match=r"lerobot-eval: expected episodes from the seeds"):
        require_seeds(facts(evaluated), source="f")


IMAGE = "observation.image"
NAMES = ["height", "width", "channels"]


def picture(size, **changes):
    return {"dtype": "video", "shape": [size, size, 3], "names": NAMES, **changes}


def dataset(folder, features):
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"features": features}))
    return folder


def shown(size):
    shapes = {IMAGE: (3, size, size), "observation.state": (2,), "action": (2,)}
    return Interface(name="environment pusht", shapes=shapes)


FEATURES = {
    IMAGE: picture(384),
    "observation.state": {"dtype": "float32", "shape": [2], "names": None},
    "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
}


def test_dataset_shapes_are_channels_first_and_bookkeeping_is_left_out(tmp_path):
    first = {**FEATURES, "observation.depth": picture(4, shape=[1, 4, 5], names=["c", "h", "w"])}
    assert dataset_interface(dataset(tmp_path, first)).shapes == {
        IMAGE: (3, 384, 384),
        "observation.depth": (1, 4, 5),
        "observation.state": (2,),
        "action": (2,),
    }


def test_large_pictures_do_not_fit_an_environment_of_small_ones(tmp_path):
    data = dataset_interface(dataset(tmp_path, FEATURES))
    stats = tmp_path / "meta" / "stats.json"
    stats.write_text('{"action": {"mean": [0.0], "std": [NaN]}}')
    with pytest.raises(ConfigurationError, match="NaN"):
        dataset_interface(tmp_path)
    stats.write_text('{"action": {"mean": [0.0], "std": [1.0]}}')
    assert dataset_interface(tmp_path) == data
    require_agreement(data, shown(384))
    with pytest.raises(
        ConfigurationError,
        match=r"observation.image: expected the shape 3x384x384 of dataset .*, got 3x96x96 of env",
    ):
        require_agreement(data, shown(96))


def test_environment_is_looked_at_once_for_the_same_words(tmp_path):
    place, asked = environment(tmp_path), []

    def ask(command):
        asked.append(command)
        result = Path(command[-1].removeprefix("--result-json="))
        result.parent.mkdir(exist_ok=True)
        result.write_text(json.dumps({"observation": {IMAGE: [3, 96, 96]}, "action": [2]}))
        return ""

    words = ("--env-type=pusht", "--task=PushT-v0")
    for _ in range(2):
        found = environment_interface(place, words, ask=ask)
        assert found.shapes == {IMAGE: (3, 96, 96), "action": (2,)}
    assert len(asked) == 1
    assert asked[0][3:-1] == ["describe", *words]
    environment_interface(place, (*words, "--env.obs_type=pixels"), ask=ask)
    assert len(asked) == 2
