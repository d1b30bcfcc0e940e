"""Which learner of `cadenza.learn.learners` a value of ``algo`` means.

Adding one:  a function below, a line in ``_BUILDERS``, a section in
             `cadenza.aht.algorithm_sections` and a name in `cadenza.aht.algorithms`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypedDict

from cadenza.aht.config import EgoAHTConfig
from cadenza.learn.learners.dqn import DQNLearner
from cadenza.learn.learners.hatd3 import CentralTD3Learner
from cadenza.learn.learners.mbpo import MBPOLearner
from cadenza.learn.learners.replay_learner import ReplayLearner
from cadenza.learn.learners.sac import SACLearner
from cadenza.learn.learners.settings import LearnerNumbers
from cadenza.learn.learners.td3 import TD3Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Widths of the ego's state, of a learner's row, and of the action."""

    observation_dim: int
    row_dim: int
    action_dim: int


def build_replay_learner(
    cfg: EgoAHTConfig, *, observation_dim: int, row_dim: int, action_dim: int
) -> ReplayLearner:
    """Return the learner of ``cfg.algo``.

    Args:
        cfg: Checked configuration.
        observation_dim: O.
        row_dim: S; more than O only if `sees_joint_state`.
        action_dim: A.

    Raises:
        ConfigurationError: DQN's grid has too many actions.
    """
    sizes = Sizes(observation_dim=observation_dim, row_dim=row_dim, action_dim=action_dim)
    return _BUILDERS[cfg.algo](cfg, sizes)


def sees_joint_state(algorithm: str) -> bool:
    """Return whether the critics of ``algorithm`` see all seats."""
    return _BUILDERS[algorithm] is _hatd3


class _Shared(TypedDict):
    """Arguments that every learner takes."""

    observation_dim: int
    action_dim: int
    numbers: LearnerNumbers
    seed: int


def _shared(cfg: EgoAHTConfig, sizes: Sizes) -> _Shared:
    return {
        "observation_dim": sizes.observation_dim,
        "action_dim": sizes.action_dim,
        "numbers": cfg.replay,
        "seed": cfg.seed,
    }


def _sac(cfg: EgoAHTConfig, sizes: Sizes) -> ReplayLearner:
    histogram = cfg.hlgauss if cfg.algo == "hlgauss" else None
    return SACLearner(**_shared(cfg, sizes), sac=cfg.sac, histogram=histogram)


def _td3(cfg: EgoAHTConfig, sizes: Sizes) -> ReplayLearner:
    return TD3Learner(**_shared(cfg, sizes), td3=cfg.td3)


def _hatd3(cfg: EgoAHTConfig, sizes: Sizes) -> ReplayLearner:
    shared = _shared(cfg, sizes)
    return CentralTD3Learner(**shared, joint_dim=sizes.row_dim, td3=cfg.td3)


def _dqn(cfg: EgoAHTConfig, sizes: Sizes) -> ReplayLearner:
    return DQNLearner(**_shared(cfg, sizes), dqn=cfg.dqn)


def _mbpo(cfg: EgoAHTConfig, sizes: Sizes) -> ReplayLearner:
    return MBPOLearner(**_shared(cfg, sizes), sac=cfg.sac, mbpo=cfg.mbpo)


_BUILDERS: Final[dict[str, Callable[[EgoAHTConfig, Sizes], ReplayLearner]]] = {
    "sac": _sac,
    "hlgauss": _sac,
    "td3": _td3,
    "hatd3": _hatd3,
    "ego_aht_hatd3": _hatd3,
    "dqn": _dqn,
    "mbpo": _mbpo,
}
