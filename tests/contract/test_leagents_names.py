"""What code written for LeAgents calls, but for what `coming-from-leagents` lists as changed."""

import pytest

from tests.contract.promises import faults, promises

PROMISES = """
[cadenza.loop.agents]
RunResult(cmd, exit_code, duration_s, log_path=None)
Runner
subprocess_runner(cmd, log_path)
dry_runner(cmd, log_path)
DataAgent(bus, runner=..., task_filter=None) .run(*, run_id, cycle, proposal, workdir=...)
EvalAgent(cfg, constitution, bus, runner=...) .build_command(checkpoint, output_dir)
    .run(*, run_id, cycle, checkpoint, workdir)
ImproveAgent(cfg, eval_cfg, constitution, bus, runner=...)
    .build_command(checkpoint, out_dir, repo_id)
    .run(*, run_id, cycle, checkpoint, workdir, prev_mix=None)
KnowledgeAgent(root, bus, llm=None) .ingest(*, run_id, cycle, policy, report, decision) .lint()
TrainAgent(cfg, constitution, bus, runner=...)
    .build_command(rung, dataset, output_dir, init_override=None, steps=None)
    .run(*, run_id, cycle, rung, dataset, workdir, init_override=None, steps=None, stage='train')
[cadenza.loop.config]
LoopConfig .from_yaml(path)
[cadenza.loop.events]
Event(run_id, stage, kind, cycle=None, payload=..., ts=...)
EventBus(log_path) .emit(event) .subscribe(subscriber) .log_path
[cadenza.loop.llm]
LLMClient .complete(prompt, *, system=None, max_tokens=1024)
NullLLM .complete(prompt, *, system=None, max_tokens=1024)
AnthropicLLM(model, api_key=None) .complete(prompt, *, system=None, max_tokens=1024)
OpenAICompatibleLLM(model, base_url=None, api_key=None)
    .complete(prompt, *, system=None, max_tokens=1024)
make_llm(spec)
[cadenza.loop.orchestrator]
Constitution(rules) .from_yaml(path) .check_command(cmd) .check_train(steps)
    .check_eval(env_type, n_episodes)
ConstitutionError(verdict)
CuratedProposer(llm, knowledge_root, fallback, data_cfg, candidates=3, bus=None, max_tokens=8192)
    .propose(cycle, last_report)
Decision
DeterministicProposer(seed_dataset, initial_episodes=None, growth=2.0, max_episodes=None,
    failing_threshold=0.5) .propose(cycle, last_report)
LLMProposer(llm, knowledge_root, fallback, max_pages=6) .propose(cycle, last_report)
LoopController(cfg, store, bus, data_agent, train_agent, eval_agent, proposer, knowledge_agent=None,
    improve_agent=None) .run(run_id, workdir)
Proposer .propose(cycle, last_report)
RunSummary(run_id, cycles_run=0, decisions=..., final_policy=None, baseline_success_rate=None,
    stop_reason='budget: max_cycles') .to_dict()
Verdict(allowed, rule=None, reason=None)
decide(candidate, baseline, history, thresholds)
[cadenza.loop.store]
JobStore .create_run(run_id, config_json) .finish_run(run_id, status=..., stop_reason=None)
    .list_runs() .start_cycle(run_id, idx) .set_stage(run_id, idx, stage)
    .finish_cycle(run_id, idx, decision) .cycles_for(run_id)
    .add_checkpoint(run_id, cycle_idx, policy_type, path) .attach_eval(checkpoint_id, eval_report)
    .bless(run_id, checkpoint_id) .checkpoints_for(run_id) .blessed_checkpoint(run_id)
"""


@pytest.mark.parametrize(
    ("module", "path", "parameters"),
    [pytest.param(*entry, id=f"{entry[0]}:{entry[1]}") for entry in promises(PROMISES)],
)
def test_promise_of_leagents_is_kept(module, path, parameters):
    assert faults(module, path, parameters) == []


def test_table_names_what_leagents_has():
    entries = list(promises(PROMISES))
    assert len(entries) > 50
    assert ("cadenza.loop.orchestrator", "Proposer.propose", "cycle, last_report") in entries
