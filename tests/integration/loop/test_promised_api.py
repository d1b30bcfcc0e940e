"""A loop put together as LeAgents' users do it: constructors without a back end drive LeRobot."""

import importlib
import json
from pathlib import Path

import pytest

from cadenza.loop import EventBus, JobStore, LoopConfig, LoopController
from cadenza.loop.agents import DataAgent, EvalAgent, RunResult, TrainAgent
from cadenza.loop.constitution.constitution import shipped_config
from cadenza.loop.orchestrator import Constitution, DeterministicProposer, RunSummary


class Tools:
    """A runner that leaves what LeRobot's tools leave.

    Attributes:
        commands: Commands so far.
    """

    def __init__(self):
        self.commands = []

    def __call__(self, cmd, log_path):
        self.commands.append(list(cmd))
        flags = dict(word.removeprefix("--").split("=", 1) for word in cmd[1:])
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_text("done")
        out = Path(flags["output_dir"])
        if cmd[0] == "lerobot-train":
            last = out / "checkpoints" / "last"
            policy, state = last / "pretrained_model", last / "training_state"
            policy.mkdir(parents=True)
            state.mkdir()
            (policy / "config.json").write_text("{}")
            (policy / "model.safetensors").write_bytes(b"weights")
            (state / "training_step.json").write_text(json.dumps({"step": int(flags["steps"])}))
        else:
            n = int(flags["eval.n_episodes"])
            metrics = {
                "successes": [index % 2 == 0 for index in range(n)],
                "sum_rewards": [1.0] * n,
                "max_rewards": [0.5] * n,
            }
            info = {
                "per_task": [{"task_group": "pusht", "task_id": 0, "metrics": metrics}],
                "overall": {"pc_success": 50.0, "n_episodes": n},
            }
            out.mkdir(parents=True)
            (out / "eval_info.json").write_text(json.dumps(info))
        return RunResult(list(cmd), 0, 1.0, log_path)


def test_loop_of_the_promised_parts_runs_over_lerobots_tools(tmp_path):
    cfg = LoopConfig.from_document(
        {
            "run_name": "pusht",
            "seed_dataset": "lerobot/pusht",
            "backend": "lerobot",
            "policy_ladder": [{"name": "act"}],
            "budgets": {"max_cycles": 2},
            "eval": {"env_type": "pusht", "task_suite": "PushT-v0", "max_episodes": 10},
        },
        source="test",
    )
    rules = Constitution.from_yaml(shipped_config("loop/constitution.yaml"))
    tools = Tools()
    workdir = tmp_path / "run-1"
    bus = EventBus(workdir / "events.jsonl")
    kinds = []
    bus.subscribe(lambda event: kinds.append(event.kind))
    with JobStore(tmp_path / "leagents.db") as store:
        controller = LoopController(
            cfg,
            store,
            bus,
            DataAgent(bus),
            TrainAgent(cfg.train, rules, bus, tools),
            EvalAgent(cfg.eval, rules, bus, tools),
            DeterministicProposer(cfg.seed_dataset),
        )
        summary = controller.run("run-1", workdir)
        assert [row["decision"] for row in store.cycles_for("run-1")] == ["promote", "iterate"]
        assert store.jobs.spent_s("run-1")["cpu"] + store.jobs.spent_s("run-1")["gpu"] == 5.0
    assert summary == RunSummary(
        "run-1",
        2,
        ["promote", "iterate"],
        "act",
        0.5,
        "budget: max_cycles",
        "act",
        summary.blessed_checkpoint,
        0,
    )
    assert [command[0] for command in tools.commands] == [
        "lerobot-train", "lerobot-eval", "lerobot-train", "lerobot-eval", "lerobot-eval"
    ]  # fmt: skip
    first, second = (c for c in tools.commands if c[0] == "lerobot-train")
    assert first[1] == "--policy.type=act"
    assert second[1] == f"--policy.path={summary.blessed_checkpoint}"
    assert (kinds[0], kinds[-1]) == ("cycle_started", "run_finished")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("agents", "DataAgent EvalAgent EvalError ImproveAgent ImproveError KnowledgeAgent "
                   "RunResult Runner TrainAgent TrainError dry_runner subprocess_runner"),
        ("agents.base", "RunResult Runner dry_runner subprocess_runner"),
        ("agents.data_agent", "DataAgent"),
        ("agents.eval_agent", "EvalAgent EvalError"),
        ("agents.improve_agent", "ImproveAgent ImproveError"),
        ("agents.knowledge_agent", "KnowledgeAgent"),
        ("agents.train_agent", "TrainAgent TrainError"),
        ("config", "BudgetConfig CurationConfig DataConfig EvalConfig ImproveConfig "
                   "KnowledgeConfig LoopConfig PolicyRung ThresholdConfig TrainConfig"),
        ("contracts", "CheckpointRecord DatasetRef EvalReport Proposal"),
        ("contracts.records", "CheckpointRecord DatasetRef EvalReport Proposal"),
        ("events", "Event EventBus"),
        ("events.bus", "Event EventBus"),
        ("llm", "AnthropicLLM LLMClient NullLLM OpenAICompatibleLLM make_llm"),
        ("llm.adapter", "AnthropicLLM LLMClient NullLLM OpenAICompatibleLLM make_llm"),
        ("orchestrator", "Constitution ConstitutionError CuratedProposer Decision "
                         "DeterministicProposer LLMProposer LoopController Proposer RunSummary "
                         "Verdict decide"),
        ("orchestrator.constitution", "Constitution ConstitutionError Verdict"),
        ("orchestrator.decision", "Decision decide"),
        ("orchestrator.loop", "LoopController RunSummary"),
        ("orchestrator.proposer", "CuratedProposer DeterministicProposer LLMProposer"),
        ("store", "JobStore"),
        ("store.jobstore", "JobStore"),
    ],
)  # fmt: skip
def test_names_of_leagents_are_where_it_has_them(module, names):
    found = importlib.import_module(f"cadenza.loop.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []
