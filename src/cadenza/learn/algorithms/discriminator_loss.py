"""What the losses of discriminators share: the optimiser step, and what is logged of it."""

from typing import ClassVar

from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LRScheduler

from cadenza.learn.algorithms.least_squares_gan import discriminator_outcome, spread
from cadenza.learn.callbacks.loss import LossCallback


class AdversarialLoss(LossCallback):
    """Steps a discriminator; `loss` of a subclass says which rows are real and which are made.

    Args:
        discriminator: Maps (B, K) to (B, 1).
        grad_loss_weight: Weight of the gradient penalty, on the real rows.
        optimizer: Optimiser of the discriminator.
        lr_schedule: Schedule of its learning rate; None keeps it constant.
        max_grad_norm: Largest global L2 norm of the gradients.
        data_group: Group of the batch; None: the state itself.
        name: Part of the log keys, and the name in checkpoints.
    """

    #: First part of the log keys.
    LOG_PREFIX: ClassVar[str]

    def __init__(
        self,
        discriminator: nn.Module,
        grad_loss_weight: float,
        optimizer: optim.Optimizer,
        lr_schedule: LRScheduler | None,
        max_grad_norm: float,
        *,
        data_group: str | None,
        name: str,
    ) -> None:
        super().__init__(
            lr_schedule,
            name=name,
            network=discriminator,
            optimizer=optimizer,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        self._discriminator = discriminator
        self._grad_loss_weight = grad_loss_weight

    def _loss_of(self, real: Tensor, made: Tensor) -> Tensor:
        """Return the loss that teaches to tell ``real`` (B, K) from ``made`` (B', K); log it.

        Raises:
            InputError: The discriminator's output is not one score per row.
        """
        outcome = discriminator_outcome(self._discriminator, real, made, self._grad_loss_weight)
        prefix = self.LOG_PREFIX
        self.log_scalar(f"{prefix}/loss/pos_discrimination_loss", outcome.positive)
        self.log_scalar(f"{prefix}/loss/neg_discrimination_loss", outcome.negative)
        self.log_scalar(f"{prefix}/loss/grad_loss", outcome.gradient)
        self.log_scalar(f"{prefix}/loss/total", outcome.total)
        for sign, scores in (
            ("positive", outcome.positive_scores),
            ("negative", outcome.negative_scores),
        ):
            self.log_scalar(f"{prefix}/predict/{sign}_samples_mean", scores.mean())
            self.log_scalar(f"{prefix}/predict/{sign}_samples_std", spread(scores))
        return outcome.total
