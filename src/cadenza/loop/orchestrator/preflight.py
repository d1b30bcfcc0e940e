"""What would end a run of a configuration later, asked before it exists.

Rules:   every command is judged again before it runs. This look ahead spares a run that would be
         refused in its third cycle, at its largest look, or at the first escalation.
Inputs:  what a configuration names must be there, and must not be what policies are judged on.
         ``doctor`` and ``--dry-run`` ask, too.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Final

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import require_room_for
from cadenza.loop.backends.base import Backend, dataset_info, make_backend
from cadenza.loop.backends.native import (
    PartnerFilter,
    checkpoint_facts,
    recorded_seeds,
    seed_page,
)
from cadenza.loop.config import LoopConfig, NotifyConfig, PolicyRung
from cadenza.loop.constitution import (
    Constitution,
    ConstitutionError,
    JobPlan,
    Verdict,
    load_constitution,
)
from cadenza.loop.constitution.suites import LIBERO_SUITES, suite_sizes
from cadenza.loop.constitution.typed_jobs import LEROBOT_JOBS, NATIVE_JOBS
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    EvalRequest,
    HarvestRequest,
    MergeRequest,
    Proposal,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.errors import ImproveError, StoreOutdatedError
from cadenza.loop.llm.adapter import make_llm
from cadenza.loop.orchestrator.comparison import episodes_per_job, most_episodes, tasks_of
from cadenza.loop.resuming import (
    initial_references,
    rules_file,
    rules_of,
    shown_rules,
    store_location,
)
from cadenza.loop.schedule import (
    BLOCK,
    MOST_LISTED,
    attempts_for,
    attempts_within,
    collects,
    hulls,
    schedule_of,
    seed_range,
)
from cadenza.loop.store.database import require_openable, shown, url_of
from cadenza.loop.store.jobstore import JobStore

#: Keys of the schedule.
_DATA: Final = "data.initial_episodes, data.growth, data.max_episodes"
#: Stands for the folder of a run that does not exist yet.
_FOLDER: Final = Path("/run")


def require_ready(
    config: LoopConfig, run_id: str, *, data_may_come: bool = False
) -> tuple[Constitution, Backend]:
    """Return rules and back end of a run; raise what would keep it from its first job.

    Nothing is made or changed. A `seed_root` that is not there is no matter if ``data_may_come``.

    Raises:
        CadenzaError: As `build_loop`.
    """
    checks = refusals(config, store_location(config), config.workdir / run_id)
    root = config.seed_root
    if data_may_come and root is not None and not root.is_dir():
        checks["inputs"] = lambda: _inputs_found(config.model_copy(update={"seed_root": None}))
    for check in checks.values():
        check()
    return rules_of(config), make_backend(config)


def refusals(
    config: LoopConfig,
    store: Path | str,
    folder: Path,
    *,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Callable[[], str]]:
    """Return what can refuse a run of ``config``, by name, in the order in which it does.

    A check returns what it found, or raises; ``store`` and ``folder`` are where the run would be.
    """

    def room() -> str:
        require_room_for(folder)
        if config.knowledge.enabled:
            require_room_for(config.knowledge.root)
        return str(folder)

    checks: dict[str, Callable[[], str]] = {
        "constitution": lambda: _rules_found(config),
        "inputs": lambda: _inputs_found(config),
        "back end": lambda: _back_end_found(config, environ),
        "store": lambda: store_found(store),
        "disk": room,
        "language model": lambda: type(make_llm(config.llm)).__name__,
        "notify": lambda: _hooks_found(config.notify),
    }
    if config.jobs.runner == "ray":
        from cadenza.loop.jobs.ray_runner import require_cluster

        checks["ray"] = lambda: require_cluster(config.jobs.ray_address, environ)
    elif config.jobs.runner == "slurm":
        from cadenza.loop.jobs.slurm_runner import require_slurm

        checks["slurm"] = require_slurm
    return checks


def _rules_found(config: LoopConfig) -> str:
    rules = rules_of(config)
    programs = len(rules.rules.allowed_programs or ())
    return f"{shown_rules(rules_file(config), rules.sha256)}, {programs} programs allowed"


def _inputs_found(config: LoopConfig) -> str:
    require_inputs(config, rules_of(config))
    where = str(config.seed_root or "the back end finds or makes it")
    if not collects(config) and seeds_of_seed_data(config) is None:
        where += "; its initial states are unknown, policies may be measured on some of them"
    return f"{config.seed_dataset}: {where}"


def _back_end_found(config: LoopConfig, environ: Mapping[str, str]) -> str:
    backend = make_backend(config, environ=environ)
    require_commands_allowed(config, rules_of(config), backend)
    return f"{backend.name}, its commands are allowed"


def _hooks_found(notify: NotifyConfig) -> str:
    told = [] if notify.webhook is None else [notify.model_dump()["webhook"]]
    if notify.command:
        program = notify.command[0]
        if which(program) is None:
            raise ConfigurationError(
                f"notify.command: expected a program, got none called {program!r}; name it by its "
                "whole path, and let it be executable."
            )
        told.append(program)
    return f"tells {' and '.join(told)}" if told else "nobody is told"


def store_found(location: Path | str) -> str:
    """Return how the store at a path or URL is; nothing in it changes.

    Raises:
        CadenzaError: It does not answer, is damaged or of a newer version, or has no room.
    """
    require_openable(location)
    url = url_of(location)
    file = Path(url.database or "")
    if url.get_backend_name() == "sqlite" and not file.is_file():
        return f"none yet; the first run makes {file.absolute()}"
    with suppress(StoreOutdatedError), JobStore.open_existing(location) as store:
        if store.is_up_to_date:
            runs = len(store.list_runs())
            return f"{shown(location)}: {runs} run{'' if runs == 1 else 's'}"
    return f"{shown(location)}: of an older version; the next run upgrades it"


def require_commands_allowed(config: LoopConfig, rules: Constitution, backend: Backend) -> None:
    """Raise if ``rules`` refuse a job of some cycle as ``backend`` will want it.

    Every kind of job is judged with the largest numbers that it can have, wherever its paths lie.

    Raises:
        ConstitutionError: They do; the reason names the keys.
        ConfigurationError: The back end itself refuses a setting.
    """
    improve, env_type = config.improve, config.eval.env_type
    trained = {"train.steps": config.train.steps}
    if improve.enabled and improve.adapt_steps:
        trained["improve.adapt_steps"] = improve.adapt_steps
    for key, steps in trained.items():  # a cap on epochs may make fewer of them at first
        with _explained(config, rules, key):
            rules.check_train(steps).require()
    with _explained(config, rules, "eval.env_type"):
        rules.check_environment(env_type).require()
    with _explained(config, rules, "eval.task_suite"):
        tasks_of(config)
    with _explained(config, rules, f"{_DATA} ({_last(config, rules)})"):
        _listable(config, rules).require()
    for keys, numbers, plan in _plans(config, rules, backend):
        with _explained(config, rules, keys, numbers):
            rules.clear(plan.job, None)


def _last(config: LoopConfig, rules: Constitution) -> str:
    """Return how many episodes the last cycle asks for."""
    last = config.budgets.max_cycles - 1
    return f"{schedule_of(config, rules).scheduled_episodes(last)} episodes in cycle {last}"


def _listable(config: LoopConfig, rules: Constitution) -> Verdict:
    """Return whether a command has room to name the episodes that a cycle chooses."""
    wanted = schedule_of(config, rules).scheduled_episodes(config.budgets.max_cycles - 1) or 0
    total = _total_episodes(config.seed_root)
    if collects(config) or wanted <= MOST_LISTED or (total is not None and total <= wanted):
        return Verdict(allowed=True)
    reason = f"expected at most {MOST_LISTED}, which a command has room to name, or all"
    return Verdict(allowed=False, rule="too_long", reason=reason)


def _plans(
    config: LoopConfig, rules: Constitution, backend: Backend
) -> Iterator[tuple[str, str, JobPlan]]:
    """Yield the largest job of each kind, with the keys that it and its numbers come from."""
    episodes = schedule_of(config, rules).scheduled_episodes(config.budgets.max_cycles - 1)
    proposal = Proposal(action="reuse_seed", dataset=config.seed_dataset, num_episodes=episodes)
    attempts = max(episodes or 1, attempts_for(episodes or 1))
    data = DataRequest(
        cycle=0,
        proposal=proposal,
        seeds=SeedRange(start=0, count=attempts),
        folder=_FOLDER / "data",
    )
    found = backend.plan_data(data)
    if found is not None:
        yield "seed_dataset, data", f"{_DATA} ({_last(config, rules)}, with failures)", found
    requests = [_training(config, rung) for rung in config.policy_ladder]
    for number, request in enumerate(requests):
        keys = f"policy_ladder[{number}], train, seed_dataset"
        yield keys, keys, backend.plan_train(request)
    policy = CheckpointRecord(
        policy_type=config.policy_ladder[0].name, path=str(_FOLDER / "policy"), cycle=0
    )
    largest, tasks = episodes_per_job(config), tasks_of(config)
    played = f"{largest} episodes{f' of {tasks} tasks' if tasks > 1 else ''}"
    evaluation = EvalRequest(
        cycle=0,
        checkpoint=policy,
        seeds=SeedRange(start=0, count=largest),
        batch_size=1,
        extra_args=config.eval.extra_args,
        folder=_FOLDER / "eval",
    )
    keys = f"eval.n_episodes, eval.episodes_per_job (a job of {played})"
    yield "eval", keys, backend.plan_eval(evaluation)
    for reference in initial_references(config):
        compared = evaluation.model_copy(update={"checkpoint": reference})
        yield "reference", keys, backend.plan_eval(compared)
    if config.improve.enabled:
        yield from _improvement_plans(config, backend, policy, requests[0])


def _improvement_plans(
    config: LoopConfig, backend: Backend, policy: CheckpointRecord, training: TrainRequest
) -> Iterator[tuple[str, str, JobPlan]]:
    """Yield the plans of harvest, adaptation and merge, with the keys that they come from."""
    improve = config.improve
    harvest = HarvestRequest(
        cycle=0,
        checkpoint=policy,
        episodes=improve.episodes,
        seeds=SeedRange(start=0, count=improve.episodes),  # further attempts are cut to the rules
        repo_id="local/rollouts",
        device=improve.device,
        task_text=improve.task_text,
        extra_args=improve.extra_args,
        folder=_FOLDER / "harvest",
    )
    yield "eval, improve", "improve.episodes", backend.plan_harvest(harvest)
    mix = DatasetRef(repo_id="local/rollouts", root=str(_FOLDER / "harvest" / "dataset"))
    if improve.adapt_steps:
        changes = {
            "init": policy.path,
            "mix": mix,
            "mix_ratio": improve.mix_ratio,
            "steps": improve.adapt_steps,
            "folder": _FOLDER / "adapt",
        }
        yield (
            "improve, train",
            "improve.adapt_steps",
            backend.plan_train(training.model_copy(update=changes)),
        )
    merge = MergeRequest(sources=(mix, mix), repo_id="local/mix", folder=_FOLDER / "merge")
    with suppress(ImproveError):  # a back end that reads its sources first: none are there yet
        yield "improve", "improve", backend.plan_merge(merge)


def _training(config: LoopConfig, rung: PolicyRung) -> TrainRequest:
    root = config.seed_root
    if root is None and config.backend == "native":
        root = _FOLDER / "data"
    return TrainRequest(
        cycle=0,
        rung=rung.name,
        init=rung.init,
        dataset=DatasetRef(repo_id=config.seed_dataset, root=None if root is None else str(root)),
        steps=config.train.steps,
        batch_size=config.train.batch_size,
        extra_args=config.train.extra_args,
        folder=_FOLDER / "train",
    )


def _total_episodes(root: Path | None) -> int | None:
    """Return the episodes of the dataset in a folder; None where nobody knows."""
    if root is None:
        return None
    try:
        found = dataset_info(root).get("total_episodes")
    except (ConfigurationError, IntegrityError):
        return None
    return found if type(found) is int else None


@contextmanager
def _explained(
    config: LoopConfig, rules: Constitution, keys: str, numbers: str = ""
) -> Generator[None]:
    """Tell, with a refusal in the block, the keys that it comes from, and what to do.

    ``numbers`` are those of the limits, if they are others.
    """
    try:
        yield
    except ConstitutionError as error:
        verdict = error.verdict
        named = numbers if numbers and str(verdict.rule).startswith("max_") else keys
        remedy = "change the configuration or the rules"
        lacking = lines_to_add(config, rules)
        if lacking:
            remedy += (
                "; what the configuration needs and the rules do not mention is refused, too: add "
                f"`{'`, `'.join(lacking)}`"
            )
        told = replace(verdict, reason=f"{named}: {verdict.reason}; {remedy}")
        raise ConstitutionError(told) from error


def lines_to_add(config: LoopConfig, rules: Constitution) -> list[str]:
    """Return the lines, in YAML, that a file without rules that ``config`` needs gets.

    A file of LeAgents has five rules and allows what it does not mention; here that is refused, and
    all lines are told with the first refusal. Lists allow what the configuration names; limits are
    those of the shipped rules.
    """
    shipped, lerobot = load_constitution(None).rules, config.backend == "lerobot"
    programs = [job.WORDS[0] for job in (LEROBOT_JOBS if lerobot else NATIVE_JOBS)]
    needed: dict[str, list[str] | int | None] = {
        "allowed_programs": list(dict.fromkeys(programs)),
        "allowed_env_types": [config.eval.env_type],
        "max_train_steps": shipped.max_train_steps,
        "max_eval_episodes": shipped.max_eval_episodes,
    }
    if collects(config) or config.improve.enabled:
        needed["max_collect_episodes"] = shipped.max_collect_episodes
    if lerobot:
        weights = [rung.init for rung in config.policy_ladder if rung.init]
        needed["allowed_hub_policies"] = [name for name in weights if not Path(name).exists()]
    if lerobot and config.seed_root is None and not config.seed_dataset.startswith("local/"):
        needed["allowed_hub_datasets"] = [config.seed_dataset]
    return [
        f"{name}: [{', '.join(found)}]" if isinstance(found, list) else f"{name}: {found}"
        for name, found in needed.items()
        if found and name not in rules.rules.model_fields_set
    ]


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
    missing = missing_inputs(config)
    if missing:
        raise ConfigurationError(f"{'; '.join(missing)}; correct the configuration.")
    _require_fitting_weights(config)
    if config.backend == "native" and config.seed_root is not None:
        page = seed_page(config.seed_root)
        PartnerFilter(config.data.task_filter).within(page)
    _require_fresh_seeds(config, rules)


def _require_fitting_weights(config: LoopConfig) -> None:
    """Raise unless weights that native training starts from are of their rung and of the task.

    LeRobot itself tells what it can load; its weights may also lie on a hub.
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
    """Return what ``config`` names and is not there, one sentence each."""
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
    """Return whether a suite without a description is to choose LeRobot's episodes."""
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


def seeds_of_seed_data(config: LoopConfig) -> tuple[SeedRange, ...] | None:
    """Return ranges with the initial states of the seed dataset; None if nobody knows them."""
    if config.backend != "native" or config.seed_root is None:
        return None  # LeRobot's datasets do not say how their episodes began
    seeds = recorded_seeds(config.seed_root)
    return None if seeds is None else hulls(seeds)


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
    root, improve = config.seed, config.improve
    compared = most_episodes(config)
    several = len(initial_references(config)) > 1
    for cycle in range(config.budgets.max_cycles):
        yield f"judge policies in cycle {cycle}", seed_range(root, "compare", cycle, count=compared)
        if improve.enabled:
            attempts = attempts_within(rules, improve.episodes)
            yield f"harvest in cycle {cycle}", seed_range(root, "harvest", cycle, count=attempts)
        if cycle == 0 and several:
            use, count = "choose its first reference", config.eval.n_episodes
            yield use, seed_range(root, "select", cycle, count=count)
        if improve.enabled and improve.adapt_steps:
            chosen = config.eval.n_episodes
            use = f"choose between candidates in cycle {cycle}"
            yield use, seed_range(root, "select", cycle, count=chosen)
