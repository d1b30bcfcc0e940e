"""Where the effect of a configuration's key can be seen; see `test_every_configuration_key`.

A look takes a `Lab` and a configuration and returns what it saw. A configuration's own folder reads
``FOLDER``.
"""

import itertools
import json
import re
import shutil
import types
from collections.abc import Callable
from typing import Any

from cadenza.loop.backends.base import make_backend
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import ConstitutionError
from cadenza.loop.dry_run import DryBackend, dry_jobs
from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm import NullLLM
from cadenza.loop.llm.protocol import Answer
from cadenza.loop.orchestrator import build_loop
from cadenza.loop.orchestrator.assembly import new_run_id, run_folder
from tests.integration.loop.loop_harness import built
from tests.loop_fakes import FakeBackend, FakeStack

RUN = "run"


class Model:
    """A language model that says nothing usable, or fails, and counts a million tokens each way."""

    provider, model = "fake", "m"

    def __init__(self, failure=None):
        self.failure = failure
        self.questions = []

    def ask(self, question):
        self.questions.append(question)
        if self.failure is not None:
            raise self.failure
        return Answer(text="{}", tokens_in=10**6, tokens_out=10**6)


class Lab:
    """Runs configurations cheaply, each in a folder of its own.

    Attributes:
        patch: Pytest's ``monkeypatch``.
    """

    def __init__(self, folder, template, patch, known):
        """Work in ``folder``; ``known`` keeps what dry runs showed, for other labs too."""
        self.patch = patch
        self._folder, self._template = folder, template
        self._numbers = itertools.count()
        self._known, self._texts = known, {}

    def config(self, document):
        """Return a configuration below a new folder."""
        number = str(next(self._numbers))
        folder = self._folder / number
        (folder / "runs").mkdir(parents=True)
        shutil.copyfile(self._template, folder / "runs" / "cadenza.db")
        (folder / "rules.yaml").write_text("allowed_programs: [cadenza]\nmax_train_steps: 1\n")
        (folder / "i.json").write_text('{"mine": ["push it"]}')
        fixed = {"workdir": "FOLDER/runs", "knowledge": {}, **document}
        fixed["knowledge"] = {"root": "FOLDER/pages", **fixed["knowledge"]}
        self._texts[number] = json.dumps(fixed, sort_keys=True)
        text = self._texts[number].replace("FOLDER", str(folder))
        return LoopConfig.from_document(json.loads(text), source="test")

    def told(self, config, value):
        """Return a value with the folder of ``config`` called ``FOLDER``."""
        number = self._number(config)
        return value.replace(str(self._folder / number), "FOLDER")

    def files(self, config, pattern):
        """Return the files of a configuration's folder, sorted."""
        found = (self._folder / self._number(config)).rglob(pattern)
        return sorted(self.told(config, str(path)) for path in found)

    def dry(self, config, *, anew=False):
        """Return the commands of a dry run by cycle and stage: flags, and the program at ``""``."""
        text = self._texts[self._number(config)]
        if anew or text not in self._known:
            backend = DryBackend(make_backend(config), config)
            with build_loop(config, RUN, backend=backend, open_jobs=dry_jobs) as loop:
                loop.run()
                rows = loop.store.jobs.of_run(RUN)
            self._known[text] = {
                (row.key.cycle, row.key.stage): self._flags(config, row.command) for row in rows
            }
        return self._known[text]

    def fake(self, config, rates=(0.5,), *, model=None, seconds=1.0):
        """Return a run over the fake stack: its summary, and the model's first reply."""
        stack = FakeStack(rates, seconds=seconds)
        self.patch.setattr(
            "cadenza.loop.orchestrator.assembly.make_llm", lambda spec: model if spec else NullLLM()
        )
        with built(config, stack) as loop:
            summary = loop.run()
            reply = loop.store.replies.get(RUN, 0, "propose", 0)
            return types.SimpleNamespace(summary=summary, reply=reply)

    def _number(self, config):
        return next(
            part for part in config.workdir.relative_to(self._folder).parts if part.isdigit()
        )

    def _flags(self, config, command):
        flags = dict(
            word.removeprefix("--").partition("=")[::2] for word in command if word.startswith("--")
        )
        return {"": command[0]} | {key: self.told(config, value) for key, value in flags.items()}


Look = Callable[[Lab, LoopConfig], Any]


def flag(stage: str, name: str, cycle: int = 0) -> Look:
    """Return the look at a flag of a stage's command; None without one, or without the command."""
    return lambda lab, config: lab.dry(config).get((cycle, stage), {}).get(name)


def stage_runs(stage: str) -> Look:
    """Return the look at how many cycles run a stage."""
    return lambda lab, config: [name for _, name in lab.dry(config)].count(stage)


def name_in_run_id(lab, config):
    return new_run_id(config).split("-", 2)[2]


def folder_of_run(lab, config):
    return lab.told(config, str(run_folder(config, RUN)))


def store_files(lab, config):
    build_loop(config, RUN, backend=FakeBackend()).close()
    return [name for name in lab.files(config, "*.db") if not name.endswith("runs/cadenza.db")]


def pages(lab, config):
    lab.dry(config, anew=True)
    return sorted({name.split("/")[1] for name in lab.files(config, "policies/*.md")})


def refusal(lab, config):
    try:
        build_loop(config, RUN, backend=FakeBackend()).close()
    except ConstitutionError as error:
        return error.verdict.rule
    return None


def why_it_ends(lab, config):
    """The reason why a run of jobs of half an hour ends."""
    return lab.fake(config, seconds=1800.0).summary.stop_reason


def decisions(*rates: float) -> Look:
    """Return the look at the decisions on policies of these rates of success."""
    return lambda lab, config: " ".join(lab.fake(config, rates).summary.decisions)


def question(what: Callable[[Any], Any]) -> Look:
    """Return the look at something of the first question to the model."""

    def look(lab, config):
        model = Model()
        lab.fake(config, model=model)
        return what(model.questions[0])

    return look


def plans_asked_for(asked):
    number = re.search(r"List (\d+) different plans", asked.prompt)
    return number and int(number[1])


def questions_to_a_failing_model(lab, config):
    model = Model(LLMCallError("overloaded", passing=True, retry_after_s=0.0))
    lab.fake(config, model=model)
    return len(model.questions)


def questions(lab, config):
    model = Model()
    lab.fake(config, model=model)
    return len(model.questions)


def tokens_asked_for(lab, config):
    """Of proposals and of lessons alike."""
    model = Model()
    lab.fake(config, model=model)
    assert len({asked.system for asked in model.questions}) == 2
    return {asked.max_tokens for asked in model.questions}


def prompt_fits_8000(lab, config):
    pages = config.knowledge.root / "policies"
    pages.mkdir(parents=True)
    for number in range(6):
        pages.joinpath(f"p{number}.md").write_text("lesson " * 2000)
    return question(lambda asked: len(asked.prompt) + len(asked.system) <= 8000)(lab, config)


def cost(lab, config):
    """What a million tokens each way cost."""
    return lab.fake(config, model=Model()).reply.cost_usd
