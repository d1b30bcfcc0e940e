"""The modules of `cadenza.learn.emote` under the names that Emote gave them."""

import sys

from cadenza.learn.emote import action_symmetry, amp, dqn, genrl, hlgauss, sac, targets, td3

__all__ = ["action_symmetry", "amp", "dqn", "genrl", "hlgauss", "sac", "targets", "td3"]

for _module in (action_symmetry, amp, dqn, genrl, hlgauss, sac, targets, td3):
    sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
