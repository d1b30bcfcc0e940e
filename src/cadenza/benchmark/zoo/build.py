"""From a configuration to a zoo: jobs side by side, then one sealed manifest.

Killed at any point, the same call with ``resume`` goes on and ends with the same bytes.

Two families are free: the task's scripted partners, their options drawn from declared ranges, so a
learned population has to beat them. ``scripted`` varies how partners behave, ``physical`` also the
bodies they act with: `cadenza.partners.varied_body`. Draws follow the sorted option names, uniform,
rounded to four decimals or to whole numbers, from one stream for each member.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import cadenza
from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.executor import Job, RunnerFactory, default_workers
from cadenza.benchmark.output_folder import OutputMode, claim, open_output_folder
from cadenza.benchmark.ray_executor import RayCluster, dispatch, free_actors
from cadenza.benchmark.zoo.config import UNTRAINED, ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.jobs import (
    JOBS_FOLDER,
    REQUEST_NAME,
    WORK_FOLDER,
    ZooJobRunner,
    finished_members,
    job_keys,
    rollouts_of,
)
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import remove_temporaries
from cadenza.core.progress import ProgressReport
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.seeding import derive_substream
from cadenza.core.signals import ends_on_signals
from cadenza.partners.foraging import FORAGERS
from cadenza.partners.varied_body import INNER, VARIED_BODY
from cadenza.partners.zoo_manifest import (
    MEMBERS_FOLDER,
    ZooManifest,
    ZooMember,
    write_manifest,
)

#: Option to its range; one that a comma splits, to the range of each part.
Box = Mapping[str, tuple[float, float]]

#: Classes of each task and the ranges of their options, in the options' units.
RANGES: Final[Mapping[str, Mapping[str, Box]]] = {
    "crossing": {
        "crossing_goal_seeker": {
            "max_speed": (0.4, 1.6),
            "position_gain": (0.3, 1.2),
            "velocity_gain": (1.5, 4.0),
        },
        "crossing_wanderer": {"max_speed": (0.3, 1.2), "knot_interval": (0.25, 1.5)},
        "crossing_late_braker": {"max_acceleration": (0.2, 0.5)},
        "crossing_chaser": {"max_acceleration": (0.2, 0.5)},
        "crossing_stationary": {},
    },
    "mpe_cooperative_push": {
        "scripted_heuristic": {
            "target_xy": (-0.8, 0.8),
            "gain": (0.5, 3.0),
            "max_speed": (0.3, 1.0),
        }
    },
    "foraging": {name: {} for name in FORAGERS},
    # These draw speed, delay, path, gain and lag anew for every episode.
    "cocarry_mj": {"cocarry_leader": {}, "cocarry_shared": {}, "cocarry_follower": {}},
    "handover_mj": {"handover_presenter": {}, "handover_biased": {}, "handover_late": {}},
}
#: Tasks of choices, which have no size that a body could cut.
_CHOOSING: Final = frozenset({"foraging"})
#: How bodies vary: control rate, packet loss, delay and action limits.
BODIES: Final[Box] = {
    "hold_steps": (1, 4),
    "loss": (0.0, 0.4),
    "delay_steps": (0, 5),
    "reach": (0.5, 1.0),
}
#: Options that hold a point, "x,y".
_POINTS: Final = frozenset({"target_xy"})
#: Options that hold a whole number, both ends of the range included.
_WHOLE: Final = frozenset({"hold_steps", "delay_steps"})


def draw_options(box: Box, name: str, *, seed: int) -> dict[str, str]:
    """Return one value per option of ``box``, from the stream ``zoo.scripted.<name>``."""
    rng = derive_substream(f"zoo.scripted.{name}", root_seed=seed).default_rng()

    def drawn(key: str) -> str:
        low, high = box[key]
        if key in _WHOLE:
            return str(rng.integers(int(low), int(high) + 1))
        return repr(round(float(rng.uniform(low, high)), 4))

    return {key: ",".join(drawn(key) for _ in range(1 + (key in _POINTS))) for key in sorted(box)}


def scripted_members(config: ZooConfig) -> Sequence[ZooMember]:
    """Return the population of ``scripted`` or ``physical``, classes in turn."""
    physical = config.method == "physical"
    known = {task: own for task, own in RANGES.items() if not (physical and task in _CHOOSING)}
    ranges = known.get(config.task, {})
    # A class without options is one partner, so it comes once; the others go on in turn.
    varied = [name for name in ranges if physical or ranges[name]]
    if not ranges or (not varied and config.population > len(ranges)):
        raise ConfigurationError(
            f"{config.method}: expected a task among {', '.join(known)} and a population of at "
            f"most {len(ranges)}, got {config.task!r} and {config.population}; declare ranges for "
            "its partners in cadenza.benchmark.zoo.build.RANGES."
        )
    classes = list(ranges)
    classes += [varied[k % len(varied)] for k in range(config.population - len(classes))]
    members: list[ZooMember] = []
    for index, class_name in enumerate(classes[: config.population]):
        name = f"{config.method}-s{config.seed}-{index}"
        options = draw_options(ranges[class_name], name, seed=config.seed)
        if physical:
            nested = {f"{INNER}{key}": text for key, text in options.items()}
            body = draw_options(BODIES, f"{name}.body", seed=config.seed)
            options = {"partner": class_name, **nested, **body}
        members.append(
            ZooMember(
                name=name,
                family=config.method,
                class_name=VARIED_BODY if physical else class_name,
                options=options,
                seed=config.seed,
            )
        )
    return members


_REQUEST_KIND: Final = "zoo request"


@ends_on_signals
def train_zoo(
    config: ZooConfig,
    *,
    out: Path,
    workers: int | None = None,
    cluster: RayCluster | None = None,
    mode: OutputMode = "new",
    progress: ProgressReport | None = None,
) -> ZooManifest:
    """Train a population and seal it.

    Args:
        config: Settings.
        out: Folder of the zoo.
        workers: Processes, among which policies that train alone are divided; by default one per
            core, or as many as the cluster has room for. They change no byte.
        cluster: Ray cluster whose nodes all see ``out``; None for this machine.
        mode: ``"resume"`` continues the same request, ``"overwrite"`` starts over.
        progress: Called with (rollouts done, rollouts in all, the last job); on Ray when one ends.

    Raises:
        ConfigurationError: A setting or the folder does not fit.
        CadenzaError: A job failed; finished jobs are kept.
        StorageError: The file system refused; finished jobs are kept.
    """
    config.spec.complete_options(config.options)
    with open_output_folder(out, mode=mode):
        folder = out.resolve()
        code = code_digest(config.spec, ())
        origin = store_request(
            folder,
            {"config": config.facts()},
            code,
            kind=_REQUEST_KIND,
            seed=config.seed,
        )
        keys = job_keys(config)
        factory = partial(
            ZooJobRunner,
            folder=folder,
            config=config,
            task=config.spec,
            origin=origin,
            modules=(events_of(config.task).count.__module__,),
        )
        do_jobs(
            folder,
            {key: finished_members(folder, key) is not None for key in keys},
            factory,
            label="zoo job",
            rollouts=rollouts_of(config),
            workers=workers,
            cluster=cluster,
            progress=progress,
        )
        remove_temporaries(folder / MEMBERS_FOLDER)
        members: list[ZooMember] = (
            list(scripted_members(config)) if config.method in UNTRAINED else []
        )
        for key in job_keys(config):
            members += finished_members(folder, key) or []
        manifest = config.manifest(
            members,
            code_sha256=code,
            package_version=cadenza.__version__,
            requests=[config.facts()],
        )
        write_manifest(folder, manifest)
    return manifest


def do_jobs(
    folder: Path,
    jobs: Mapping[str, bool],
    factory: RunnerFactory,
    *,
    label: str,
    rollouts: int,
    workers: int | None,
    cluster: RayCluster | None,
    progress: ProgressReport | None,
) -> None:
    """Do the jobs that are not finished yet, and forget what was stored of unfinished ones.

    They go in as many batches of equal size as there are processes, each trained as one stack.

    Args:
        folder: Folder of the zoo or of the best responses.
        jobs: Keys, and whether each is finished.
        factory: Builds the runner of one process.
        label: What a job is called, before its key.
        rollouts: Of one job.
        workers: See `train_zoo`.
        cluster: See `train_zoo`.
        progress: See `train_zoo`.
    """
    missing = [key for key, finished in jobs.items() if not finished]
    before = rollouts * (len(jobs) - len(missing))
    size = workers
    if size is None:
        size = free_actors(cluster) if cluster is not None and missing else default_workers()

    def report(done: int, _: int, last: str) -> None:
        if progress is not None:
            progress(before + done, rollouts * len(jobs), last)

    report(0, 0, "")
    each = max(1, -(-len(missing) // size))  # jobs of a batch
    dispatch(
        [
            Job(key=key, label=f"{label} {key}", batch=str(place // each))
            for place, key in enumerate(missing)
        ],
        factory,
        work=rollouts,
        workers=size,
        cluster=cluster,
        report=report,
    )
    shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)
    remove_temporaries(folder / JOBS_FOLDER)


def store_request(
    folder: Path, asked: Mapping[str, Any], code: str, *, kind: str, seed: int
) -> tuple[str, str]:
    """Store what was asked for, or check that it is the same; return commit and project digest.

    Raises:
        ConfigurationError: The folder is of another request, or of other code.
    """

    def facts() -> dict[str, Any]:
        context = compute_run_metadata(seed=seed, run_kind="zoo", repo_root=None)
        return {"git_sha": context.git_sha, "pyproject_hash": context.pyproject_hash}

    asked = {**asked, "code_sha256": code}
    stored = claim(folder / REQUEST_NAME, asked, kind=kind, notes=facts)
    return stored["git_sha"], stored["pyproject_hash"]
