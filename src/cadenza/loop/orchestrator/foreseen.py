"""What a configuration will ask of the constitution, asked before a run exists.

Every command is judged again, as it stands, before it runs. This look ahead spares a run that would
be refused in its third cycle, at the look that is the first too large.
"""

from cadenza.loop.agents.improve_agent import attempts_for
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, ConstitutionError, Verdict
from cadenza.loop.orchestrator.proposer_schedule import DeterministicProposer
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan


def require_foreseen_allowed(config: LoopConfig, rules: Constitution) -> None:
    """Raise if ``rules`` refuse a number that ``config`` sets.

    Raises:
        ConstitutionError: They do; the reason names the key.
    """
    looks = SequentialPlan.of_run(config).sizes
    largest = max(now - before for now, before in zip(looks, (0, *looks), strict=False))
    _require("train.steps", rules.check_train(config.train.steps))
    _require(
        f"eval.n_episodes, eval.max_episodes (looks after {', '.join(map(str, looks))} episodes)",
        rules.check_eval(config.eval.env_type, largest),
    )
    _require_data_allowed(config, rules)
    if config.improve.enabled:
        attempts = attempts_for(config.improve.episodes)
        _require("improve.episodes (with failures)", rules.check_collect(attempts))
        if config.improve.adapt_steps:
            _require("improve.adapt_steps", rules.check_train(config.improve.adapt_steps))


def _require_data_allowed(config: LoopConfig, rules: Constitution) -> None:
    """Raise if ``rules`` refuse the episodes that the last cycle collects."""
    data, last = config.data, config.budgets.max_cycles - 1
    if config.backend != "native" or config.seed_root is not None or data.initial_episodes is None:
        return
    schedule = DeterministicProposer(
        config.seed_dataset, data.initial_episodes, data.growth, data.max_episodes
    )
    episodes = schedule.scheduled_episodes(last) or 0
    _require(
        f"data.initial_episodes, data.growth, data.max_episodes ({episodes} episodes in cycle "
        f"{last}, with failures)",
        rules.check_collect(max(episodes, attempts_for(episodes))),
    )


def _require(keys: str, verdict: Verdict) -> None:
    if not verdict.allowed:
        reason = f"{keys}: {verdict.reason}; change the configuration or the rules"
        raise ConstitutionError(Verdict(allowed=False, rule=verdict.rule, reason=reason))
