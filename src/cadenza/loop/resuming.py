"""What a run was started with, for whoever goes on with it, from whatever folder.

Place:  the folder of a run stays where it was begun. Its state and jobs name their files by
        absolute paths, so `require_place` refuses a run whose folder was moved or copied.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import LoopConfig
from cadenza.loop.config_backends import LEAGENTS_RULES
from cadenza.loop.contracts.records import CheckpointRecord
from cadenza.loop.orchestrator.checkpoints import require_intact
from cadenza.loop.rules_in_force import rules_file
from cadenza.loop.store.jobstore import JobStore

#: Job store in the folder of all runs.
STORE_FILE: Final = "cadenza.db"


def stored_config(store: JobStore, run_id: str) -> LoopConfig:
    """Return the configuration of a run, without the passwords that its ``store`` named.

    Raises:
        UnknownRowError: There is no such run.
        ConfigurationError: This version of the package does not take it any more.
        IntegrityError: It is damaged.
    """
    source = f"configuration of run {run_id!r}"
    row = store.get_run(run_id)
    document = parse_json_object(row["config_json"].encode(), source=source)
    if document.get("constitution") == str(LEAGENTS_RULES):
        # Written by a version that took the shipped rules where this file was not; the digest of a
        # run's rules is compared before it goes on, so nothing laxer can slip in.
        del document["constitution"]
    return LoopConfig.from_document(document, source=source)


def store_location(config: LoopConfig) -> Path | str:
    """Return where the job store is: a path, or an SQLAlchemy URL."""
    return config.store or (config.workdir / STORE_FILE).absolute()


def anchored(config: LoopConfig) -> LoopConfig:
    """Return ``config`` with absolute paths to what a run reads and to its pages.

    A run that is gone on with from another current folder then finds them. ``workdir`` stays as it
    is, for commands that are printed; who resumes a run names that folder again, however they write
    it, and the store keeps its absolute path. Names that are no path here, of a hub for example,
    stay too. An earlier run as ``reference`` becomes the path of the policy that it blessed.

    Raises:
        ConfigurationError: That run blessed nothing.
        IntegrityError: Its policy was changed since.
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
    """Return ``config`` as it is stored: with absolute paths of its rules and of all runs.

    Args:
        config: Configuration of the run.
        folder: Folder of the run itself.
    """
    return config.model_copy(
        update={"workdir": folder.absolute().parent, "constitution": rules_file(config)}
    )


def require_place(run_id: str, stored: Mapping[str, Any], folder: Path) -> None:
    """Raise unless a run is gone on with in the folder that it began in.

    Args:
        run_id: The run.
        stored: Its configuration as stored; one of an older version may not name an absolute
            folder, and then nothing is known.
        folder: Folder of the run as it is now.

    Raises:
        ConfigurationError: It is another one, so that the files that the run names are not in it.
    """
    begun, now = Path(str(stored.get("workdir", ""))), folder.absolute().parent
    if not begun.is_absolute() or begun == now or begun.resolve() == now.resolve():
        return
    raise ConfigurationError(
        f"run {run_id!r}: expected its folder in {begun}, where it began and which its files are "
        f"named by, got {now}; move the folder of runs back there and resume it with "
        f"`--workdir {begun}`. Nothing was changed."
    )
