"""E3T: an ego that learns beside a noisy copy of itself and foretells what its partner does next.

Equations, with the policy π_θ, its slow copy π_φ in the partner's seat, the uniform policy U and
the belief z of `cadenza.learn.agents.adapting`, made of the last K observations, each with the
ego's action before it:
    partner: (1 − ε) π_φ + ε U, drawn in every step;   φ ← (1 − τ) φ + τ θ after each update
    minimise −log p(a' | z) of the action a' that the partner executed, whoever drew it:
    p = softmax z, or normal of mean z where actions are numbers, in units of their deviations
    PPO on policy and critic of (o, sg(p / |p|₂)), or of (o, sg(z)) where actions are numbers
Source:      Yan et al., NeurIPS 2023, https://openreview.net/forum?id=6ePsuwXUwf; the slow copy is
             that of its port in ZSC-Eval, arXiv:2310.05208. The paper's partner is the ego itself.
Axes:        N = environments, B = batch, O = observation of either seat, A = what is remembered of
             an action, S = window, P = what is told of the partner.
Limits:      both seats observe and act alike; who sits where is the environment's to draw. Actions
             that are numbers keep to the bounds of the partner's seat, U draws within them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Never, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.checks import is_scalable
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.adapting import (
    AdaptingAgent,
    AdaptingConfig,
    AdaptingLearner,
    AdaptingSettings,
)
from cadenza.learn.agents.on_policy import Sizes
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.ppo import PPOLearner
from cadenza.learn.agents.self_play import SelfPlaying
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.loaded_state import set_torch_state
from cadenza.learn.nn.belief import Foretold, believed
from cadenza.learn.nn.policy_networks import OrthogonalMlp
from cadenza.learn.nn.recurrent import Recurrent, Window
from cadenza.learn.settings import Count, ScheduleConfig, Weight, value_at


class E3TConfig(AdaptingConfig):
    """E3T.

    Attributes:
        history: Observations, each with the action before it, that a prediction is made of, >= 1.
        random_share: ε, the share of the partner's actions that are drawn uniformly, in [0, 1], or
            its schedule, such as ``linear(0.5, 0.0, steps=...)``.
        copy_share: τ, how far the partner's copy moves to the ego after each update, in (0, 1].
    """

    entropy_coefficient: Weight = 0.01
    history: Count = Field(default=5, ge=1)
    random_share: Weight = 0.5
    copy_share: float = Field(default=0.1, gt=0.0, le=1.0)


class E3TSettings(AdaptingSettings, total=False):
    """Keywords of `E3TConfig`."""

    history: int
    random_share: float | ScheduleConfig
    copy_share: float


class E3TLearner(AdaptingLearner):
    """Actor, critic, predictor, and the copy that plays the partner."""

    STREAM: ClassVar[str] = "learn.e3t"
    FIGURES: ClassVar[tuple[str, ...]] = (
        *PPOLearner.FIGURES,
        "action_loss",
        "action_accuracy",
        "model_grad_norm",
    )

    def __init__(
        self,
        config: E3TConfig,
        *,
        seed: int,
        seat: tuple[NDArray[Any], NDArray[Any]] | None,
        **sizes: Any,
    ) -> None:
        self._e3t = config
        #: Bounds of the partner's actions where they are numbers, in the units of decisions.
        self._seat = None if seat is None else (torch.tensor(seat[0]), torch.tensor(seat[1]))
        self._foretells = sizes["partner"].head()
        super().__init__(config, belief_size=self._foretells.outputs, seed=seed, **sizes)
        seeded = derive_substream(f"{self.STREAM}.partner", root_seed=seed).integer_seed()
        #: Draws of the partner.
        self.partner_generator: torch.Generator = torch.Generator().manual_seed(seeded)
        parts = {"belief": self.belief, "actor": self.network.actor, "head": self.network.head}
        #: The policy that plays the partner, φ.
        self.copy: nn.ModuleDict = copy.deepcopy(
            nn.ModuleDict(cast("dict[str, nn.Module]", parts))
        ).requires_grad_(False)

    def _memory(self, width: int) -> Window:
        return Window(width, self._e3t.history)

    def _summary(self, width: int) -> nn.Module:
        drawn: Any = {"activation": "relu", "generator": self.generator}
        sizes = self._e3t.hidden_sizes
        return OrthogonalMlp(width, sizes, self._foretells.outputs, output_gain=1.0, **drawn)

    def _shown(self) -> nn.Module:
        return Foretold(self._partner.counts)

    def _predictions(self) -> dict[str, nn.Module]:
        return {"head": self._foretells}

    def _explained(self, z: Tensor, told: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.foretelling_loss(z, self._partner.actions(told))

    @torch.no_grad()
    def play(
        self, observations: Float32Array, state: Float32Array, *, random_share: float
    ) -> tuple[NDArray[Any], Float32Array]:
        """Return the partner's decisions for rows (N, O) that remember ``state``, and the next.

        Each is the copy's, or with probability ``random_share`` drawn uniformly.
        """
        rows, before, generator = (
            *map(self._on_device, (observations, state)),
            self.partner_generator,
        )
        belief, head = cast("Recurrent", self.copy["belief"]), cast("Any", self.copy["head"])
        joined, memory = believed(belief, self.shown, rows, before, masks=0)
        decided = head.sample(self.copy["actor"](joined), generator)
        anything = self._uniform(decided.cpu(), generator).to(decided.device)
        is_random = torch.rand(len(rows), generator=generator) < random_share
        columns = is_random.to(decided.device).reshape(-1, *(1,) * (decided.ndim - 1))
        decided = torch.where(columns, anything, decided)
        following = torch.cat((self._done(decided), memory), dim=1)
        return decided.cpu().numpy(), following.cpu().numpy()

    def _uniform(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Return decisions drawn uniformly, of the shape of ``like``."""
        share = torch.rand(like.shape, generator=generator)
        if self._seat is None:
            counts = torch.tensor(self._counts if like.ndim > 1 else self._counts[0])
            return (share * counts).long().clamp_max(counts - 1)
        low, high = self._seat
        drawn = low + share * (high - low)
        return torch.atanh(drawn.clamp(-0.999999, 0.999999)) if self._e3t.squash_actions else drawn

    def update(self, buffer: OnPolicyBuffer, *, done: int = 0, total: int = 1) -> dict[str, float]:
        """Learn from ``buffer``, and let the copy follow."""
        figures = super().update(buffer, done=done, total=total)
        owners = self.belief, self.network.actor, cast("nn.Module", self.network.head)
        with torch.no_grad():
            for name, owner in zip(self.copy, owners, strict=True):
                for slow, fast in zip(
                    self.copy[name].parameters(), owner.parameters(), strict=True
                ):
                    slow.lerp_(fast, self._e3t.copy_share)
        return figures

    def _own_state(self) -> dict[str, Any]:
        drawn = self.partner_generator.get_state()
        return {**super()._own_state(), "copy": self.copy.state_dict(), "partner_generator": drawn}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        super()._load_own_state(state)
        self.copy.load_state_dict(state["copy"])
        set_torch_state(self.partner_generator, state["partner_generator"])


#: From states, (N, P), and what is remembered, to actions, and what is remembered then.
_Deciding = Callable[[NDArray[Any], Float32Array], tuple[NDArray[Any], Float32Array]]


class _E3TKeywords(SoloKeywords, E3TSettings, total=False): ...


class NoisyCopy:
    """Plays the partner's seat as ``decide`` does, of what rows see, (N, P), and remember."""

    def __init__(self, decide: _Deciding, rows: int, width: int) -> None:
        self._decide = decide
        self._memory: Float32Array = np.zeros((rows, width), np.float32)

    def begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Forget the last episodes of ``rows``; see `PartnerPlayer`."""
        del episodes
        self._memory[rows] = 0.0

    def act(self, states: NDArray[Any]) -> Float32Array:
        """Return the copy's draws, and random ones in their place; see `PartnerPlayer`."""
        actions, self._memory = self._decide(states, self._memory)
        return np.asarray(actions, np.float32).reshape(len(states), -1)

    def end(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Learn nothing; see `PartnerPlayer`."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is remembered."""
        return {"memory": torch.tensor(self._memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._memory = state["memory"].numpy().copy()


class E3T(SelfPlaying, AdaptingAgent[E3TConfig]):
    """Efficient end-to-end training beside a noisy copy; `cadenza.learn.agents.e3t`, `E3TConfig`.

    Environments leave the partner's seat open, see `SelfPlaying`, and tell of it as `AdaptingAgent`
    says.

    Raises:
        ConfigurationError: Actions are numbers without finite bounds.
    """

    Config = E3TConfig
    learner: E3TLearner

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_E3TKeywords]) -> None:
        super().__init__(env, *others, **settings)

    def _learner(self, sizes: Sizes) -> E3TLearner:
        bounds, seat, told = self._action_bounds, None, cast("dict[str, Any]", sizes)
        if bounds is not None:
            other = cast("Any", self.envs.partner_spaces)[1]
            seat = other.low.ravel(), other.high.ravel()
            if not (is_scalable(*bounds) and is_scalable(*seat)):
                expected = "actions with finite bounds, for some are drawn uniformly"
                got = str(self.envs.action_space)
                refuse(ConfigurationError, self.name, expected=expected, got=got)
            seat = np.clip(seat[0], *bounds), np.clip(seat[1], *bounds)
            if self.config.squash_actions:
                middle, half = (bounds[1] + bounds[0]) / 2, (bounds[1] - bounds[0]) / 2
                seat = (seat[0] - middle) / half, (seat[1] - middle) / half
        return E3TLearner(self.config, partner=self._partner, bounds=bounds, seat=seat, **told)

    def _new_partner(self) -> NoisyCopy:
        return NoisyCopy(self._played, self.envs.num_envs, self.learner.state_width)

    def _played(
        self, states: NDArray[Any], memory: Float32Array
    ) -> tuple[NDArray[Any], Float32Array]:
        """Return the partner's actions, and what it remembers."""
        seen = self._seen(self.envs.rows(states), learn=False)
        share = value_at(self.config.random_share, self.steps)
        decided, memory = self.learner.play(seen, memory, random_share=share)
        actions, space = self._port.to_env(decided), cast("Any", self.envs.partner_spaces)[1]
        if self._action_bounds is not None:
            actions = np.clip(actions, space.low, space.high)
        return actions, memory
