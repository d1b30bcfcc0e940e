"""Ego ad-hoc-teamwork training: one learning robot beside a frozen partner.

Start at:    `cadenza.aht.config.load_config` (YAML in, checked configuration out) and
             `cadenza.aht.train.train` (configuration, environment, partner in; result out).
Promise:     the same configuration gives the same bytes on the CPU, also after a kill and a resume.
May import:  `core`, `learn`, `safety`.  Must not import: `envs`, `partners`, `benchmark`.
Adding one:  a learner is one file and one line in `cadenza.aht.algorithms`.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cadenza.aht.learning_signal_check import (
        DEFAULT_ALPHA,
        DEFAULT_MIN_EPISODES,
        DEFAULT_THRESHOLD,
        DEFAULT_WINDOW,
        CheckStatus,
        GuaranteeReport,
        SlopeReport,
        assert_non_decreasing_window,
        check_positive_learning_slope,
        plot_reward_curve,
        plot_slope_curve,
    )

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_MIN_EPISODES",
    "DEFAULT_THRESHOLD",
    "DEFAULT_WINDOW",
    "CheckStatus",
    "GuaranteeReport",
    "SlopeReport",
    "assert_non_decreasing_window",
    "check_positive_learning_slope",
    "plot_reward_curve",
    "plot_slope_curve",
]

_HOME: Final = "cadenza.aht.learning_signal_check"


def __getattr__(name: str) -> Any:
    """Import a re-exported name on first use, so that importing the folder stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME), name)
