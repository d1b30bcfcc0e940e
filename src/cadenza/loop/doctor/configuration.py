"""The configuration: can it be read, and would a run of it be refused before it begins."""

from pathlib import Path

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.doctor.check import Check, tried


def read_configuration(path: Path) -> tuple[LoopConfig | None, list[Check]]:
    """Return the configuration at ``path`` with its check, or None with one per problem."""
    try:
        config = LoopConfig.from_yaml(path)
    except ConfigurationError as error:
        first, *problems = str(error).splitlines()
        return None, [
            Check(
                name="configuration",
                level="fail",
                detail=(f"{path}: {problem.strip()}" if problems else problem).removesuffix("."),
                fix="correct the file",
            )
            for problem in problems or [first]
        ]
    checks = [Check(name="configuration", level="ok", detail=f"{path}: {_summary(config)}")]
    return config, [*checks, *advice(config)]


def advice(config: LoopConfig) -> list[Check]:
    """Return warnings of a harvest that no training reads, and of a first policy never played."""
    found: list[Check] = []
    if config.improve.enabled and not config.improve.adapt_steps:
        found.append(
            Check(
                name="harvest",
                level="warn",
                detail="improve.adapt_steps is 0: successes are collected, and no training reads "
                "them",
                fix="set improve.adapt_steps, or improve.enabled: false",
            )
        )
    init = config.policy_ladder[0].init
    if config.reference is None and init is not None and not Path(init).exists():
        found.append(
            Check(
                name="reference",
                level="warn",
                detail=f"policy_ladder[0].init {init} of a hub is not played, so the first "
                "candidate is compared with nothing",
                fix=f"set reference: {init} if it knows the task, else reference: none",
            )
        )
    return found


def back_end_check(config: LoopConfig) -> Check:
    """Return whether the back end takes the configuration, and the rules its commands."""
    return tried("back end", None, lambda: _back_end(config))


def inputs_check(config: LoopConfig) -> Check:
    """Return whether the data and weights that the configuration names are there, and fit."""
    return tried("inputs", None, lambda: _inputs(config))


def require_rules_allow(config: LoopConfig, rules: Constitution) -> None:
    """Raise if ``rules`` refuse a number that ``config`` sets.

    Raises:
        ConstitutionError: They do; the reason names the key.
    """
    from cadenza.loop.orchestrator.foreseen import require_foreseen_allowed

    require_foreseen_allowed(config, rules)


def _summary(config: LoopConfig) -> str:
    rungs = ", ".join(rung.name for rung in config.policy_ladder)
    return f"at most {config.budgets.max_cycles} cycles of {rungs} on {config.eval.env_type}"


def _back_end(config: LoopConfig) -> Check:
    from cadenza.loop.backends.registry import make_backend
    from cadenza.loop.orchestrator.foreseen import require_commands_allowed
    from cadenza.loop.resuming import rules_of

    backend = make_backend(config)
    require_commands_allowed(config, rules_of(config), backend)
    device = backend.capabilities.get("device", "cpu")  # asks LeRobot for its environment, too
    return Check(
        name="back end",
        level="ok",
        detail=f"{backend.name} on the {device}, its commands are allowed",
    )


def _inputs(config: LoopConfig) -> Check:
    from cadenza.loop.orchestrator.foreseen_inputs import (
        require_fitting_weights,
        require_inputs,
        require_present,
    )
    from cadenza.loop.orchestrator.proposal_bounds import collects
    from cadenza.loop.orchestrator.training_seeds import seeds_of_seed_data
    from cadenza.loop.resuming import rules_of

    require_present(config)
    require_fitting_weights(config)
    where = str(config.seed_root or "the back end finds or makes it")
    if config.seed_root is not None:
        require_inputs(config, rules_of(config))
    if not collects(config) and seeds_of_seed_data(config) is None:
        where += "; its initial states are unknown, policies may be measured on some of them"
    return Check(name="inputs", level="ok", detail=f"{config.seed_dataset}: {where}")
