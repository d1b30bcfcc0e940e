"""Training a dynamics model as a callback.

Axes:  B = rows, D = observation columns, A = action columns.
"""

from typing import Any

from torch import Tensor, optim

from cadenza.core.errors import CheckpointError
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.models.hold_out import HoldOut
from cadenza.learn.models.model import DynamicModel
from cadenza.learn.observed_input import observed_input


class ModelLoss(LossCallback):
    """Steps the optimiser of a dynamics model once per batch.

    Args:
        model: The dynamics model.
        opt: Optimiser over its parameters.
        lr_schedule: Learning-rate schedule, or None.
        max_grad_norm: Largest gradient norm.
        name: Name in logs and checkpoints.
        data_group: Group the batch is read from.
        input_key: Observation that is modelled.
        hold_out: Keeps data out of training, stops it early and picks elites; None trains always,
            on everything.

    Raises:
        InputError: ``hold_out`` is given and the model wraps no ensemble.
    """

    def __init__(
        self,
        *,
        model: DynamicModel,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float = 10.0,
        name: str = "dynamic_model",
        data_group: str = "default",
        input_key: str = "obs",
        hold_out: HoldOut | None = None,
    ) -> None:
        super().__init__(
            name=name,
            network=model,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        if hold_out is not None:
            _ = model.ensemble
        self.model = model
        self.hold_out = hold_out
        self._input_key = input_key

    def backward(
        self,
        observation: dict[str, Tensor],
        next_observation: dict[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
        masks: Tensor | None = None,
    ) -> None:
        """Do one optimiser step, unless the hold-out says to rest.

        Args:
            observation: Arrays of shape (B, D) by name.
            next_observation: Arrays of shape (B, D) by name.
            actions: Shape (B, A).
            rewards: Shape (B, 1).
            masks: 0 where the transition ended its episode, shape (B, 1); needed by a termination
                model only.
        """
        if self.hold_out is None:
            super().backward(observation, next_observation, actions, rewards, masks)
            return
        obs, next_obs = self._modelled(observation), self._modelled(next_observation)
        train = self.hold_out.keep((obs, next_obs, actions, rewards))
        if not self.hold_out.resting and bool(train.any()):
            super().backward(
                {self._input_key: obs[train]},
                {self._input_key: next_obs[train]},
                actions[train],
                rewards[train],
                None if masks is None else masks[train],
            )
        self.hold_out.after_step(self.model)
        self.log_scalar(f"loss/{self.name}_resting", float(self.hold_out.resting))
        if self.hold_out.errors:
            mean = sum(self.hold_out.errors) / len(self.hold_out.errors)
            self.log_scalar(f"loss/{self.name}_holdout_error", mean)

    def loss(
        self,
        observation: dict[str, Tensor],
        next_observation: dict[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
        masks: Tensor | None = None,
    ) -> Tensor:
        """Return the model's loss on a batch; arguments as for `backward`.

        Raises:
            InputError: An observation lacks ``input_key``.
        """
        loss, info = self.model.loss(
            obs=self._modelled(observation),
            next_obs=self._modelled(next_observation),
            action=actions,
            reward=rewards,
            terminated=None if masks is None else 1.0 - masks,
        )
        for key, value in info.items():
            self.log_scalar(f"loss/{self.name}_{key}", value)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return logs, model with normalisers, optimiser, schedule and hold-out."""
        state = super().state_dict()
        if self.hold_out is not None:
            state["hold_out"] = self.hold_out.state_dict()
        return state

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned; the hold-out comes with ``load_hparams``.

        Raises:
            CheckpointError: A part is missing or does not fit.
        """
        rest = dict(state_dict)
        hold_out = rest.pop("hold_out", None)
        super().load_state_dict(rest, load_network, load_optimizer, load_hparams)
        if self.hold_out is None or not load_hparams:
            return
        if hold_out is None:
            raise CheckpointError(
                f"{self.name}: expected 'hold_out' in the loaded state, got {sorted(state_dict)}; "
                "the saved run trained without one, so load with load_hparams=False."
            )
        self.hold_out.load_state_dict(hold_out, self.model.device)

    def _modelled(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the observation that is modelled, shape (B, D)."""
        return observed_input("ModelLoss", observation, self._input_key)
