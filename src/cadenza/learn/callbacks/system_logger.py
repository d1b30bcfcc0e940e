"""Memory and processor use of the training process."""

from typing import Final

from cadenza.core.extras import load_extra
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin

_BYTES_PER_MIB: Final = 2**20
#: Steps between two measurements.
_CYCLE: Final = 1_000


class SystemLogger(LoggingMixin, Callback):
    """Logs resident memory (MiB), its growth per step, and processor load (percent of one core)."""

    def __init__(self) -> None:
        super().__init__(cycle=_CYCLE)
        self._process = load_extra("psutil").Process()
        self._last: tuple[int, float] | None = None

    def end_cycle(self, bp_step: int) -> None:
        """Measure."""
        used_mib = self._process.memory_info().rss / _BYTES_PER_MIB
        self.log_scalar("system/ram_usage_mb", used_mib)
        if self._last is not None and bp_step > self._last[0]:
            step, before_mib = self._last
            growth = (used_mib - before_mib) / (bp_step - step)
            self.log_scalar("system/ram_usage_growth_mb_step", growth)
        self._last = (bp_step, used_mib)
        # The load since the last call; the first call has nothing to compare with and gives 0.
        self.log_scalar("system/cpu_load", self._process.cpu_percent())
