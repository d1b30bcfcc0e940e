"""No proposal ends a run: neither a model's nor anybody else's that asks for too much."""

import json

from cadenza.loop.config import LoopConfig
from cadenza.loop.jobs.callable_runner import CallableRunner
from cadenza.loop.llm.protocol import Answer
from cadenza.loop.orchestrator import build_loop
from tests.integration.loop.loop_harness import Loop
from tests.loop_fakes import FakeBackend, FakeProposer, FakeStack

#: As many attempts as 200 episodes may take.
RULES = """
allowed_programs: [cadenza]
allowed_env_types: [crossing]
max_train_steps: 9000
max_eval_episodes: 500
max_collect_episodes: 1000
"""


class Greedy:
    """A language model that asks for more than the rules allow."""

    provider = "fake"
    model = "greedy"

    def ask(self, question):
        return Answer(text=json.dumps({"action": "reuse_seed", "num_episodes": 300}))


def test_models_greed_ends_in_the_most_that_the_rules_allow(tmp_path, monkeypatch):
    monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec: Greedy())
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = LoopConfig.from_document(
        {
            "run_name": "greedy",
            "seed_dataset": "local/crossing",
            "workdir": str(tmp_path / "runs"),
            "llm": "openai:greedy",
            "constitution": str(tmp_path / "rules.yaml"),
            "data": {"initial_episodes": 4, "max_episodes": 9000},
            "improve": {"enabled": True, "episodes": 250},
            "budgets": {"max_cycles": 1},
            "eval": {"n_episodes": 20, "max_episodes": 20},
            "knowledge": {"enabled": False},
        },
        source="test",
    )
    stack = FakeStack([0.9])

    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, stack)

    with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
        assert loop.run().cycles_run == 1
    data, harvest = stack.flags(0, "data"), stack.flags(0, "harvest")
    assert (data["episodes"], data["seed-count"]) == ("200", "1000")
    assert (harvest["episodes"], harvest["seed-count"]) == ("250", "1000")


def test_proposer_of_ones_own_cannot_ask_for_more_either(store, tmp_path):
    class Wild(FakeProposer):
        def propose(self, cycle, last_report):
            proposal = super().propose(cycle, last_report)
            return proposal.model_copy(update={"num_episodes": 10**6})

    stack = FakeStack([0.9])
    loop = Loop(store, tmp_path, stack, proposer=Wild(), budgets={"max_cycles": 1})
    assert loop.run().cycles_run == 1
    assert stack.flags(0, "data")["episodes"] == str(2**16 // 5)
    assert stack.flags(0, "data")["seed-count"] == str(2**16 // 5 * 5)
