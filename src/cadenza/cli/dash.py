"""`cadenza dash`: the dashboard of runs and results, in a browser."""

import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.loop_status import KNOWLEDGE, RUNS, Knowledge, StoreUrl, Workdir, open_store
from cadenza.cli.output import print_text, typed_exits
from cadenza.core.errors import ConfigurationError


def dash(
    workdir: Workdir = RUNS,
    knowledge: Knowledge = KNOWLEDGE,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 for a free one.")
    ] = 8321,
    store: StoreUrl = None,
    repo_root: Annotated[
        Path | None,
        typer.Option(
            "--repo-root",
            exists=True,
            file_okay=False,
            help="Git repository that holds the registration tags; by default the one around a "
            "bundle or this folder.",
            show_default=False,
        ),
    ] = None,
    allowed_signers: Annotated[
        Path | None,
        typer.Option(
            "--allowed-signers",
            exists=True,
            dir_okay=False,
            help="Keys that are trusted; by default the file allowed_signers of --repo-root or of "
            "this folder.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="File with the token that visitors must know; or set CADENZA_DASH_TOKEN.",
            show_default=False,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="Further name of this server, of a reverse proxy for example; may be repeated.",
            show_default=False,
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            help="Address or network of a reverse proxy whose X-Forwarded-For and -Proto are true; "
            "may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show runs and results in a browser, live; answer, stop and resume runs there."""
    with typed_exits(go_on="run the same command to start it again"):
        from cadenza.core.extras import load_extra

        load_extra("uvicorn")
        from cadenza.loop.errors import StoreError
        from cadenza.web import create_app
        from cadenza.web.security import read_token
        from cadenza.web.server import make_server

        if workdir.exists() and not workdir.is_dir():
            raise ConfigurationError(f"--workdir {workdir}: expected a folder of runs, got a file.")
        try:
            if store is not None or not workdir.is_dir():
                open_store(workdir, store).close()
        except StoreError as error:  # it may come, or come back
            sys.stderr.write(f"warning: {error}\n")
        token = read_token(host, token_file, is_shared=bool(allowed_host or proxy))
        app = create_app(
            workdir,
            knowledge,
            store=store,
            host=host,
            token=token,
            names=allowed_host or (),
            repo_root=repo_root,
            allowed_signers=allowed_signers,
        )
        listening = _listen(host, port)
        name = f"[{host}]" if ":" in host else host
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            print_text(f"dashboard: http://{name}:{listening.getsockname()[1]}/ (Ctrl-C to stop)")
            make_server(app, proxies=proxy or ()).run(sockets=[listening])
        print_text("dashboard stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; a `ConfigurationError` if the address is not free, or ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigurationError(
            f"--host {host} --port {port}: expected a free address of this machine, got "
            f"'{error}'; name another port, or 0 for any."
        ) from error
