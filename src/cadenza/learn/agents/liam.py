"""LIAM: an ego whose memory learns to explain its partner, from its own history alone.

Equations, with an encoder's belief z of `cadenza.learn.agents.adapting`, the partner's observation
o' in units of its deviations and its action a':
    minimise mean[ ½ Σ_d (o'_d − ô'_d(z))² − log p(a' | z) ]  over encoder and decoder;
    PPO on policy and critic of (o, sg(z))
    z = W relu(V h + b) + c, h of a GRU or an LSTM;  p a softmax per choice, or normal with a
    learned deviation per number, whose logarithm stays in [−4, 1]
Source:      arXiv:2006.09447, equations 1 and 2, there with A2C. Numbers are scaled, for the
             dimension of o' would else decide what the belief is about; so are actions of numbers.
Axes:        B = batch, Z = belief, P = partner's observation, D = its choices or numbers.
Limits:      the partner's observation and action are read while learning only.
"""

from typing import Any, ClassVar, Never, Unpack, cast

from pydantic import Field
from torch import Tensor, nn

from cadenza.learn.agents.adapting import (
    AdaptingAgent,
    AdaptingConfig,
    AdaptingLearner,
    AdaptingSettings,
)
from cadenza.learn.agents.on_policy import Sizes
from cadenza.learn.agents.ppo import PPOLearner
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.nn.policy_networks import OrthogonalMlp
from cadenza.learn.nn.recurrent import Memory, MemoryKind
from cadenza.learn.settings import Count, Weight


class LIAMConfig(AdaptingConfig):
    """LIAM.

    Attributes:
        memory: Kind of the encoder.
        memory_size: Its units, and those of the layers after it and of the decoder, >= 1.
        belief_size: Z, >= 1.
        freeze_encoder: Leave the encoder at its random start: what extra inputs alone bring.
    """

    entropy_coefficient: Weight = 0.01
    memory: MemoryKind = "lstm"
    memory_size: Count = Field(default=64, ge=1)
    belief_size: Count = Field(default=20, ge=1)
    freeze_encoder: bool = False


class LIAMSettings(AdaptingSettings, total=False):
    """Keywords of `LIAMConfig`."""

    memory: MemoryKind
    memory_size: int
    belief_size: int
    freeze_encoder: bool


def observation_error(predicted: Tensor, observations: Tensor) -> Tensor:
    """Return mean ½ Σ_d (o'_d − ô'_d)², a scalar; arguments have shape (B, P)."""
    return 0.5 * (observations - predicted).square().sum(dim=-1).mean()


class LIAMLearner(AdaptingLearner):
    """Actor, critic, encoder and decoder."""

    STREAM: ClassVar[str] = "learn.liam"
    FIGURES: ClassVar[tuple[str, ...]] = (
        *PPOLearner.FIGURES,
        "observation_loss",
        "action_loss",
        "action_accuracy",
        "model_grad_norm",
    )

    def __init__(self, config: LIAMConfig, **sizes: Any) -> None:
        self._liam = config
        super().__init__(config, belief_size=config.belief_size, **sizes)

    def _memory(self, width: int) -> Memory:
        return Memory(self._liam.memory, width, self._liam.memory_size, self.generator)

    def _summary(self, width: int) -> nn.Module:
        return self._perceptron(width, (self._liam.memory_size,), self._liam.belief_size)

    def _predictions(self) -> dict[str, nn.Module]:
        sizes, head = (self._liam.memory_size,) * 2, self._partner.head()
        return {
            "observation": self._perceptron(self._liam.belief_size, sizes, self._partner.observed),
            "action": self._perceptron(self._liam.belief_size, sizes, head.outputs),
            "head": head,
        }

    def _perceptron(self, inputs: int, hidden: tuple[int, ...], outputs: int) -> OrthogonalMlp:
        drawn: Any = {"activation": "relu", "generator": self.generator}
        return OrthogonalMlp(inputs, hidden, outputs, output_gain=1.0, **drawn)

    def _explained(self, z: Tensor, told: Tensor) -> tuple[Tensor, list[Tensor]]:
        if self._liam.freeze_encoder:
            z = z.detach()
        actions, seen = self._partner.actions(told), told[:, : self._partner.observed]
        observation_loss = observation_error(self.predictions["observation"](z), seen)
        action_loss, foretold = self.foretelling_loss(self.predictions["action"](z), actions)
        return observation_loss + action_loss, [observation_loss, *foretold]


class _LIAMKeywords(SoloKeywords, LIAMSettings, total=False): ...


class LIAM(AdaptingAgent[LIAMConfig]):
    """Local information agent modelling, an ego that adapts; arXiv:2006.09447, `LIAMConfig`.

    The environments tell of the partner in infos, see `AdaptingAgent`; acting reads none of it.
    """

    Config = LIAMConfig

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_LIAMKeywords]) -> None:
        super().__init__(env, *others, **settings)

    def _learner(self, sizes: Sizes) -> LIAMLearner:
        given = cast("dict[str, Any]", sizes)
        bounds = self._action_bounds
        return LIAMLearner(self.config, partner=self._partner, bounds=bounds, **given)
