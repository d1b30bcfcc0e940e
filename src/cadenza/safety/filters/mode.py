"""Whose actions a pairwise filter may change."""

from enum import Enum


class SafetyMode(Enum):
    """The three answers; fixed when a filter is built.

    Changing it means a new filter and a new `SafetyState`, because the set of pairs differs:
    `cadenza.safety.pairs.make_ego_pair_keys` for the first, `make_pair_keys` for the others.

    Attributes:
        EGO_ONLY: The ego's action alone, against partners of whom only bounds are known. The
            mode for deployment.
        CENTRALIZED: Every agent's action. An oracle to compare with: partners obey it.
        SHARED_CONTROL: Every agent's action, a partner's within a given distance of the proposed
            one. For the laboratory: how much cooperation is worth.
    """

    EGO_ONLY = "ego_only"
    CENTRALIZED = "centralized"
    SHARED_CONTROL = "shared_control"
