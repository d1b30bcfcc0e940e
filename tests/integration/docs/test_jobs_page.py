"""The page on the native jobs: its session runs, and it names every option and result field."""

import json
import re
import shlex
from contextlib import chdir
from pathlib import Path

import pytest
from typer.main import get_command

from cadenza.cli.in_process import run_in_process
from cadenza.cli.main import job_app
from tests.campaigns import nightly
from tests.integration.docs.pages import execute

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "jobs.md").read_text(encoding="utf-8")
COMMANDS = get_command(job_app).commands
#: Sizes of the page and the smaller ones that serve here.
SMALLER = {
    "--episodes=32 --seed-start=0": "--episodes=4 --seed-start=0",
    "--steps=2000": "--steps=60",
    "--steps=500": "--steps=20",
    "--episodes=50": "--episodes=4",
    "--episodes=16": "--episodes=1",
}
HEADINGS = {"collect": "### `collect`, `harvest`", "harvest": "### `collect`, `harvest`"}


def session():
    """The commands of the page's session and what each printed."""
    block = re.search(r"## A session.*?```console\n(.*?)```", PAGE, flags=re.DOTALL).group(1)
    found = []
    for part in block.replace("\\\n", "").split("$ ")[1:]:
        command, answer = part.strip().split("\n")
        found.append((" ".join(command.split()), answer))
    return found


def without_numbers(text):
    return re.sub(r"[0-9.e-]+(?=[ %:])", "#", text)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Result files of the session in small, by job, and answers that differ from the page."""
    folder, made, differences = tmp_path_factory.mktemp("session"), {}, []
    with chdir(folder):
        for command, answer in session():
            for size, smaller in SMALLER.items():
                command = command.replace(size, smaller)
            ended = run_in_process(shlex.split(command), Path("log"))
            printed = Path("log").read_text().strip()
            assert ended.exit_code == 0, printed
            if without_numbers(printed) != without_numbers(answer):
                differences.append((printed, answer))
            flags = dict(word.split("=", 1) for word in shlex.split(command)[3:])
            made[shlex.split(command)[2]] = json.loads(Path(flags["--result-json"]).read_text())
    return made, differences


def test_session_runs_and_prints_what_the_page_shows(results):
    made, differences = results
    assert differences == []
    assert made.keys() == COMMANDS.keys()


def section(job):
    """The page's part on the options of ``job``."""
    heading = HEADINGS.get(job, f"### `{job}`")
    return PAGE.partition(heading)[2].partition("\n#")[0]


@pytest.mark.parametrize("job", COMMANDS)
def test_every_option_is_explained_and_no_other(job):
    common = {"--out", "--result-json"}
    known = {option for parameter in COMMANDS[job].params for option in parameter.opts}
    known -= {"--help", "-h"}
    rows = [line for line in section(job).splitlines() if line.startswith("| `--")]
    told = set()
    for row in rows:
        only = re.search(r"`(\w+)` only", row)
        if only is None or only.group(1) == job:
            told |= set(re.findall(r"(--[a-z-]+)", row.split(" | ")[0]))
    assert told | common == known


def test_every_field_of_a_result_is_explained(results):
    made, _ = results
    fields = PAGE.partition("## Result files")[2]
    told = set(re.findall(r"`([a-z_0-9]+)`", fields))
    for job, result in made.items():
        nested = [result.get(key) or {} for key in ("dataset", "policy", "seeds", "overall")]
        nested += [*result.get("episodes", []), *result.get("sources", [])]
        for document in (result, *nested):
            assert document.keys() <= told, job


@nightly
def test_quick_loop_of_the_page_promotes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = re.search(r"## In one process.*?```python\n(.*?)```", PAGE, flags=re.DOTALL).group(1)
    names = execute("reference/jobs.md", program)
    decisions, rate = names["summary"].decisions, names["summary"].baseline_success_rate
    assert len(decisions) == 2
    assert decisions[0] == "promote"
    assert rate > 0.0
    assert capsys.readouterr().out == f"{decisions} {rate}\n"
