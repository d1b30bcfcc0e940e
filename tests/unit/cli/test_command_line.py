"""What holds for all commands: an example in every help, and one shape of errors with --json."""

import json
import shlex
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from cadenza.benchmark.zoo.config import Method
from cadenza.cli.main import app, build_command, main
from cadenza.core.errors import ConfigurationError


def _walk(command, path):
    yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _walk(one, f"{path} {name}")


COMMANDS = dict(_walk(build_command(), "cadenza"))
LEAVES = {path: one for path, one in COMMANDS.items() if not hasattr(one, "commands")}


def _help(command, path):
    with typer.Context(command, info_name=path, help_option_names=["-h", "--help"]) as context:
        return command.get_help(context)


def _example(path):
    told = COMMANDS[path].epilog
    assert told, f"{path}: no example in src/cadenza/cli/examples.txt"
    return shlex.split(told.removeprefix("Example: "))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_an_example_that_the_command_line_takes(path, capsys):
    _help(COMMANDS[path], path)
    shown = capsys.readouterr().out
    words = _example(path)
    assert words[: len(path.split())] == path.split()
    assert " ".join(shown.split()).rpartition("Example: ")[2] == " ".join(
        COMMANDS[path].epilog.split()[1:]
    )
    assert "<bool>" not in shown
    # parsing alone: required options are there, all options exist, values have their types
    leaf = max((one for one in LEAVES if words[: len(one.split())] == one.split()), key=len)
    LEAVES[leaf].make_context(leaf, words[len(leaf.split()) :])


def test_a_setting_that_no_ego_has_is_refused_with_the_reason():
    from cadenza.cli.configuration import read_training_config

    with pytest.raises(ConfigurationError, match=r"got 'action_masks'; egos have no masks; remove"):
        read_training_config(Path("crossing"), ["algo=sac", "sac.action_masks=true"])


def test_settings_of_the_examples_are_known(tmp_path):
    from cadenza.benchmark.evaluation_run import load_evaluation_config
    from cadenza.benchmark.quickstart import training_config
    from cadenza.cli.configuration import read_training_config
    from cadenza.core.shipped_configs import shipped_config
    from cadenza.loop.config import LoopConfig
    from cadenza.safety.verifier.config import load_verifier_config

    def settings(path):
        words = _example(path)[len(path.split()) :]
        return [word for word in words if "=" in word and not word.startswith("-")]

    quick = training_config(tmp_path, settings("cadenza quickstart"))
    assert quick.total_frames == 50_000
    trained = read_training_config(Path("crossing"), settings("cadenza train"))
    assert (trained.seed, trained.happo.lr) == (3, 1e-4)
    judged = load_evaluation_config(shipped_config("eval/crossing"), settings("cadenza eval run"))
    assert judged.episodes_per_seed == 5
    looped = LoopConfig.from_yaml(
        shipped_config("loop/native_crossing"), settings("cadenza loop run")
    )
    assert looped.budgets.max_cycles == 2
    verified = load_verifier_config(None, {}, settings("cadenza safety verify"))
    assert (verified.margin_m, verified.dts) == (0.001, (0.05,))


@pytest.mark.parametrize(
    "path",
    [
        *("cadenza configs list", "cadenza configs show", "cadenza configs copy"),
        *("cadenza contracts list", "cadenza contracts show"),
        *("cadenza partners list", "cadenza tasks list", "cadenza tasks show", "cadenza zoo list"),
        "cadenza loop run",
    ],
)
def test_quick_examples_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, _example(path)[1:])
    assert done.exit_code == 0, done.output


def test_zoo_train_names_every_method(capsys):
    _help(LEAVES["cadenza zoo train"], "cadenza zoo train")
    shown = capsys.readouterr().out
    assert [name for name in get_args(Method) if name not in shown] == []


def _run(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["cadenza", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("path", COMMANDS)
def test_unknown_option_is_told_in_json(path, monkeypatch, capsys):
    code, streams = _run(monkeypatch, capsys, [*path.split()[1:], "--json", "--frobnicate"])
    assert code == 2
    told = json.loads(streams.out)
    assert list(told) == ["error"]
    assert told["error"]["kind"] == "UsageError"
    assert f"`{path} --help`" in told["error"]["message"]
    assert streams.err == f"error: {told['error']['message']}\n"


#: Words with which each command that takes --json ends badly, and the documented exit code.
BAD = {
    "cadenza quickstart": ("sed=1", 2),
    "cadenza train": ("nowhere.yaml", 2),
    "cadenza sweep": ("crossing sed=1..2 --out out", 2),
    "cadenza suite run": ("nowhere", 2),
    "cadenza suite list": ("here", 2),
    "cadenza suite show": ("nowhere", 2),
    "cadenza imitate": ("nowhere --expert swerve", 2),
    "cadenza doctor": ("here", 2),
    "cadenza configs list": ("here", 2),
    "cadenza contracts list": ("here", 2),
    "cadenza contracts show": ("nowhere", 2),
    "cadenza eval run": ("crossing sed=1 --out out", 2),
    "cadenza eval diff": ("nowhere nowhere", 2),
    "cadenza eval compare": ("nowhere none", 2),
    "cadenza eval verify": ("nowhere", 10),
    "cadenza prereg lint": ("nowhere.yaml", 2),
    "cadenza prereg power": ("nowhere.yaml", 2),
    "cadenza prereg freeze": ("nowhere.yaml", 2),
    "cadenza prereg verify": ("nowhere.yaml", 2),
    "cadenza safety verify": ("nowhere.yaml", 2),
    "cadenza spike list": ("here", 2),
    "cadenza spike run": ("--axis CM --sub-stage 1b --ego zero --out out", 2),
    "cadenza spike verify": ("nowhere.yaml", 2),
    "cadenza spike summarise": ("nowhere", 2),
    "cadenza spike next-stage": ("nowhere --prior-stage 2", 2),
    "cadenza safety tables": ("nowhere.json", 2),
    "cadenza safety show": ("nowhere.yaml", 2),
    "cadenza stream top": ("nowhere.json", 2),
    "cadenza loop run": ("--config native_crossing sed=1", 2),
    "cadenza loop resume": ("nobody", 1),
    "cadenza loop demo": ("--workdir /dev/null/out", 11),
    "cadenza loop status": ("", 1),
    "cadenza loop stop": ("nobody", 1),
    "cadenza loop approve": ("nobody --by Ada --reason none", 1),
    "cadenza loop doctor": ("here", 2),
    "cadenza loop lint": ("", 2),
    "cadenza loop list": ("", 1),
    "cadenza loop compare": ("nobody", 1),
    "cadenza loop prune": ("", 2),
    "cadenza partners list": ("--task nowhere", 2),
    "cadenza partners train-draft-zoo": ("--frames 0", 2),
    "cadenza tasks list": ("here", 2),
    "cadenza tasks show": ("nowhere", 2),
    "cadenza zoo train": ("fcp sed=1", 2),
    "cadenza zoo select": ("nowhere --size 1 --out out", 10),
    "cadenza zoo list": ("here there", 2),
    "cadenza zoo show": ("nowhere", 10),
    "cadenza zoo best-response": ("nowhere", 10),
    "cadenza zoo matrix": ("nowhere", 10),
}


def test_every_command_with_json_is_tried_with_bad_input():
    assert set(BAD) == {
        path for path, one in LEAVES.items() if any("--json" in p.opts for p in one.params)
    }


@pytest.mark.parametrize("path", BAD)
def test_bad_input_is_told_in_json_with_the_documented_code(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, expected = BAD[path]
    code, streams = _run(monkeypatch, capsys, [*path.split()[1:], *shlex.split(words), "--json"])
    assert code == expected, streams
    told = json.loads(streams.out)
    assert set(told["error"]) == {"kind", "message"}
    assert streams.err.startswith("error: ")
    assert list(tmp_path.rglob("*.pt")) == []
