"""A run from a configuration: store, events, rules, back end, workers and controller, wired."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from cadenza.core.files import atomic_write_text, make_folder
from cadenza.core.shipped_configs import shipped_config
from cadenza.core.yaml_files import read_yaml
from cadenza.loop.agents import DataAgent, EvalAgent, ImproveAgent, KnowledgeAgent, TrainAgent
from cadenza.loop.backends.base import Backend, program_table
from cadenza.loop.config import JobsConfig, LoopConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.contracts.records import JobRunner
from cadenza.loop.events.bus import EventBus
from cadenza.loop.jobs.durable_runner import DurableRunner, Hosts, LocalHosts
from cadenza.loop.jobs.outcomes import JobProgress
from cadenza.loop.jobs.terms import StopCheck, never
from cadenza.loop.llm.adapter import make_llm
from cadenza.loop.llm.guard import GuardedLLM, RecordedLLM
from cadenza.loop.llm.protocol import LLMClient, NullLLM
from cadenza.loop.orchestrator.loop import JobsOpener, LoopController
from cadenza.loop.orchestrator.preflight import require_commands_allowed, require_ready
from cadenza.loop.orchestrator.proposer import (
    CuratedProposer,
    DeterministicProposer,
    LLMProposer,
    Proposer,
)
from cadenza.loop.orchestrator.steps import RunSession
from cadenza.loop.resuming import rules_of, store_location
from cadenza.loop.schedule import schedule_of
from cadenza.loop.state import RunSummary
from cadenza.loop.store.jobstore import JobStore

#: Event log in the folder of a run.
EVENTS_FILE: Final = "events.jsonl"

#: Room kept for the instructions of a prompt, characters; the longest are the proposer's.
_INSTRUCTION_CHARS: Final = 2000

#: Called every few seconds with the progress of a job.
ProgressListener = Callable[[JobProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopAssembly:
    """A run that is ready to start; subscribe to its ``bus`` for events."""

    run_id: str
    config: LoopConfig
    store: JobStore
    bus: EventBus
    controller: LoopController
    rules: Constitution

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return run_folder(self.config, self.run_id)

    def run(self) -> RunSummary:
        """Start or resume the run; errors as `LoopController.run`."""
        return self.controller.run(self.run_id, self.folder)

    def close(self) -> None:
        """Close the store and the log."""
        self.bus.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def new_run_id(config: LoopConfig) -> str:
    """Return an id that tells when the run began, UTC, and its name."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{config.run_name}"[:100]


def run_folder(config: LoopConfig, run_id: str) -> Path:
    """Return the folder of a run, absolute."""
    return (config.workdir / run_id).absolute()


def build_loop(
    config: LoopConfig,
    run_id: str,
    *,
    backend: Backend | None = None,
    open_jobs: JobsOpener | None = None,
    stop: StopCheck = never,
    on_progress: ProgressListener | None = None,
) -> LoopAssembly:
    """Return the run ``run_id`` of ``config``, new or to be resumed.

    ``backend`` None means the configuration's, and asks for what it reads; ``open_jobs`` makes the
    runner of the jobs, or None the configuration's. ``stop`` says whether the run is asked to stop,
    beside requests in the store; ``on_progress`` gets the progress of a job every few seconds.

    Raises:
        ConfigurationError: A part of the configuration does not fit, names what is not there, its
            rules for example, or a seed dataset with initial states that policies are measured on.
        ConstitutionError: The file of rules is malformed, or the rules refuse a number or a command
            that the configuration leads to.
        MissingExtraError: A package that the configuration needs is not installed.
        StoreError: The store cannot be opened.
    """
    if backend is None:
        rules, stack = require_ready(config, run_id)
    else:
        rules, stack = rules_of(config), backend
        require_commands_allowed(config, rules, stack)
    jobs = open_jobs or _jobs_opener(config, stack, on_progress)
    store = JobStore(store_location(config))
    bus = EventBus(run_folder(config, run_id) / EVENTS_FILE)

    def origin() -> str:  # the store keeps it, wherever it is moved
        return f"{run_id} {store.get_run(run_id)['created_at']!r}"

    try:
        llm = make_llm(config.llm)
        if not isinstance(llm, NullLLM):
            asked = GuardedLLM(llm, config.llm_calls, stop=lambda: controller.asked_to_stop())
            llm = RecordedLLM(asked, store.replies, lambda: controller.lease)
        parts: dict[str, Any] = {"backend": stack, "read_roots": read_roots(config)}
        task_filter = config.data.task_filter
        controller = LoopController(
            config,
            store,
            bus,
            DataAgent(bus, task_filter=task_filter, constitution=rules, **parts),
            TrainAgent(config.train, rules, bus, **parts),
            EvalAgent(config.eval, rules, bus, **parts),
            _proposer(config, run_id, bus, llm, schedule_of(config, rules)),
            _knowledge(config, bus, llm, origin),
            ImproveAgent(config.improve, config.eval, rules, bus, **parts),
            open_jobs=jobs,
            stop=stop,
        )
    except BaseException:
        store.close()
        raise
    return LoopAssembly(
        run_id=run_id, config=config, store=store, bus=bus, controller=controller, rules=rules
    )


def read_roots(config: LoopConfig) -> tuple[Path, ...]:
    """Return the folders outside the run's own that its commands may read."""
    named = [config.reference, *(rung.init for rung in config.policy_ladder)]
    roots = [path for path in map(Path, filter(None, named)) if path.exists()]  # others: of a hub
    roots += [path for path in (config.seed_root, config.data.instructions) if path is not None]
    return tuple(path.absolute() for path in roots)


def _jobs_opener(
    config: LoopConfig, backend: Backend, on_progress: ProgressListener | None
) -> JobsOpener:
    """Return what makes the runner that the configuration asks for."""
    programs = program_table(backend)

    def open_jobs(session: RunSession, stop: StopCheck) -> JobRunner:
        runner = DurableRunner(
            session.store,
            session.lease,
            config.jobs,
            programs,
            _hosts(config.jobs),
            budget=session.budget,
            stop=stop,
            on_progress=on_progress,
            on_incident=session.incidents.note,
        )
        runner.hosts.require_room(session.device)  # before any work is done
        return runner

    return open_jobs


def _hosts(config: JobsConfig) -> Hosts:
    """Return where jobs run."""
    if config.runner == "ray":
        from cadenza.loop.jobs.ray_runner import RayHosts

        return RayHosts(config.ray_address)
    if config.runner == "slurm":
        from cadenza.loop.jobs.slurm_runner import SlurmHosts

        return SlurmHosts(config.slurm)
    return LocalHosts()


def _prompt_chars(config: LoopConfig) -> int:
    """Return how long a prompt may be beside its instructions, characters."""
    return config.llm_calls.max_prompt_chars - _INSTRUCTION_CHARS


def _proposer(
    config: LoopConfig,
    run_id: str,
    bus: EventBus,
    llm: LLMClient,
    schedule: DeterministicProposer,
) -> Proposer:
    if not config.llm:
        return schedule
    root, curation = config.knowledge.root, config.curation
    more: dict[str, Any] = {"bus": bus, "run_id": run_id, "max_prompt_chars": _prompt_chars(config)}
    if curation.enabled:
        more["max_tokens"] = curation.max_tokens
        return CuratedProposer(llm, root, schedule, config.data, curation.candidates, **more)
    more["max_tokens"] = config.llm_calls.max_reply_tokens
    return LLMProposer(llm, root, schedule, **more)


def _knowledge(
    config: LoopConfig, bus: EventBus, llm: LLMClient, origin: Callable[[], str]
) -> KnowledgeAgent | None:
    if not config.knowledge.enabled:
        return None
    return KnowledgeAgent(
        config.knowledge.root,
        bus,
        llm,
        max_prompt_chars=_prompt_chars(config),
        max_tokens=config.llm_calls.max_reply_tokens,
        seed=config.seed,
        origin=origin,
    )


#: Always the same, so that running the demonstration again continues it.
RUN_ID: Final = "demo"
#: The configuration, written into the folder of all runs for people to change.
CONFIG_FILE: Final = "demo.yaml"
_SHIPPED: Final = "loop/demo.yaml"


def write_demo_config(workdir: Path, knowledge: Path) -> LoopConfig:
    """Write the demonstration's configuration into ``workdir``, unless one is there; return it."""
    document: dict[str, Any] = dict(read_yaml(shipped_config(_SHIPPED)))
    document |= {"workdir": str(workdir), "knowledge": {"root": str(knowledge)}}
    path = workdir / CONFIG_FILE
    if not path.exists():  # people change it
        make_folder(workdir)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        atomic_write_text(path, f"# Run it with: cadenza loop run --config {path}\n{text}")
    config = LoopConfig.from_yaml(path)
    pages = config.knowledge.model_copy(update={"root": knowledge})
    return config.model_copy(update={"workdir": workdir, "knowledge": pages})
