"""Ego ad-hoc-teamwork training: one learning robot beside a frozen partner.

Start at:    `cadenza.aht.config.load_config` (YAML in, checked configuration out) and
             `cadenza.aht.train.train` (configuration, environment, partner in; result out).
Promise:     the same configuration gives the same bytes on the CPU, also after a kill and a resume.
May import:  `core`, `learn`, `safety`.  Must not import: `envs`, `partners`, `benchmark`.
Adding one:  a learner is one file and one line in `cadenza.aht.algorithms`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Names and the module that defines them; imported at first use.
_EXPORTS: Final[dict[str, str]] = dict.fromkeys(
    (
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
    ),
    "learning_signal_check",
)

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
