"""Jobs as processes of this machine."""

from cadenza.loop.config import JobsConfig
from cadenza.loop.jobs.durable_runner import DurableRunner
from cadenza.loop.jobs.hosts import LocalHosts


class LocalJobRunner(DurableRunner):
    """Runs each attempt in a host process of this machine."""

    @staticmethod
    def open_hosts(config: JobsConfig) -> LocalHosts:  # noqa: ARG004 - one machine, no choice
        """Return this machine."""
        return LocalHosts()
