"""What a configuration names must be there, and must not be what policies are judged on.

Asked before a run exists, and by ``doctor`` and ``--dry-run``: a run would else end at its first
escalation for want of a file, or measure policies on the initial states that they learned from.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.backends.native_files import PartnerFilter, checkpoint_facts, seed_page
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.constitution.lerobot_programs import LIBERO_SUITES, suite_sizes
from cadenza.loop.contracts.records import CheckpointRecord, SeedRange
from cadenza.loop.orchestrator.proposal_bounds import attempts_within
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan
from cadenza.loop.orchestrator.training_seeds import seeds_of_seed_data
from cadenza.loop.seeds import BLOCK, SeedLedger

#: Beginnings of weights that are a path, whatever the back end; others may be names of a hub.
_PATHS: Final = ("/", ".", "~")
_RELATIVE: Final = "a relative path counts from the current folder"


def require_inputs(config: LoopConfig, rules: Constitution) -> None:
    """Raise unless what ``config`` names is there and fit to be judged on other initial states.

    Raises:
        ConfigurationError: A file or folder is missing, weights are of another rung or task, the
            seed dataset is none, or it has initial states that the run harvests from or measures
            policies on.
        IntegrityError: The seed dataset or weights are damaged.
    """
    require_present(config)
    require_fitting_weights(config)
    if config.backend == "native" and config.seed_root is not None:
        page = seed_page(config.seed_root)
        PartnerFilter(config.data.task_filter).within(page)
    _require_fresh_seeds(config, rules)


def require_present(config: LoopConfig) -> None:
    """Raise unless the files and folders that ``config`` names are there.

    Raises:
        ConfigurationError: Some are not; all of them are named.
    """
    missing = missing_inputs(config)
    if missing:
        raise ConfigurationError(f"{'; '.join(missing)}; correct the configuration.")


def require_fitting_weights(config: LoopConfig) -> None:
    """Raise unless weights that native training starts from are of their rung and of the task.

    LeRobot itself tells what it can load; its weights may also lie on a hub.

    Raises:
        ConfigurationError: They are of another, or no policy of `cadenza job train`.
        IntegrityError: They are damaged.
    """
    for key, path, rung in _named_weights(config) if config.backend == "native" else ():
        facts = checkpoint_facts(CheckpointRecord(policy_type="any", path=path, cycle=0))
        found = (facts.get("rung"), facts.get("task"))
        wanted = (rung or found[0], config.eval.env_type)
        if wanted != found:
            raise ConfigurationError(
                f"{key}: expected weights of the rung {wanted[0]!r} for eval.env_type "
                f"{wanted[1]!r}, got some of {found[0]!r} for {found[1]!r} in {path}; name others, "
                "or remove the key."
            )


def missing_inputs(config: LoopConfig) -> list[str]:
    """Return what ``config`` names and is not there, one sentence each: files, folders, a suite.

    Raises:
        ConfigurationError: ``data.instructions`` names no file of suites.
    """
    found = _undescribed_suite(config)
    root = config.seed_root
    if root is not None and not root.is_dir():
        found.append(f"seed_root: expected a folder, got none at {root.absolute()} ({_RELATIVE})")
    for key, path, _ in _named_weights(config):
        if not Path(path).exists() and (config.backend == "native" or path.startswith(_PATHS)):
            what = "weights, or a run of the store" if key == "reference" else "weights"
            found.append(
                f"{key}: expected {what}, got nothing at {Path(path).absolute()} ({_RELATIVE})"
            )
    return found


def _named_weights(config: LoopConfig) -> Iterator[tuple[str, str, str | None]]:
    """Yield the key, name and rung, if it must be of one, of all weights that ``config`` names."""
    for number, rung in enumerate(config.policy_ladder):
        if rung.init is not None:
            yield f"policy_ladder[{number}].init", rung.init, rung.name
    if config.reference not in (None, "none"):
        yield "reference", config.reference, None


def _undescribed_suite(config: LoopConfig) -> list[str]:
    """Return whether LeRobot's episodes shall be chosen by a suite that nobody describes."""
    data, path = config.data, config.data.instructions
    suite = data.task_filter or config.eval.task_suite
    if config.backend == "native" or (data.task_filter is None and (path is None or "," in suite)):
        return []
    known = LIBERO_SUITES if path is None else tuple(suite_sizes(path))
    if suite in known:
        return []
    key = "eval.task_suite" if data.task_filter is None else "data.task_filter"
    where = "without data.instructions" if path is None else f"which {path} describes"
    return [f"{key}: expected one of the suites {', '.join(known)}, {where}, got {suite!r}"]


def _require_fresh_seeds(config: LoopConfig, rules: Constitution) -> None:
    """Raise if the run would use initial states of its seed dataset in any of its cycles."""
    taken = {seeds.start // BLOCK: seeds for seeds in seeds_of_seed_data(config) or ()}
    for use, seeds in _planned(config, rules) if taken else ():
        other = taken.get(seeds.start // BLOCK)
        if other is not None and other.overlaps(seeds):
            raise ConfigurationError(
                f"seed_root: expected episodes from other initial states than the run uses to "
                f"{use}, seeds {seeds.start} to {seeds.start + seeds.count - 1}, got some from "
                f"{other.start} to {other.start + other.count - 1} in {config.seed_root}; set "
                "another seed in the configuration, or take another dataset."
            )


def _planned(config: LoopConfig, rules: Constitution) -> Iterator[tuple[str, SeedRange]]:
    """Yield the seeds of every cycle beside those that data is collected from, with their use."""
    ledger, improve = SeedLedger(config.seed), config.improve
    compared = SequentialPlan.of_run(config).sizes[-1]
    for cycle in range(config.budgets.max_cycles):
        yield f"judge policies in cycle {cycle}", ledger.range("compare", cycle, count=compared)
        if improve.enabled:
            attempts = attempts_within(rules, improve.episodes)
            yield f"harvest in cycle {cycle}", ledger.range("harvest", cycle, count=attempts)
        if improve.enabled and improve.adapt_steps:
            chosen = config.eval.n_episodes
            use = f"choose between candidates in cycle {cycle}"
            yield use, ledger.range("select", cycle, count=chosen)
