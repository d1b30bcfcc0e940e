"""Where a loop command finds its runs: options, store, completion of run ids."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

if TYPE_CHECKING:
    from cadenza.loop.store.jobstore import JobStore

#: File of the job store below the folder of all runs.
STORE_FILE: Final = "cadenza.db"


def complete_run_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of known runs that begin with ``incomplete``, for the shell."""
    from cadenza.core.errors import CadenzaError

    workdir = Path(context.params.get("workdir") or "runs")
    try:
        with open_store(workdir, context.params.get("store")) as store:
            ids = [row["id"] for row in store.list_runs()]
    except (CadenzaError, OSError):  # a completion has nobody to tell
        return []
    return [run_id for run_id in reversed(ids) if run_id.startswith(incomplete)]


RunId: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN_ID", help="Id of the run.", autocompletion=complete_run_ids, show_default=False
    ),
]
Workdir: TypeAlias = Annotated[
    Path, typer.Option("--workdir", "-w", help="Folder of all runs.", is_eager=True)
]
StoreUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="CADENZA_STORE",
        help="SQLAlchemy URL of the job store, if it is not WORKDIR/cadenza.db. Its password may "
        "be in PGPASSWORD or ~/.pgpass instead.",
        show_default=False,
        is_eager=True,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Neither events nor progress.")
]


def store_location(workdir: Path, store: str | None) -> Path | str:
    """Return where the job store is."""
    return store or workdir / STORE_FILE


def open_store(workdir: Path, store: str | None, *, upgrade: bool = False) -> "JobStore":
    """Open the job store; never creates one.

    Args:
        workdir: Folder of all runs.
        store: URL of the store; None for the file in ``workdir``.
        upgrade: Bring one of an older version up to date, instead of using it as it is.

    Raises:
        StoreNotFoundError: There is none.
        LeaseHeldError: It is to be brought up to date while a run is at work.
        StoreError: It does not answer, is damaged or of another version.
    """
    from cadenza.loop.errors import StoreOutdatedError
    from cadenza.loop.store.jobstore import JobStore

    location = store_location(workdir, store)
    try:
        opened = JobStore.open_existing(location)
    except StoreOutdatedError:
        if not upgrade:
            raise
        return JobStore(location)
    if opened.is_up_to_date or not upgrade:
        return opened
    opened.close()
    return JobStore(location)


def command(verb: str, run_id: str | None, workdir: Path, store: str | None, *more: str) -> str:
    """Return a command line to copy: ``cadenza loop <verb> <run_id>`` with the same store.

    Without a run it is about all of them. A password in the store's URL is hidden; the
    command then takes it from where libpq does.
    """
    import os
    import shlex

    words = ["cadenza", "loop", verb, *([] if run_id is None else [run_id])]
    if workdir != Path("runs"):
        words += ["--workdir", str(workdir)]
    if store is not None and store != os.environ.get("CADENZA_STORE"):
        from cadenza.loop.store.database import shown

        words += ["--store", shown(store)]
    elif store is None and os.environ.get("CADENZA_STORE"):  # which the command would take
        words += ["--store", f"sqlite:///{(workdir / STORE_FILE).absolute()}"]
    return " ".join([shlex.join(words), *more])
