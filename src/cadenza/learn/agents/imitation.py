"""What agents that imitate share: losses, the scale of inputs, the policy, and its update.

The policy gives k decisions at once, f(x)_0 ... f(x)_{k-1}; the loss compares them to those that
were done, a_0 ... a_{k-1}, as far as the episode went:
    mse         L = mean (f(x)_i − a_i)²       l1   L = mean |f(x)_i − a_i|
    gaussian    L = mean ½ ((a_i − μ_i) / σ_i)² + ln σ_i
    choices     L = mean −log softmax(f(x)_i)_{a_i}
    inputs      x = clip((o − m) / σ, −8, 8), m and σ of what was shown first
    greedy      clip(f(x)_0, −1, 1), or argmax f(x)_0
Axes:  N = rows, B = batch, R = rows that are known, k = decisions, O = observation, A = action
       components, C = choices.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.agent import AgentConfig
from cadenza.learn.agents.solo import Deployed, SoloAgent
from cadenza.learn.agents.staging import on_device, sending_to
from cadenza.learn.agents.updates import Adam, Figures
from cadenza.learn.env.stepping import ActionCodec
from cadenza.learn.loaded_state import RandomSource
from cadenza.learn.nn.initialization import default_linear
from cadenza.learn.nn.layers import ACTIVATIONS, Decision, EncoderFactory, Layer, with_encoder
from cadenza.learn.optimizers import may_look, set_rate

#: Bound of a scaled input, in standard deviations.
CLIP: Final = 8.0
#: Smallest spread of an input, in its unit: one that stood still is not blown up.
MIN_SPREAD: Final = 1e-4
#: Bounds of ln σ.
MIN_LOG_STD: Final = -5.0
MAX_LOG_STD: Final = 2.0

Loss: TypeAlias = Literal["mse", "l1", "gaussian"]


def masked_mean(errors: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean of errors, (B, k), over the steps that are ``valid``, (B, k), or over all."""
    return errors.mean() if valid is None else (errors * valid).sum() / valid.sum()


def squared_errors(predicted: Tensor, actions: Tensor) -> Tensor:
    """Return (f(x) − a)² of every step, (B, k), averaged over the components of (B, k, A)."""
    return (predicted - actions).square().mean(dim=-1)


def absolute_errors(predicted: Tensor, actions: Tensor) -> Tensor:
    """Return |f(x) − a| of every step, (B, k), averaged over the components of (B, k, A)."""
    return (predicted - actions).abs().mean(dim=-1)


def gaussian_errors(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Return −log density without its constant, (B, k), averaged over components of (B, k, A)."""
    scaled = (actions - mean) * torch.exp(-log_std)
    return (0.5 * scaled.square() + log_std).mean(dim=-1)


def choice_errors(logits: Tensor, choices: Tensor) -> Tensor:
    """Return −log softmax of the choices, (B, k) or (B,), for logits (B, k, C) or (B, C)."""
    return nn.functional.cross_entropy(logits.movedim(-1, 1), choices, reduction="none")


class InputScale(nn.Module):
    """x of the module's header, clipped at ``limit``; without moments only clipped."""

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int, limit: float = CLIP) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def fit(self, observations: Tensor) -> None:
        """Take m and σ of observations, (R, O)."""
        exact = observations.double()
        self.mean.copy_(exact.mean(dim=0))
        self.spread.copy_(exact.std(dim=0, correction=0).clamp(min=MIN_SPREAD))

    def forward(self, obs: Tensor) -> Tensor:
        """Return x, (B, O)."""
        return ((obs - self.mean) / self.spread).clamp(-self.limit, self.limit)

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        tensors = {"mean": self.mean, "spread": self.spread}
        return [Layer("standardise", {"limit": self.limit}, tensors)]


def perceptron(
    widths: Sequence[int],
    linear: Callable[[int, int], nn.Module],
    between: Callable[[int], Iterable[nn.Module]],
) -> list[nn.Module]:
    """Return linear layers from each of ``widths`` to the next, and what stands ``between`` two."""
    layers: list[nn.Module] = []
    for inputs, units in pairwise(widths[:-1]):
        layers += [linear(inputs, units), *between(units)]
    return [*layers, linear(widths[-2], widths[-1])]


class TorchAdam:
    """Adam as torch has it by default, which rounds otherwise than that of `updates`.

    With it, older files resume bit for bit.
    """

    def __init__(self, learning_rate: float, parameters: Iterable[Tensor]) -> None:
        self.learning_rate = learning_rate
        self._adam: Any = torch.optim.Adam(parameters, lr=learning_rate)
        self._steps = 0

    def step(self, *, policy: Tensor) -> Figures:
        """Take a step down the loss ``policy``; on a device some steps look whether it is finite.

        Raises:
            InputError: It is not finite; no weight has changed.
        """
        self._steps += 1
        is_looked_at = may_look(policy.device, self._steps)
        if is_looked_at and not math.isfinite(loss := float(policy.detach())):
            advice = "lower the learning rate, or look for extremes in the batch"
            refuse(InputError, "policy", expected="a finite loss", got=loss, do=advice)
        set_rate(self._adam, self.learning_rate)
        self._adam.zero_grad(set_to_none=True)
        policy.backward()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        self._adam.step()
        return {"policy_loss": policy.detach()}

    def state_dict(self) -> dict[str, Any]:
        """Return moments and counts of steps."""
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the learning rate stays."""
        self._adam.load_state_dict(state)


class ImitationLearner:
    """The policy, its optimiser and the stream of its batches.

    Args:
        config: With ``hidden_sizes``, ``activation`` and ``batch_size``.
        codec: Says whether decisions are choices or numbers, and how many.
        weights: What weights are drawn from.
        batches: What batches are drawn from.
        optimizer: Makes it for the weights.
        length: k.
        loss: Of continuous actions.
        device: Where the networks learn; weights, batches and noise are drawn on the CPU.
    """

    def __init__(
        self,
        config: Any,
        codec: ActionCodec,
        observation_dim: int,
        encoder: EncoderFactory | None,
        *,
        weights: torch.Generator,
        batches: torch.Generator,
        optimizer: Callable[[Iterable[Tensor]], Adam | TorchAdam],
        length: int = 1,
        loss: Loss = "mse",
        device: torch.device | str = "cpu",
    ) -> None:
        self.device: torch.device = torch.device(device)
        self._send = sending_to(self.device)
        self._config, self._length, self._loss = config, length, loss
        self._batches, self._choices = batches, codec.choices
        self._width = int(codec.choices or codec.components or 0)
        outputs = length * self._width
        layers, features = with_encoder(
            encoder,
            observation_dim,
            lambda width: nn.Sequential(
                *perceptron(
                    [width, *config.hidden_sizes, outputs],
                    lambda inputs, units: default_linear(inputs, units, weights),
                    lambda units: [nn.LayerNorm(units), ACTIVATIONS[config.activation]()],
                )
            ),
        )
        self._scale = InputScale(observation_dim)
        *hidden, head = layers
        trunk = nn.Sequential(*(features or [self._scale]), *hidden)
        networks = {"trunk": trunk, "head": head}
        if loss == "gaussian" and self._choices is None:
            networks["spread"] = default_linear(config.hidden_sizes[-1], outputs, weights)
        self.networks: nn.ModuleDict = nn.ModuleDict(networks).to(self.device)
        bound = [nn.Hardtanh(-1.0, 1.0)] if self._choices is None else []
        first = _First(head, self._width)
        self.greedy: nn.Module = nn.Sequential(trunk, first, Decision(self._decide, *bound))
        #: From observations, (N, O), to greedy decisions, (N, k, A) or (N, k).
        self.chunks: nn.Module = nn.Sequential(trunk, head, Decision(self._decide_all))
        self.optimizer: Adam | TorchAdam = optimizer(self.networks.parameters())

    def fit_scale(self, observations: Tensor) -> None:
        """Scale inputs by the moments of observations, (R, O); an encoder sees them as they are."""
        self._scale.fit(observations)

    def draw_rows(self, count: int) -> Tensor:
        """Return which of ``count`` rows are the next batch, drawn with replacement."""
        return torch.randint(count, (self._config.batch_size,), generator=self._batches)

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return L, a scalar.

        Args:
            batch: On the device, ``obs``, (B, O), ``actions``, (B, k, A) or (B, k), k left out if
                it is 1, and which of them are ``valid``, (B, k), if not all are.
        """
        features, actions = self.networks["trunk"](batch["obs"].float()), batch["actions"]
        shape = actions.shape if self._choices is None else (*actions.shape, self._width)
        predicted, valid = self.networks["head"](features).reshape(shape), batch.get("valid")
        if self._choices is not None:
            return masked_mean(choice_errors(predicted, actions), valid)
        if self._loss == "gaussian":
            log_std = self._log_std(features).reshape(shape)
            return masked_mean(gaussian_errors(predicted, log_std, actions), valid)
        errors = absolute_errors if self._loss == "l1" else squared_errors
        return masked_mean(errors(predicted, actions), valid)

    def update(self, batch: Mapping[str, Tensor]) -> Figures:
        """Do one update; return figures of it by name."""
        batch = self.sent(batch)
        figures = self.optimizer.step(policy=self.loss(batch))
        return {name.removeprefix("policy_"): told for name, told in figures.items()}

    def sent(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a batch on the device."""
        return dict(zip(batch, self._send([*batch.values()]), strict=True))

    @torch.no_grad()
    def act(self, rows: NDArray[Any], *, chunks: bool = False) -> NDArray[Any]:
        """Return greedy decisions, (N, A) or (N,), for rows (N, O), or whole ``chunks`` of them."""
        return (self.chunks if chunks else self.greedy)(self._numbers(rows)).cpu().numpy()

    @torch.no_grad()
    def draw(self, rows: NDArray[Any], generator: torch.Generator) -> NDArray[Any]:
        """Return decisions, (N, A) or (N,), drawn from what the policy thinks likely."""
        features = self.networks["trunk"](self._numbers(rows))
        output = self._shaped(self.networks["head"](features))[:, 0]
        if self._choices is not None:
            likely = output.softmax(dim=-1).cpu()
            return torch.multinomial(likely, 1, generator=generator)[:, 0].numpy()
        if "spread" in self.networks:
            noise = torch.randn(output.shape, generator=generator).to(self.device)
            output = output + self._log_std(features)[:, 0].exp() * noise
        return output.clamp(-1.0, 1.0).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, but what is imitated."""
        return {
            "networks": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "batches": self._batches.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if "adam" in state:  # BC's in files of earlier versions
            state = {**state, "optimizer": state["adam"]}
        if "network" in state:  # DAgger's there
            layers = zip(self.networks.state_dict(), state["network"].values(), strict=True)
            state = {**state, "networks": dict(layers), "batches": state["generator"]}
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._batches.set_state(state["batches"])

    def _numbers(self, rows: NDArray[Any]) -> Tensor:
        return on_device(rows.astype(np.float32), self.device)

    def _shaped(self, output: Tensor) -> Tensor:
        return output.reshape(-1, self._length, self._width)

    def _log_std(self, features: Tensor) -> Tensor:
        return self._shaped(self.networks["spread"](features)).clamp(MIN_LOG_STD, MAX_LOG_STD)

    def _decide_all(self, output: Tensor) -> Tensor:
        return self._decide(self._shaped(output))

    def _decide(self, output: Tensor) -> Tensor:
        return output.clamp(-1.0, 1.0) if self._choices is None else output.argmax(dim=-1)


class _First(nn.Module):
    """The outputs of a linear layer that speak of the first decision, (B, ``width``)."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self._head, self._width = head, width

    def forward(self, features: Tensor) -> Tensor:
        """Return the first outputs."""
        return self._head(features)[:, : self._width]

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        rows = {k: p[: self._width] for k, p in self._head.named_parameters()}
        return [Layer("linear", {}, rows)]


class ImitationAgent(SoloAgent[AgentConfig]):
    """An agent that imitates, for discrete and bounded continuous actions."""

    config: Any
    learner: ImitationLearner
    #: What exploring decisions are drawn from.
    acting: Any

    def _build(self) -> None:
        self._port = ActionCodec(self.envs.action_space, owner=self.name, unit=True)
        self.learner = ImitationLearner(
            self.config,
            self._port,
            spaces.flatdim(self.envs.space),
            self._encoder,
            optimizer=self._optimizer,
            device=self.device,
            **self._parts(),
        )
        self._begin_episodes()

    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """Return further keywords of the learner."""

    @abstractmethod
    def _optimizer(self, weights: Iterable[Tensor]) -> Adam | TorchAdam:
        """Return what trains the weights."""

    def _stream(self, name: str) -> torch.Generator:
        stream = derive_substream(f"learn.{self.name.lower()}.{name}", root_seed=self.seed)
        return torch.Generator().manual_seed(stream.integer_seed())

    @property
    def batch_rows(self) -> int:
        """Rows of a batch."""
        return self.config.batch_size

    def _act(
        self, rows: NDArray[Any], state: Float32Array, *, deterministic: bool
    ) -> tuple[NDArray[Any], Float32Array]:
        decided = self.learner.act(rows) if deterministic else self._explore(rows)
        return self._port.to_env(decided), state

    @abstractmethod
    def _explore(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return decisions that are drawn, (N, A) or (N,), for observations, (N, O)."""

    @property
    def _drawing(self) -> RandomSource:
        return self.acting

    def deployed(self) -> nn.Module:
        """Return a module from observations to greedy actions, the first ones of chunks."""
        return Deployed(self.learner.greedy, self._port)
