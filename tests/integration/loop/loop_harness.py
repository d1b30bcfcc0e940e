"""Runs of the whole loop over the fake stack of `tests.loop_fakes`."""

from cadenza.loop.agents import DataAgent, EvalAgent, ImproveAgent, TrainAgent
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import load_constitution
from cadenza.loop.events import EventBus
from cadenza.loop.orchestrator import LoopController
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
        self.cfg = config(**changes)
        self.bus = EventBus(self.folder / "events.jsonl")
        rules = load_constitution(None)
        parts = {"backend": self.backend}
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
        return [(event.stage, event.kind) for event in self.store.events.after(self.run_id, 0)]

    def state(self):
        return self.store.load_state(self.run_id)[0]
