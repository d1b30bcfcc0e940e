"""What a run was started with, for whoever goes on with it."""

from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import LoopConfig
from cadenza.loop.store.jobstore import JobStore


def stored_config(store: JobStore, run_id: str) -> LoopConfig:
    """Return the configuration of a run.

    Raises:
        UnknownRowError: There is no such run.
        ConfigurationError: This version of the package does not take it any more.
        IntegrityError: It is damaged.
    """
    source = f"configuration of run {run_id!r}"
    row = store.get_run(run_id)
    document = parse_json_object(row["config_json"].encode(), source=source)
    return LoopConfig.from_document(document, source=source)
