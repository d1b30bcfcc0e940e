"""Variational auto-encoder of actions, and the callback that trains it.

Model:    (m, s) = encoder(x, c),  z = m + e^s * noise,  x_hat = decoder(z, c).
Loss:     mean (x - x_hat)^2 + beta KL, with
          KL = mean_i [ sum_j (e^s + m^2 / 2 - s) ] - Z   (default),
          KL = mean_i [ 1/2 sum_j (e^(2 s) + m^2 - 1 - 2 s) ]   (``exact_kl``).
Source:   Kingma and Welling, arXiv:1312.6114, appendix B: the exact form. The default keeps the
          meaning of beta in the engine this package follows; it has the same minimum
          (m = 0, s = 0) and half the curvature in s.
Axes:     B = rows, X = data columns, Z = latent columns, C = condition columns.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.genrl.networks import as_decoder, as_encoder
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.nn.initialization import normal_init_
from cadenza.learn.nn.noise_state import let_noise_go_on
from cadenza.learn.observed_input import observed_input


def kl_to_standard_normal(mu: Tensor, log_std: Tensor) -> Tensor:
    """Return the mean over rows of KL(N(mu, e^(2 log_std)) | N(0, 1)), a scalar, in nats.

    Args:
        mu: Shape (B, Z).
        log_std: Shape (B, Z).
    """
    per_row = 0.5 * (torch.exp(2.0 * log_std) + mu.square() - 1.0 - 2.0 * log_std).sum(dim=1)
    return per_row.mean()


def kl_upper_form(mu: Tensor, log_std: Tensor) -> Tensor:
    """Return the default divergence of the module's header, a scalar; 0 at mu = log_std = 0."""
    per_row = (torch.exp(log_std) + 0.5 * mu.square() - log_std).sum(dim=1)
    return per_row.mean() - mu.shape[1]


class VariationalAutoencoder(nn.Module):
    """Encoder, noise, decoder.

    Args:
        encoder: Module with the attributes and call of `networks.Encoder`.
        decoder: Module with the attributes and call of `networks.Decoder`.
        device: Where the parameters go.
        beta: Weight of the divergence.
        exact_kl: Use the Gaussian divergence instead of the default form.
        keep_weights: Start from the weights that encoder and decoder have, instead of drawing
            almost zero ones (`normal_init_`). From almost zero weights the divergence outweighs the
            restoration, and training may never leave a decoder that ignores its latent.
        generator: Draws the noise; None makes one that belongs to this module, seeded 0.
        init_generator: Draws the initial weights; None draws from the package's own.

    Raises:
        InputError: The sizes of encoder and decoder differ, or an attribute is missing.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        device: torch.device | str,
        beta: float = 0.01,
        *,
        exact_kl: bool = False,
        keep_weights: bool = False,
        generator: torch.Generator | None = None,
        init_generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        latents, outputs = as_encoder(encoder), as_decoder(decoder)
        if latents.output_size != outputs.input_size:
            raise InputError(
                f"VariationalAutoencoder: expected decoder.input_size = {latents.output_size} "
                f"(encoder.output_size), got {outputs.input_size}."
            )
        self.device = torch.device(device)
        self.latent_size = latents.output_size
        self.beta = beta
        self.exact_kl = exact_kl
        self.encoder = encoder
        self.decoder = decoder
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator
        let_noise_go_on(self)
        if not keep_weights:
            for module in (*encoder.modules(), *decoder.modules()):
                normal_init_(module, generator=init_generator)
        self.to(self.device)

    def forward(
        self, x: Tensor, condition: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x_hat (like ``x``), mean (B, Z), log standard deviation (B, Z), latent (B, Z).

        Args:
            x: Shape (B, X).
            condition: Shape (B, C), or None.
        """
        mu, log_std = as_encoder(self.encoder)(x, condition)
        noise = torch.randn(
            mu.shape, generator=self.generator, device=self.generator.device, dtype=mu.dtype
        )
        latent = mu + noise.to(mu.device) * torch.exp(log_std)
        x_hat = as_decoder(self.decoder)(latent, condition).reshape(x.shape)
        return x_hat, mu, log_std, latent

    def loss(
        self, x: Tensor, x_hat: Tensor, mu: Tensor, log_std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the module's header and its two parts.

        Args:
            x: Shape (B, X).
            x_hat: Shape (B, X).
            mu: Shape (B, Z).
            log_std: Shape (B, Z).
        """
        restore_loss = functional.mse_loss(x_hat, x)
        divergence = kl_to_standard_normal if self.exact_kl else kl_upper_form
        kl_loss = divergence(mu, log_std)
        loss = restore_loss + self.beta * kl_loss
        return loss, {"restore_loss": restore_loss.detach(), "kl_loss": kl_loss.detach()}

    def get_extra_state(self) -> Tensor:
        """Return the noise generator's state, for `torch.nn.Module.state_dict`."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue the noise where `get_extra_state` was taken."""
        self.generator.set_state(state.cpu())


def unconditioned(_: Tensor) -> None:
    """Return no condition, whatever the observation."""


class VAELoss(LossCallback):
    """Trains an auto-encoder of actions, conditioned on what was observed.

    Args:
        vae: The auto-encoder.
        opt: Optimiser over its parameters.
        lr_schedule: Learning-rate schedule, or None.
        max_grad_norm: Largest gradient norm.
        name: Name in logs and checkpoints.
        data_group: Group the batch is read from.
        input_key: Observation that is the condition.
        conditioning_func: Observation (B, D) to condition (B, C), or to None.
    """

    def __init__(
        self,
        *,
        vae: VariationalAutoencoder,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float = 10.0,
        name: str = "vae",
        data_group: str = "default",
        input_key: str = "obs",
        conditioning_func: Callable[[Tensor], Tensor | None] = unconditioned,
    ) -> None:
        super().__init__(
            name=name,
            network=vae,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        self.vae = vae
        self._input_key = input_key
        self._conditioning_func = conditioning_func

    def loss(self, observation: dict[str, Tensor], actions: Tensor) -> Tensor:
        """Return the auto-encoder's loss on ``actions`` (B, X).

        Raises:
            InputError: The observation lacks ``input_key``.
        """
        seen = observed_input("VAELoss", observation, self._input_key)
        condition = self._conditioning_func(seen)
        restored, mu, log_std, _ = self.vae(actions, condition)
        loss, parts = self.vae.loss(actions, restored, mu, log_std)
        self.log_scalar("vae/restore_loss", parts["restore_loss"])
        self.log_scalar("vae/kl_loss", parts["kl_loss"])
        return loss
