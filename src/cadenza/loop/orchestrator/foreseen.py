"""What a configuration will ask of the constitution, asked before a run exists.

Every command is judged again, as it stands, before it runs. This look ahead spares a run that would
be refused in its third cycle, at the look that is the first too large.
"""

from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, ConstitutionError, Verdict
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
    if config.improve.enabled and config.improve.adapt_steps:
        _require("improve.adapt_steps", rules.check_train(config.improve.adapt_steps))


def _require(keys: str, verdict: Verdict) -> None:
    if not verdict.allowed:
        reason = f"{keys}: {verdict.reason}; change the configuration or the rules"
        raise ConstitutionError(Verdict(allowed=False, rule=verdict.rule, reason=reason))
