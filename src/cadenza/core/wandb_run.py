"""A Weights & Biases run as a log sink; training goes on without it when it cannot start."""

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cadenza.core.log_sinks import SINK_ERRORS, WandbSink
from cadenza.core.provenance import RunContext

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

_logger = logging.getLogger(__name__)


class WandbSettings(Protocol):
    """What a configuration says about Weights & Biases."""

    @property
    def enabled(self) -> bool:
        """Whether to log there at all."""
        ...

    @property
    def project(self) -> str:
        """Project that the run goes to."""
        ...


def make_wandb_run_sink(
    cfg: WandbSettings,
    ctx: RunContext,
    *,
    tags: Sequence[str] = (),
    config_extras: Mapping[str, object] | None = None,
    resume: bool = False,
) -> WandbSink | None:
    """Start a Weights & Biases run for ``ctx``.

    Args:
        cfg: Switch and project.
        ctx: Run whose id becomes id and name.
        tags: Tags of the run.
        config_extras: Further facts for the run's configuration.
        resume: Go on with the run of the same id if there is one.

    Returns:
        The sink; None if switched off, or, with one `UserWarning`, if it cannot start.
    """
    if not cfg.enabled:
        return None
    if not os.environ.get("WANDB_API_KEY") and os.environ.get("WANDB_MODE", "online") != "offline":
        return _without("WANDB_API_KEY missing; set it, or set WANDB_MODE=offline")
    try:
        import wandb
    except ImportError as error:
        return _without(f"import failed ({error}); install it with: pip install 'cadenza[wandb]'")
    try:
        run = wandb.init(
            id=ctx.run_id,
            name=ctx.run_id,
            project=cfg.project,
            tags=tuple(tags) or None,
            config={**ctx.log_fields(), **(config_extras or {})},
            resume="allow" if resume else "never",
            reinit="finish_previous",
        )
    except (wandb.Error, *SINK_ERRORS) as error:
        return _without(f"wandb.init failed ({error}); check key, project and network")
    return _WandbRunSink(run, (wandb.Error, *SINK_ERRORS))


def _without(reason: str) -> None:
    """Warn that the run goes on without Weights & Biases."""
    warnings.warn(f"Logging without Weights & Biases: {reason}.", UserWarning, stacklevel=3)


class _WandbRunSink:
    """Adapts a started run to `WandbSink`."""

    def __init__(self, run: "Run", close_errors: tuple[type[Exception], ...]) -> None:
        self._run: Any = run
        self._close_errors = close_errors

    def log(self, data: Mapping[str, object], *, step: int | None = None) -> None:
        """Take one event."""
        self._run.log(dict(data), step=step)

    def set_config(self, config: Mapping[str, object]) -> None:
        """Store facts about the run as a whole."""
        self._run.config.update(dict(config), allow_val_change=True)

    def add_tags(self, tags: Sequence[str]) -> None:
        """Add tags; those already there stay once, in their order."""
        self._run.tags = tuple(dict.fromkeys((*(self._run.tags or ()), *tags)))

    def close(self) -> None:
        """Finish the run; a failure is only warned about."""
        try:
            self._run.finish()
        except self._close_errors as error:
            _logger.warning("Weights & Biases could not finish the run: %s", error)
