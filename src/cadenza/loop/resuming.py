"""What a run needs to start or resume: its place, rules and first policy.

Place:     its state and jobs name their files by absolute paths, so its folder stays where it was.
Rules:     a file that is named and is not there is an error, never a reason to take other rules.
           Only LeAgents' default path gives way to the shipped rules where no file is.
Policies:  their digests are taken when they are made and checked whenever they are used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_file, tree_digest
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, load_constitution
from cadenza.loop.contracts.records import CheckpointRecord
from cadenza.loop.store.jobstore import JobStore

#: Job store in the folder of all runs.
STORE_FILE: Final = "cadenza.db"


def stored_config(store: JobStore, run_id: str) -> LoopConfig:
    """Return the configuration of a run, without the passwords that its ``store`` named."""
    source = f"configuration of run {run_id!r}"
    row = store.get_run(run_id)
    document = parse_json_object(row["config_json"].encode(), source=source)
    return LoopConfig.from_document(document, source=source)


def store_location(config: LoopConfig) -> Path | str:
    """Return where the job store is: a path, or an SQLAlchemy URL."""
    return config.store or (config.workdir / STORE_FILE).absolute()


def anchored(config: LoopConfig) -> LoopConfig:
    """Return ``config`` with absolute paths to what a run reads and to its pages.

    A run that is resumed from another current folder then finds them. ``workdir`` stays as it
    is, for commands that are printed; who resumes a run names that folder again, however they write
    it. Names that are no path here, of a hub for example, stay too. An earlier run as ``reference``
    becomes the path of the policy that it blessed.
    """
    ladder = tuple(
        rung.model_copy(update={"init": str(Path(rung.init).absolute())})
        if rung.init is not None and Path(rung.init).exists()
        else rung
        for rung in config.policy_ladder
    )
    seed_root = config.seed_root
    root = config.knowledge.root.absolute()
    return config.model_copy(
        update={
            "policy_ladder": ladder,
            "reference": _anchored_reference(config),
            "constitution": rules_file(config),
            "seed_root": None if seed_root is None else seed_root.absolute(),
            "knowledge": config.knowledge.model_copy(update={"root": root}),
        }
    )


def _anchored_reference(config: LoopConfig) -> str | None:
    name, location = config.reference, store_location(config)
    if name is None or Path(name).exists():
        return None if name is None else str(Path(name).absolute())
    if name == "none" or not (isinstance(location, str) or location.exists()):
        return name
    with JobStore.open_existing(location) as store:
        if not store.has_run(name):
            return name
        row = store.blessed_checkpoint(name)
    if row is None:
        raise ConfigurationError(
            f"reference: expected a run that blessed a policy, got {name!r}, which blessed none; "
            "name weights, or another run."
        )
    return require_intact(
        CheckpointRecord(
            policy_type=row["policy_type"],
            path=row["path"],
            cycle=row["cycle_idx"],
            sha256=row["sha256"],
        )
    ).path


def placed(config: LoopConfig, folder: Path) -> LoopConfig:
    """Return ``config`` as it is stored: with absolute paths of its rules and of all runs."""
    return config.model_copy(
        update={"workdir": folder.absolute().parent, "constitution": rules_file(config)}
    )


def require_place(run_id: str, stored: Mapping[str, Any], folder: Path) -> None:
    """Raise unless a run is resumed in the folder that it began in."""
    begun, now = Path(stored["workdir"]), folder.absolute().parent
    if begun == now or begun.resolve() == now.resolve():
        return
    raise ConfigurationError(
        f"run {run_id!r}: expected its folder in {begun}, where it began and which its files are "
        f"named by, got {now}; move the folder of runs back there and resume it with "
        f"`--workdir {begun}`. Nothing was changed."
    )


#: Characters of a digest that are shown to people.
_DIGEST_WIDTH: Final = 12


def rules_file(config: LoopConfig) -> Path | None:
    """Return the file of rules that ``config`` means, absolute; None for the shipped rules.

    A file that it names itself need not be there; see `rules_of`.
    """
    path = config.constitution
    named = "constitution" in config.model_fields_set
    return None if path is None or not (named or path.exists()) else path.absolute()


def rules_of(config: LoopConfig) -> Constitution:
    """Return the rules that a run of ``config`` obeys."""
    path = rules_file(config)
    if path is not None and not path.is_file():
        raise ConfigurationError(
            f"constitution: expected a file of rules, got none at {path} (a relative path counts "
            "from the current folder); name the file, or remove the key to obey the shipped rules. "
            "A run that began under it takes its new place from `cadenza loop resume --config`."
        )
    return load_constitution(path, config.data.instructions)


def shown_rules(path: Path | str | None, sha256: str | None) -> str:
    """Return how rules of a file, None for the shipped ones, are called before people."""
    digest = "" if sha256 is None else f", SHA-256 {sha256[:_DIGEST_WIDTH]}"
    return f"{path or 'the shipped ones'}{digest}"


def weights_digest(path: Path) -> str:
    """Return the digest of a file's bytes or a folder's files, or raise `IntegrityError`."""
    if path.is_file():
        return sha256_file(path)
    if not path.exists():
        raise IntegrityError(f"{path}: expected the weights of a policy, got nothing.")
    return tree_digest(path)


def require_intact(checkpoint: CheckpointRecord) -> CheckpointRecord:
    """Return ``checkpoint`` if its weights are those that were recorded.

    A checkpoint without a digest, as a dry run makes, has no weights to check.
    """
    if checkpoint.sha256 is None:
        return checkpoint
    found = weights_digest(Path(checkpoint.path))
    if found != checkpoint.sha256:
        raise IntegrityError(
            f"{checkpoint.path}: expected the weights of cycle {checkpoint.cycle} with SHA-256 "
            f"{checkpoint.sha256}, got {found}, so they were changed; restore them."
        )
    return checkpoint


def initial_references(config: LoopConfig) -> tuple[CheckpointRecord, ...]:
    """Return the policies that a run stands on before its first cycle, different ones.

    A run may only bless what is shown to be better than the best of them: the weights on this
    machine that rungs start from, or the one that ``reference`` names. Names of a hub mostly mean
    base models that never learned the task, so they count only there.
    """
    first, named = config.policy_ladder[0], config.reference
    given = [(one.name, one.init) for one in config.policy_ladder if one.init is not None]
    if named is not None:
        given = [] if named == "none" else [(first.name, named)]
    found: dict[str, CheckpointRecord] = {}
    for kind, name in given:
        path = Path(name)
        if path.exists():
            digest = weights_digest(path)
            found.setdefault(
                digest,
                CheckpointRecord(
                    policy_type=_told_type(path) or kind,
                    path=str(path.absolute()),
                    cycle=-1,
                    blessed=True,
                    sha256=digest,
                ),
            )
        elif named is not None:
            found[name] = CheckpointRecord(policy_type=kind, path=name, cycle=-1, blessed=True)
    return tuple(found.values())


def _told_type(path: Path) -> str | None:
    """Return the policy type that weights name themselves: ours beside them, LeRobot's in them."""
    told = path / "config.json" if path.is_dir() else path.with_name(f"{path.name}.json")
    if not told.is_file():
        return None
    facts: dict[str, Any] = parse_json_object(told.read_bytes(), source=str(told))
    extra: Any = facts.get("extra")
    named: Any = facts.get("type") if path.is_dir() else extra and extra.get("rung")
    return named if isinstance(named, str) else None
