"""What a run was started with, for whoever goes on with it, from whatever folder."""

from pathlib import Path

from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import LoopConfig
from cadenza.loop.store.jobstore import JobStore


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
    return LoopConfig.from_document(document, source=source)


def anchored(config: LoopConfig) -> LoopConfig:
    """Return ``config`` with absolute paths to what a run reads and to its pages.

    A run that is gone on with from another folder then finds them; where runs are, whoever resumes
    one says anew. Names that are no path here, of a hub for example, stay.
    """
    ladder = tuple(
        rung.model_copy(update={"init": str(Path(rung.init).absolute())})
        if rung.init is not None and Path(rung.init).exists()
        else rung
        for rung in config.policy_ladder
    )
    rules, seed_root = config.constitution, config.seed_root
    root = config.knowledge.root.absolute()
    return config.model_copy(
        update={
            "policy_ladder": ladder,
            "constitution": rules.absolute() if rules is not None and rules.exists() else rules,
            "seed_root": None if seed_root is None else seed_root.absolute(),
            "knowledge": config.knowledge.model_copy(update={"root": root}),
        }
    )
