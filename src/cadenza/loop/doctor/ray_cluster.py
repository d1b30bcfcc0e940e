"""Ray, for configurations whose jobs run on a cluster: is it installed, does its address answer."""

import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from urllib.parse import urlsplit

from cadenza.loop.config import LoopConfig
from cadenza.loop.doctor.check import Check

#: Longest time the cluster gets to answer, s.
_TIMEOUT_S: Final = 5.0
#: Addresses that name no server: of a cluster that runs here, or one that is started.
_HERE: Final = ("auto", "local")


def ray_check(config: LoopConfig, environ: Mapping[str, str]) -> Check:
    """Return whether jobs can be given to Ray; nothing is started.

    Args:
        config: Configuration whose jobs run on Ray.
        environ: Environment variables.
    """
    try:
        release = version("ray")
    except PackageNotFoundError:
        return Check(
            name="ray",
            level="fail",
            detail="jobs.runner is ray, which is not installed",
            fix="install 'cadenza[ray]', or set jobs.runner: local",
        )
    address = config.jobs.ray_address or environ.get("RAY_ADDRESS")
    if not address:
        where = "the cluster of this machine, or one that is started for the run and ends with it"
        return Check(name="ray", level="ok", detail=f"{release}; {where}")
    refusal = None if address in _HERE else _refusal(address)
    if refusal is None:
        return Check(name="ray", level="ok", detail=f"{release}; {address}")
    return Check(
        name="ray",
        level="fail",
        detail=f"{release}; {address}: {refusal}",
        fix="start the cluster, or correct jobs.ray_address (RAY_ADDRESS where that is not set)",
    )


def _refusal(address: str) -> str | None:
    """Return why nothing can be asked at an address; None if somebody listens there."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        return "expected host:port"
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError as error:
        return f"nobody answers ({error})"
    return None
