"""What the losses of all critics share: the step, the prediction's log, and prioritised replay.

Equation:  L = mean_i w_i ℓ(Q(a_i, o_i), y_i), with ℓ from the subclass; a prioritised memory gives
           the weights w and takes |Q - y| as priorities (arXiv:1511.05952, sections 3.3 and 3.4).
Axes:      B = n·T rows of a batch: n rollouts of T steps, rollout-major; A = action.
"""

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from torch import Tensor, nn, optim

from cadenza.core.errors import InputError
from cadenza.learn.callbacks.loss import LossCallback


class PrioritizedMemory(Protocol):
    """A memory that samples surprising rollouts more often."""

    def update_priorities(self, sample_ids: Tensor, priorities: Tensor) -> object:
        """Take the absolute errors of rollouts, shape (n,), by their ids, shape (n,)."""
        ...


def weighted_mean(rows: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Return the mean loss, shape (), every rollout weighted by its importance.

    Args:
        rows: Loss of every row, shape (B, 1).
        sample_weights: Weight of every rollout, shape (n,); None weights all alike.

    Raises:
        InputError: There is not one weight per rollout.
    """
    if sample_weights is None:
        return rows.mean()
    rollouts = sample_weights.numel()
    if rollouts == 0 or rows.shape[0] % rollouts != 0:
        raise InputError(
            f"sample_weights: expected one weight per rollout, got {rollouts} for "
            f"{rows.shape[0]} rows; sample weights and rows from one memory."
        )
    return (rows.view(rollouts, -1) * sample_weights.view(-1, 1)).mean()


def report_errors(
    memory: PrioritizedMemory | None, sample_ids: Tensor | None, errors: Tensor
) -> None:
    """Tell a prioritised memory how far off its rollouts were; nothing without a memory.

    Args:
        memory: The memory that the batch comes from.
        sample_ids: Ids of the rollouts in the batch, shape (n,).
        errors: Absolute error of every row, shape (B, 1).

    Raises:
        InputError: The batch has no ids, so it does not come from a prioritised memory.
    """
    if memory is None:
        return
    if sample_ids is None:
        raise InputError(
            "prioritized_memory: expected batches with 'sample_ids', got none; let the loader "
            "sample the prioritised memory, or leave prioritized_memory out."
        )
    memory.update_priorities(sample_ids, errors.view(sample_ids.numel(), -1).mean(1))


#: Observation arrays by space name, each with B rows.
Observations = dict[str, Tensor]
Critic = TypeVar("Critic", bound=nn.Module)


class CriticLoss(LossCallback, Generic[Critic]):
    """Distance between a critic and ``q_target``; a subclass says which, in `rows`.

    Rollouts of a prioritised memory are weighted by its ``sample_weights``.

    Args:
        name: Name in logs and checkpoints.
        q: Critic.
        opt: Optimiser of its parameters.
        lr_schedule: Learning-rate schedule of ``opt``.
        max_grad_norm: Bound of the gradient's norm.
        data_group: Group of the state that holds the batch.
        log_per_param_weights: Log every parameter.
        log_per_param_grads: Log every gradient.
        prioritized_memory: Table that the batches come from, if it has priorities; it is told the
            error of every rollout. Give it to one of two critics.

    Attributes:
        q_network: The critic.
    """

    def __init__(
        self,
        *,
        name: str,
        q: Critic,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float = 10.0,
        data_group: str = "default",
        log_per_param_weights: bool = False,
        log_per_param_grads: bool = False,
        prioritized_memory: PrioritizedMemory | None = None,
    ) -> None:
        super().__init__(
            name=name,
            network=q,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
            log_per_param_weights=log_per_param_weights,
            log_per_param_grads=log_per_param_grads,
        )
        self.q_network = q
        self._prioritized_memory = prioritized_memory

    @abstractmethod
    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what the critic predicts, without gradient, and its loss, (B, 1) each."""

    def loss(
        self,
        observation: Observations,
        actions: Tensor,
        q_target: Tensor,
        sample_weights: Tensor | None = None,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss, shape ().

        Args:
            observation: B rows.
            actions: Shape (B, A).
            q_target: Shape (B, 1).
            sample_weights: Importance of each rollout, shape (n,); None weights all alike.
            sample_ids: Ids of the rollouts, shape (n,), for a prioritised memory.

        Raises:
            InputError: The critic returns another shape than (B, 1).
        """
        predictions, losses = self.rows(observation, actions, q_target)
        if predictions.shape != q_target.shape:
            raise InputError(
                f"{self.name}: expected a critic that returns {tuple(q_target.shape)}, "
                f"got {tuple(predictions.shape)}; return one value per row, (B, 1)."
            )
        self.log_mean(f"training/{self.name}_prediction", predictions)
        if self._prioritized_memory is not None:
            errors = (predictions - q_target).abs()
            report_errors(self._prioritized_memory, sample_ids, errors)
        return weighted_mean(losses, sample_weights)
