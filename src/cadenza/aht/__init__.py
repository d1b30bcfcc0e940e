"""Ego ad-hoc-teamwork training: one learning robot beside a frozen partner.

Start at:    `cadenza.aht.config.load_config` (YAML in, checked configuration out) and
             `cadenza.aht.train.train` (configuration, environment, partner in; result out).
Promise:     the same configuration gives the same bytes on the CPU, also after a kill and a resume.
May import:  `core`, `learn`, `safety`.  Must not import: `envs`, `partners`, `benchmark`.
Adding one:  a learner is one file and one line in `cadenza.aht.algorithms`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .learning_signal_check import DEFAULT_ALPHA as DEFAULT_ALPHA
    from .learning_signal_check import DEFAULT_MIN_EPISODES as DEFAULT_MIN_EPISODES
    from .learning_signal_check import DEFAULT_THRESHOLD as DEFAULT_THRESHOLD
    from .learning_signal_check import DEFAULT_WINDOW as DEFAULT_WINDOW
    from .learning_signal_check import CheckStatus as CheckStatus
    from .learning_signal_check import GuaranteeReport as GuaranteeReport
    from .learning_signal_check import SlopeReport as SlopeReport
    from .learning_signal_check import assert_non_decreasing_window as assert_non_decreasing_window
    from .learning_signal_check import (
        check_positive_learning_slope as check_positive_learning_slope,
    )
    from .learning_signal_check import plot_reward_curve as plot_reward_curve
    from .learning_signal_check import plot_slope_curve as plot_slope_curve
else:
    __dir__, __getattr__ = lazy_names(__name__)
