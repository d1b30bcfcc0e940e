"""What a configuration will ask of the constitution, asked before a run exists.

Every command is judged again, as it stands, before it runs. This look ahead spares a run that would
be refused in its third cycle, at the look that is the first too large, or at the first escalation,
to weights that the rules do not allow.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cadenza.loop.agents.improve_agent import attempts_for
from cadenza.loop.backends.base import (
    Backend,
    EvalRequest,
    HarvestRequest,
    JobPlan,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, ConstitutionError, Verdict
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef
from cadenza.loop.orchestrator.proposer_schedule import DeterministicProposer
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan

#: Stands for the folder of a run that does not exist yet.
_FOLDER: Final = Path("/run")


def require_commands_allowed(config: LoopConfig, rules: Constitution, backend: Backend) -> None:
    """Raise if ``rules`` refuse commands as ``backend`` will give them, whatever their paths.

    Raises:
        ConstitutionError: They do; the reason names the key.
        ConfigurationError: The back end itself refuses a further argument.
    """
    for keys, plan in _plans(config, backend):
        _require(keys, rules.check_command(plan.command))


def _plans(config: LoopConfig, backend: Backend) -> Iterator[tuple[str, JobPlan]]:
    """Yield one plan per kind of command, with the keys that it comes from."""
    root = config.seed_root
    if root is None and config.backend == "native":
        root = _FOLDER / "data"
    dataset = DatasetRef(repo_id=config.seed_dataset, root=None if root is None else str(root))
    for number, rung in enumerate(config.policy_ladder):
        request = TrainRequest(
            cycle=0,
            rung=rung.name,
            init=rung.init,
            dataset=dataset,
            steps=config.train.steps,
            batch_size=config.train.batch_size,
            extra_args=config.train.extra_args,
            folder=_FOLDER / "train",
        )
        yield f"policy_ladder[{number}], train, seed_dataset", backend.plan_train(request)
    policy = CheckpointRecord(
        policy_type=config.policy_ladder[0].name, path=str(_FOLDER / "policy"), cycle=0
    )
    seeds = SeedRange(start=0, count=1)
    evaluation = EvalRequest(
        cycle=0,
        checkpoint=policy,
        seeds=seeds,
        batch_size=1,
        extra_args=config.eval.extra_args,
        folder=_FOLDER / "eval",
    )
    yield "eval", backend.plan_eval(evaluation)
    if config.improve.enabled:
        harvest = HarvestRequest(
            cycle=0,
            checkpoint=policy,
            episodes=1,
            seeds=seeds,
            repo_id="local/rollouts",
            device=config.improve.device,
            task_text=config.improve.task_text,
            extra_args=config.improve.extra_args,
            folder=_FOLDER / "harvest",
        )
        yield "eval, improve", backend.plan_harvest(harvest)


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
