"""An agent in Gymnasium environments: how it acts, is judged, exported and brought back.

Every agent but the teams is one; the algorithms add learners and batches, see `replay` and
`rollout`.

Axes:  N = environments, O = flattened observation, A = action components.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, cast, overload

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import MASK, Float32Array, legal_choices, require_finite
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.core.spaces import BoxSpace
from cadenza.learn.agents.agent import Agent, AgentConfig, AgentKeywords
from cadenza.learn.agents.judging import Evaluation, evaluate_batch, evaluate_side_by_side
from cadenza.learn.env.making import Environments, EnvLike, flat_rows
from cadenza.learn.env.stepping import ActionCodec, VectorSteps
from cadenza.learn.export import onnx_graph
from cadenza.learn.loaded_state import OwnStream, RandomSource
from cadenza.learn.nn.encoders import Network, encoder_factory, holds_images, parts_of
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import EncoderFactory
from cadenza.learn.nn.portable import Output, PortableNetwork
from cadenza.learn.nn.recurrent import carried
from cadenza.learn.nn.space_facts import space_facts


class SoloKeywords(AgentKeywords, total=False):
    """Keywords of a `SoloAgent`."""

    network: Network | None
    partners: Any
    sampler: Any


class SoloAgent(Agent[AgentConfig]):
    """An agent on the one seat of Gymnasium environments.

    ``network`` is what policy and critics begin with: ``"mlp"``, ``"cnn"`` for images, ``"dict"``
    for dicts with images, or a module of your own that returns features, (B, F), copied for every
    network. None chooses by the kind of observation.

    ``partners`` are who the agent learns beside in a task for two, given by its id or name: the
    folder of a zoo, the name of a partner, or several of either, one of them drawn for every
    episode. ``sampler`` says how: ``"uniform"``, ``"rank"``, ``"maximin"`` or ``"learnability"``.
    All environments are one batch then. A saved agent remembers its partners by address and digest.
    """

    envs: Environments
    #: With ``greedy``, the policy without chance from flat observations to decisions.
    learner: Any
    _port: ActionCodec

    def __init__(
        self,
        env: EnvLike,
        *others: Any,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        device: str = "cpu",
        partners: Any = None,
        sampler: Any = None,
        **config: Any,
    ) -> None:
        self._company: dict[str, Any] = {"partners": partners, "sampler": sampler}
        if others:  # as in Stable-Baselines3: ("MlpPolicy", env)
            raise ConfigurationError(
                f"{type(self).__name__}: expected the environment alone, got {env!r} before "
                f"{others[0]!r}; networks are chosen by the kind of observation, or by "
                f'{type(self).__name__}({others[0]!r}, network="mlp").'
            )
        self.network: Network | None = network
        super().__init__(env, seed=seed, num_envs=num_envs, device=device, **config)

    @property
    def _encoder(self) -> EncoderFactory | None:
        """What makes the first part of every network, each time with the same weights."""
        stream = derive_substream("learn.api.encoder", root_seed=self.seed)
        generator = torch.Generator().manual_seed(stream.integer_seed())
        return encoder_factory(self.network, self.envs.features, generator)

    def _threads(self) -> AbstractContextManager[None]:
        """Leave encoders of images, and your own, as many threads as torch has."""
        own = isinstance(self.network, nn.Module)
        has_images = self._encoder is not None and holds_images(self.envs.features)
        return nullcontext() if own or has_images else super()._threads()

    def _environments(self, env: EnvLike, count: int | None) -> Environments:
        return Environments(
            env,
            count=count,
            default=self.default_envs,
            seed=derive_substream("learn.api.env", root_seed=self.seed).integer_seed(),
            group_size=self._group_size,
            masked=self._is_masked,
            partner=self._models_partner,
            **self._company,
        )

    @property
    def _group_size(self) -> int:
        """How many environments begin alike."""
        return 1

    @property
    def _is_masked(self) -> bool:
        """Whether environments tell legal actions."""
        return False

    @property
    def _models_partner(self) -> bool:
        """Whether it learns from what environments tell of a partner."""
        return False

    @property
    def _masks_told(self) -> Literal["observation", "info"] | None:
        """What tells legal actions, if anything does."""
        if not self.envs.masks:
            return None
        return "observation" if self.envs.layout is self.envs.space else "info"

    @overload
    def predict(
        self, observation: Any, *, deterministic: bool = True, action_mask: Any = None
    ) -> NDArray[Any]: ...
    @overload
    def predict(
        self,
        observation: Any,
        *,
        deterministic: bool = True,
        action_mask: Any = None,
        state: Float32Array | None,
        episode_start: Any = False,
    ) -> tuple[NDArray[Any], Float32Array]: ...
    def predict(
        self,
        observation: Any,
        *,
        deterministic: bool = True,
        action_mask: Any = None,
        state: Float32Array | EllipsisType | None = ...,
        episode_start: Any = False,
    ) -> NDArray[Any] | tuple[NDArray[Any], Float32Array]:
        """Return the action for one observation, or for several with a leading axis N.

        One that is not deterministic is drawn as in training, from a stream of its own. An agent
        that learned with ``info["action_mask"]`` needs it, (M,) or (N, M).

        With ``state``, return also the next one: what is remembered of the episode so far, (S,) or
        (N, S); None, or True for an ``episode_start``, (N,), where one begins. An agent with a
        memory needs it; others remember nothing.

        Raises:
            InputError: The observation has another shape, or is not finite; a mask is missing, not
                wanted, or leaves no legal action; a state is missing or of another shape.
        """
        where = f"{self.name}.predict"
        if state is ... and self.state_width:
            expected = "state=..., because the agent has a memory"
            do = "write action, state = agent.predict(observation, state=state) with None where an "
            refuse(InputError, where, expected=expected, got="none", do=f"{do}episode begins")
        told = self._masks_told
        if (told == "info") != (action_mask is not None):
            kind = {
                "info": f"{MASK}, because info['{MASK}'] told the legal actions in training",
                "observation": f"no {MASK}, because it is a part of the observation",
                None: f"no {MASK}, because the agent learned without any",
            }[told]
            refuse(InputError, where, expected=kind, got="none" if told == "info" else "one")
        rows, is_single = self._observed(observation, action_mask)
        before = None if state is ... else state
        memory = carried(where, before, (len(rows), self.state_width), episode_start)
        with nullcontext() if deterministic else self._drawn.instead_of(self._drawing):
            actions, memory = self._act(rows, memory, deterministic=deterministic)
        if is_single:
            actions, memory = actions[0], memory[0]
        return actions if state is ... else (actions, memory)

    @property
    def state_width(self) -> int:
        """S, what the policy remembers of an environment: nothing."""
        return 0

    @abstractmethod
    def _act(
        self, rows: NDArray[Any], state: Float32Array, *, deterministic: bool
    ) -> tuple[NDArray[Any], Float32Array]:
        """Return the environment's actions for rows, (N, O), and the next state.

        ``state``, (N, S), is what is remembered of each.
        """

    def evaluate(
        self,
        episodes: int = 20,
        *,
        env: EnvLike | None = None,
        num_envs: int | None = None,
        seed: int = 0,
        max_episode_steps: int | None = None,
    ) -> Evaluation:
        """Play greedy episodes that no training sees; equal ``seed`` gives equal episodes.

        They are played in ``env``: an environment other than those it learns in, an id, or a
        function that makes one; None makes one like those it learned in. With ``num_envs``, as many
        are played at once, in environments of their own: the same episodes, but for rounding. A
        vector environment plays as many as it has environments, each a fixed number one after the
        other; these begin otherwise. See `cadenza.learn.agents.judging`.

        Those longer than ``max_episode_steps`` are cut; where the environment has no time limit, it
        is required.

        Raises:
            InputError: A number is below 1, there is no way to make an environment, a return is not
                finite, or an episode goes on and on.
        """
        limited: Any = {"max_episode_steps": max_episode_steps}
        if isinstance(env, VectorEnv):
            batch = VectorSteps(self.envs.batch(cast("Any", env), num_envs))
            first = derive_substream("learn.evaluation.batch", root_seed=seed).integer_seed()
            play = self._player()
            return evaluate_batch(
                lambda seen, played: play(self.envs.rows(seen), played),
                batch,
                episodes,
                seed=first,
                **limited,
            )
        worlds = self.envs.several(env, num_envs)
        play = self._player()
        judged = evaluate_side_by_side(
            lambda seen, played: play(
                np.concatenate([self._observed(each)[0] for each in seen]), played
            ),
            [self.envs.told(world) for world in worlds],
            episodes,
            seed=seed,
            **limited,
        )
        for world in worlds:
            if world is not env:
                world.close()
        return judged

    def _player(self) -> Callable[[NDArray[Any], Sequence[int]], NDArray[Any]]:
        """Return what acts greedily for rows of the given episodes, and remembers them."""
        states: dict[int, Float32Array] = {}
        fresh = np.zeros(self.state_width, np.float32)

        def play(rows: NDArray[Any], episodes: Sequence[int]) -> NDArray[Any]:
            memory = np.stack([states.get(each, fresh) for each in episodes])
            actions, memory = self._act(rows, memory, deterministic=True)
            states.clear()
            states.update(zip(episodes, memory, strict=True))
            return actions

        return play

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy policy as an ONNX file; return its path.

        The file takes observations with a leading axis N: ``obs``, or one input for every part of a
        Dict or Tuple (``obs.camera``, ``obs.arm.joints``, ``obs.0``), and gives ``actions`` in the
        environment's units. An agent with a memory also takes ``state``, zeros where an episode
        begins, and gives ``next_state``. ONNX Runtime agreed on random inputs before it appears.

        Raises:
            MissingExtraError: The extra ``onnx`` is not installed.
            OnnxExportError: The network cannot be exported.
        """
        space = self.envs.layout
        policy = onnx_graph.ObservationParts(self.deployed(), space)
        signature = onnx_graph.observation_signature(space, self.device)
        if self.state_width:
            inputs = {**signature.inputs, "state": BoxSpace(np.float32, (self.state_width,))}
            signature = replace(signature, inputs=inputs, outputs=("actions", "next_state"))
        return onnx_graph.write_policy(policy, signature, Path(path), self._onnx_metadata())

    def networks(self) -> dict[str, PortableNetwork]:
        """Return the policy as plain data; see `Agent.networks`."""
        told = {} if self._masks_told is None else {"masks": self._masks_told}
        network = PortableNetwork(
            layers=layers_of(self._policy),
            output=self._output(),
            observation=space_facts(self.envs.features),
            action={**space_facts(self.envs.action_space), **told},
            **self._policy_facts(),
        )
        return {"": network}

    @property
    def _policy(self) -> nn.Module:
        """The learner's greedy policy for observations as they are."""
        return self.learner.greedy

    def _output(self) -> Output:
        """Return how a policy file makes an action of what the learner's greedy policy returns."""
        return self._port.output()

    @property
    @abstractmethod
    def _drawing(self) -> RandomSource:
        """What exploring actions are drawn from."""

    @cached_property
    def _drawn(self) -> OwnStream:
        """What `predict` draws from, so that no training notices."""
        return OwnStream(derive_substream("learn.api.predict", root_seed=self.seed).integer_seed())

    @cached_property
    def _worlds(self) -> VectorSteps:
        return VectorSteps(self.envs.vector)

    def _begin_episodes(self) -> None:
        """Get ready to step the environments."""
        if self.envs.is_made:
            _ = self._worlds  # refuses what does not say how it resets
        self._rows: NDArray[Any] | None = None
        self._returns = np.zeros(self.envs.num_envs)
        #: Where the environments were, until the next training brings them back.
        self._saved_episodes: Mapping[str, Any] | None = None

    def forget(self) -> None:
        """Begin new episodes with the next step."""
        super().forget()
        self._rows = None
        self._returns[:] = 0.0

    def _episodes(self) -> dict[str, Any]:
        """Return where the environments are."""
        if self._saved_episodes is not None:
            return dict(self._saved_episodes)
        return {
            "envs": self._worlds.state_dict() if self.envs.is_made else None,
            "rows": None if self._rows is None else torch.tensor(self._rows),
            "returns": self._returns.tolist(),
        }

    def _load_episodes(self, state: Mapping[str, Any]) -> None:
        """Go on from there with the next training."""
        self._saved_episodes = {key: state[key] for key in ("envs", "rows", "returns")}
        if state["envs"] is None:
            self._saved_episodes = None
        if state["envs"] is None or state["rows"] is None:
            self.forget()

    def _why_not_resumable(self) -> str:
        saved = self._saved_episodes
        if saved is None or saved["rows"] is None:
            return ""
        before, now = len(saved["returns"]), self.envs.num_envs
        if before != now:
            return f"there were {before} environments, now there are {now}"
        if not self._worlds.can_replay(saved["envs"]):
            return "a ready-made vector environment cannot replay its episodes"
        return ""

    def _resume_episodes(self) -> None:
        saved = self._saved_episodes
        if saved is None:
            return
        lost, left = self._why_not_resumable(), list[str]()
        if len(saved["returns"]) == self.envs.num_envs:
            try:
                left = self._worlds.load_state_dict(saved["envs"], go_on=saved["rows"] is not None)
            except CheckpointError as error:
                lost = lost or str(error).rstrip(".")
        self._saved_episodes = None
        if lost:
            self.forget()
            self._warn(f"new episodes begin, because {lost}")
            return
        if saved["rows"] is not None:
            self._rows = saved["rows"].numpy().copy()
            self._returns = np.array(saved["returns"], dtype=np.float64)
        self._warn_of_held(left)

    @abstractmethod
    def deployed(self) -> nn.Module:
        """Return a module from observations, (B, *shape), to greedy actions of the environment."""

    def _observed(self, observation: Any, mask: Any = None) -> tuple[NDArray[Any], bool]:
        """Return flat rows, and whether there was one observation without an axis N.

        A ``mask`` stands beside the observation, which else has all of the layout.
        """
        where, space = f"{self.name}.predict", self.envs.layout if mask is None else self.envs.space
        leaf, part = observation, space
        try:
            while part.shape is None:
                name, part = next(iter(parts_of(part).items()))
                leaf = leaf[name]
            is_single = np.shape(leaf) == part.shape
            if not is_single and np.shape(leaf)[1:] != part.shape:
                raise ValueError(f"shape {np.shape(leaf)}")  # noqa: TRY301 -- as NumPy's own
            rows = flat_rows(observation, space)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{where}: expected an observation of {space}, or several with a "
                f"leading axis, got another: {error}."
            ) from error
        require_finite(f"{where}: observation", rows)
        if mask is not None:
            legal = legal_choices(where, mask, len(rows), self.envs.masks)
            rows = np.concatenate((rows, legal.astype(np.int8)), axis=1)
        elif self.envs.masks:
            rows = self.envs.rows(rows)
        if self.envs.masks:
            self.envs.require_legal(rows, where)
        return rows, is_single


class Deployed(nn.Module):
    """Observations in their shape, (B, *shape), to actions of the environment.

    ``order`` says which columns of flat observations ``greedy`` takes, where not all as they are.
    """

    def __init__(
        self, greedy: nn.Module, codec: ActionCodec, order: NDArray[np.intp] | None = None
    ) -> None:
        super().__init__()
        self.greedy = greedy
        self._codec, self._order = codec, order

    def forward(self, obs: Tensor, *state: Tensor) -> Any:
        """Return actions, (B, *action shape), and the next state if there is one."""
        rows = obs.float().flatten(start_dim=1)
        if self._order is not None:
            rows = rows[:, torch.tensor(self._order, device=rows.device)]
        if not state:
            return self._codec.to_env(self.greedy(rows))
        decided, following = self.greedy(rows, *state)
        return self._codec.to_env(decided), following

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file, whose output does the rest."""
        return [self.greedy]
