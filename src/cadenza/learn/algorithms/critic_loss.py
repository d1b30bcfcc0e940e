"""What the losses of all critics share: the step, the prediction's log, and prioritised replay.

Equation:  L = mean_i w_i ℓ(Q(a_i, o_i), y_i), with ℓ from the subclass
Axes:      B = n·T rows of a batch: n rollouts of T steps, rollout-major; A = action.
"""

from abc import abstractmethod
from typing import Generic, TypeVar

from torch import Tensor, nn, optim

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.prioritization import (
    PrioritizedMemory,
    report_errors,
    weighted_mean,
)
from cadenza.learn.callbacks.loss import LossCallback

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
