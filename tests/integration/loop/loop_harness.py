"""Runs of the whole loop over the fake stack of `tests.loop_fakes`."""

import shutil

from cadenza.loop.agents import DataAgent, EvalAgent, ImproveAgent, TrainAgent
from cadenza.loop.agents.base import CallableRunner
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import load_constitution
from cadenza.loop.events import EventBus
from cadenza.loop.orchestrator import LoopController, build_loop
from cadenza.loop.orchestrator.assembly import read_roots
from cadenza.loop.store import JobStore
from tests.integration.loop.what_is_left import what_is_left
from tests.loop_fakes import FakeBackend, FakeKnowledge, FakeProposer


def config(**changes):
    """A small configuration of the native back end; sections are merged key by key."""
    document = {
        "run_name": "test",
        "seed_dataset": "local/fake",
        "budgets": {"max_cycles": 3},
        "train": {"steps": 10, "batch_size": 4},
        "eval": {"n_episodes": 50, "batch_size": 10, "max_episodes": 200},
        "thresholds": {"alpha": 0.2},
    }
    for key, value in changes.items():
        known = document.get(key)
        document[key] = {**known, **value} if isinstance(known, dict) else value
    return LoopConfig.from_document(document, source="test")


def configured(folder, **changes):
    """A configuration as a file holds it, of a run below ``folder``."""
    document = {
        "run_name": "crossing",
        "seed_dataset": "local/crossing",
        "workdir": str(folder / "runs"),
        "data": {"initial_episodes": 4},
        "budgets": {"max_cycles": 2},
        "eval": {"n_episodes": 20, "max_episodes": 20},
        "knowledge": {"root": str(folder / "knowledge")},
        **changes,
    }
    return LoopConfig.from_document(document, source="test")


def built(settings, stack, run_id="run", **options):
    """A run of a configuration, with real workers over the fake stack."""

    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, stack)

    return build_loop(settings, run_id, backend=FakeBackend(), open_jobs=open_jobs, **options)


class Loop:
    """A controller with everything it needs, in a folder.

    Attributes:
        folder: Folder of the run.
        stack: The fake stack.
        proposer: The fake proposer.
    """

    def __init__(self, store, workdir, stack, *, run_id="run", proposer=None, **changes):
        knowledge = changes.pop("pages", False)
        options = changes.pop("options", {})
        self.run_id = run_id
        self.folder = workdir / run_id
        self.store = store
        self.stack = stack
        self.backend = FakeBackend()
        self.proposer = proposer or FakeProposer()
        rules = changes.pop("rules", None) or load_constitution(None)
        self.cfg = config(**changes)
        self.bus = EventBus(self.folder / "events.jsonl")
        parts = {"backend": self.backend, "read_roots": read_roots(self.cfg)}
        self.controller = LoopController(
            self.cfg,
            store,
            self.bus,
            DataAgent(self.bus, stack, constitution=rules, **parts),
            TrainAgent(self.cfg.train, rules, self.bus, stack, **parts),
            EvalAgent(self.cfg.eval, rules, self.bus, stack, **parts),
            self.proposer,
            FakeKnowledge(workdir / "pages", self.bus) if knowledge else None,
            ImproveAgent(self.cfg.improve, self.cfg.eval, rules, self.bus, stack, **parts),
            poll_s=0.01,
            **options,
        )

    def run(self):
        return self.controller.run(self.run_id, self.folder)

    def events(self):
        """What happened as (stage, kind), in order."""
        return [(event.stage, event.kind) for event in self.store.events.find(self.run_id)]

    def state(self):
        return self.store.load_state(self.run_id)[0]


def store_in(folder, template):
    """A job store in ``folder``, from an empty one at ``template``."""
    shutil.copyfile(template, folder / "cadenza.db")
    return JobStore(folder / "cadenza.db")


def outcome_of(loop, workdir, store_url=None):
    """Everything that a run leaves, without times, attempts and numbers of processes."""
    return what_is_left(workdir, loop.run_id, store_url, runs=".", pages="pages")
