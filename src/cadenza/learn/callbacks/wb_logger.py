"""A logger for Weights & Biases; importing this module needs the ``wandb`` extra."""

from collections.abc import Mapping, Sequence
from typing import Any

from cadenza.core.errors import ConfigurationKeyError, MissingExtraError, PreconditionError, refuse
from cadenza.learn.callbacks.logging import (
    PullingLogger,
    histogram_values,
    image_values,
    last_scalars,
    video_values,
    window_values,
    with_suffix,
)
from cadenza.learn.callbacks.logging_mixin import LoggingMixin

try:
    import wandb as _wandb
except ImportError as error:
    missing = MissingExtraError("enable the optional `wandb` feature to use the WBLogger")
    missing.add_note("Install it with: pip install 'cadenza[wandb]'")
    raise missing from error

wandb: Any = _wandb

_PROJECT = "wandb_project"
_RUN = "wandb_run"
_ID = "wandb_id"


class WBLogger(PullingLogger):
    """Sends what objects log to Weights & Biases, every ``log_interval`` steps."""

    def __init__(
        self, callbacks: Sequence[LoggingMixin], config: Mapping[str, Any], log_interval: int
    ) -> None:
        """Start a run that ``wandb_project`` and ``wandb_run`` of ``config`` name.

        ``wandb_id`` identifies it: if the project has a run of this id, that run goes on. All else
        is stored as the run's configuration.

        Raises:
            ConfigurationKeyError: One of the two names is missing.
            PreconditionError: This process already has a run.
        """
        super().__init__(callbacks, log_interval)
        absent = [key for key in (_PROJECT, _RUN) if key not in config]
        if absent:
            expected, got = f"a configuration with {_PROJECT!r} and {_RUN!r}", sorted(config)
            refuse(
                ConfigurationKeyError, "WBLogger", expected=expected, got=got, do=f"add {absent}"
            )
        if wandb.run is not None:
            got, advice = repr(wandb.run.name), "call wandb.finish() or use one logger"
            refuse(PreconditionError, "WBLogger", expected="no active run", got=got, do=advice)
        self._wandb_run: Any = wandb.init(
            project=config[_PROJECT],
            name=config[_RUN],
            id=config.get(_ID),
            resume=None if config.get(_ID) is None else "allow",
            config={k: v for k, v in config.items() if k not in (_PROJECT, _RUN, _ID)},
        )

    def end_cycle(self, bp_step: int, bp_samples: int) -> None:
        """Send everything as one record."""
        logs = self._loggables
        record: dict[str, Any] = dict((*last_scalars(logs), *window_values(logs)))
        record |= {key: wandb.Image(image) for key, image in image_values(logs)}
        record |= {key: wandb.Video(frames, fps=rate) for key, frames, rate in video_values(logs)}
        record |= {key: wandb.Histogram(values) for key, values in histogram_values(logs)}
        record = {with_suffix(key, "bp_step"): value for key, value in record.items()}
        rates = self.rates(bp_step, bp_samples)
        self._wandb_run.log({**record, **rates, "log/bp_step": bp_step})

    def end_training(self) -> None:
        """Finish the run."""
        self._wandb_run.finish()
