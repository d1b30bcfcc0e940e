"""One object that guards a robot which takes velocities in each of many environments.

Each environment is treated as `cadenza.safety.runtime.robot_driver.RobotDriver` treats its one; see
there. It answers with the same `SafetyBatchStep` as `BatchedSafetyDriver`.

Axes:    B = environments, J = partners in the order of their bounds, A = action.
Units:   as there.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup import BackupKeywords, BatchedBackupFilter
from cadenza.safety.batched.engine import SafetyBatchStep
from cadenza.safety.runtime.env_hooks import (
    batch_hook,
    hook,
    own_batch_hook,
    require_untouched_actions,
)
from cadenza.safety.runtime.robot_driver import BACKUPS, RobotTask, VelocityDriver, changes
from cadenza.safety.snapshot import AgentBatch


class BatchedRobotDriver(VelocityDriver[BatchedBackupFilter]):
    """Guards the ego of every environment of a batch.

    Build it with `from_env` from the very batch that will be stepped. Tell it with `begin_rows`
    which environments began another episode, as those that reset themselves do.

    Args:
        env: The batch that is stepped.
        task: What is around the robot.
        agents: Returns the motion of all agents at the current state.
        num_envs: B.
        together: Decide many environments at once; else one by one, so that the bits of one do not
            depend on the others.
        **settings: See `BackupFilter`.

    Attributes:
        num_envs: B.
        partner_uids: Partners in the order of their bounds.

    Raises:
        ConfigurationError: The guarantee cannot be given.
    """

    _find = staticmethod(batch_hook)

    def __init__(
        self,
        env: object,
        task: RobotTask,
        agents: Callable[[], AgentBatch],
        num_envs: int,
        *,
        together: bool = True,
        **settings: Unpack[BackupKeywords],
    ) -> None:
        single = task.build_filter(**settings)
        super().__init__(env, task, BatchedBackupFilter(single, num_envs, together=together))
        self.num_envs: int = num_envs
        self.partner_uids: tuple[str, ...] = tuple(bound.uid for bound in task.partners)
        self._agents, self._kept_m = agents, single.kept_m

    @classmethod
    def from_env(
        cls,
        env: object,
        *,
        ego_uid: str | None = None,
        together: bool = True,
        **settings: Unpack[BackupKeywords],
    ) -> "BatchedRobotDriver":
        """Return the driver of a batch with the hooks of `RobotDriver`.

        ``build_agent_batch()`` and ``num_envs`` take the place of the snapshots.

        Raises:
            ConfigurationError: A hook is missing, a wrapper would change the filtered actions, or
                the guarantee cannot be given.
        """
        require_untouched_actions(env)
        return cls(
            env,
            RobotTask.of(env, batch_hook, ego_uid=ego_uid),
            hook(env, "build_agent_batch", own_batch_hook),
            int(hook(env, "num_envs", own_batch_hook)),
            together=together,
            **settings,
        )

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the plans of the environments ``rows``; see `begin_episode`."""
        begun = list(rows)
        if begun:
            self.task.room.require_same()
        self.backup_filter.reset(begun)

    def begin_run_rows(self, rows: Iterable[int], seeds: Iterable[int]) -> None:
        """Forget everything of the environments ``rows``; see `begin_run`."""
        del seeds
        self.begin_rows(rows)

    def step(
        self,
        nominal_action: FloatArray,
        partner_ids: str | Sequence[str | None] | None = None,
    ) -> SafetyBatchStep:
        """Return the actions to execute in the current state, (B, A).

        Args:
            nominal_action: The policy's actions, shape (B, A), any real dtype.
            partner_ids: Who the partners are; it does not matter.

        Raises:
            InputError: Actions or scene are malformed.
        """
        del partner_ids
        nominal = np.asarray(nominal_action, dtype=np.float64)
        found = self.backup_filter.filter(nominal, self._agents())
        pairs = np.zeros(found.margin.shape)
        none = np.zeros(self.num_envs, dtype=np.bool_)
        broken = np.repeat(found.bounds_broken[:, None], len(self.partner_uids), axis=1)
        return SafetyBatchStep(
            action=found.action,
            loss=pairs,
            scored=none,
            braked=np.isin(found.backup, BACKUPS),
            infeasible=none,
            uncertified=found.uncertified,
            breached=np.concatenate((none[:, None], broken), axis=1),
            intervention=changes(found.action, self.reachable(nominal)),
            lambda_=pairs,
            used_lambda=pairs,
            constraint_violation=pairs,
            margin=found.margin - self._kept_m,
            slack=pairs,
            brake_reasons={},
            static_margin=found.static_margin.min(axis=1, initial=np.inf),
            static_uncertified=found.static_uncertified,
        )

    @property
    def lambda_(self) -> FloatArray:
        """Slack per pair, (B, J), 0: nothing adapts."""
        return np.zeros((self.num_envs, len(self.partner_uids)))
