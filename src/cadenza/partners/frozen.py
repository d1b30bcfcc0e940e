"""Partners that play the frozen weights of a trained policy: MAPPO's, HARL's, or an ONNX file.

MAPPO:      mean = Wh tanh(W2 tanh(W1 s + b1) + b2) + bh,   σ = exp(log_std), or 0 without it
HARL:       mean and σ as in `cadenza.learn.nn.gaussian_actor`; HARL's own checkpoints load
Action:     the mean, or mean + σ ε with ε ~ Normal(0, 1) from the partner's own generator; neither
            squashed nor clipped, unless `bind` was called.
Axes:       N = rows, O = state, H = hidden, A = action.
ONNX:       one float input (N, O) with the states, perhaps a second one, ``epsilon`` (N, A), with
            standard normal noise; the first output is the actions, (N, A). `Agent.export_onnx` and
            the engine's exporter write such files.
Frozen:     weights are hashed when they are loaded and again at every reset; the bytes of a graph
            that were hashed are those that are played, and ONNX Runtime cannot change it.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, CheckpointNotFoundError, InputError, IntegrityError
from cadenza.core.extras import load_extra
from cadenza.core.files import sha256_bytes
from cadenza.partners.interface import DrawingPartner, PartnerCard, read_state
from cadenza.partners.options import refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import (
    load_weights,
    require_digest,
    require_uid,
    require_weights_uri,
    weights_path,
)

if TYPE_CHECKING:
    from torch import Tensor

_LOGGER = logging.getLogger(__name__)

#: Weights of the MAPPO actor.
_MAPPO_WEIGHTS: Final = ("fc1.weight", "fc2.weight", "head.weight")
#: Its log standard deviation, (A,); absent from checkpoints of a deterministic actor.
_LOG_STD: Final = "log_std"
#: Tensors that tell HARL's sizes.
_HARL_SHAPES: Final = ("base.feature_norm.weight", "act.action_out.fc_mean.weight")


class StatePolicyPartner(DrawingPartner):
    """Plays a function of the robot's own state, loaded at the first ``reset`` or ``act``.

    Subclasses say how: `sizes` loads it, `actions` computes it.
    """

    #: How messages call the length of the state.
    input_name: ClassVar[str] = "input dim"

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        require_weights_uri(owner, spec)
        self._uid = require_uid(owner, spec)
        refuse_unknown_options(owner, spec.extra, ())

    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Load the policy if need be, and return the lengths O of states and A of actions."""

    @abstractmethod
    def actions(self, states: Float32Array, noise: Float32Array | None) -> Float32Array:
        """Return actions (N, A) for ``states`` (N, O)."""

    def reset(self, *, seed: int | None = None) -> None:
        """Load the policy if need be and open the episode's generator."""
        self.sizes()
        super().reset(seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the policy's action, float32, (A,), or (N, A) for N states."""
        state = read_state(obs, self._uid)
        length, width = self.sizes()
        if state.shape[-1] != length:
            raise InputError(
                f"{type(self).__name__}: obs['agent'][{self._uid!r}]['state']: expected length "
                f"{length} ({self.input_name} of the policy), got {state.shape[-1]}; the "
                "weights were trained on another task, seat or number of robots."
            )
        states = np.ascontiguousarray(np.atleast_2d(state), dtype=np.float32)
        noise = None if deterministic else self._noise(len(states), width)
        actions = self.actions(states, noise)
        return self.checked(actions if state.ndim == 2 else actions[0])

    def _noise(self, rows: int, width: int) -> Float32Array:
        noise, generators = np.empty((rows, width), dtype=np.float32), self.generators
        for row in range(rows):
            generators[row].standard_normal(out=noise[row], dtype=np.float32)
        return noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Actor:
    """Weights without gradient, and how to play them.

    Attributes:
        tensors: The weights.
        mean: Means (N, A) from weights and states (N, O).
        deviation: σ from weights, (A,).
        sizes: O and A.
    """

    tensors: "tuple[Tensor, ...]"
    mean: "Callable[[Sequence[Tensor], Tensor], Tensor]"
    deviation: "Callable[[Sequence[Tensor]], Tensor]"
    sizes: tuple[int, int]

    def digest(self) -> str:
        """Return SHA-256 of all weights."""
        material = sha256()
        for tensor in self.tensors:
            material.update(repr(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
        return material.hexdigest()


class FrozenNetworkPartner(StatePolicyPartner):
    """Plays an actor out of a checkpoint, on the CPU."""

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._actor: _Actor | None = None
        self._digest = ""

    @abstractmethod
    def read_actor(self, payload: Mapping[str, Any]) -> _Actor:
        """Return the actor in a checkpoint."""

    def reset(self, *, seed: int | None = None) -> None:
        """Check the weights and open the episode's generator.

        Raises:
            CheckpointError: The weights cannot be loaded.
            IntegrityError: A weight has changed since it was loaded.
        """
        super().reset(seed=seed)
        self.verify_weights()

    def verify_weights(self) -> str:
        """Return the SHA-256 of the weights, which are those that were loaded; see `reset`."""
        digest = self._loaded().digest()
        if digest != self._digest:
            raise IntegrityError(
                f"{type(self).__name__}: expected frozen weights with SHA-256 {self._digest}, got "
                f"{digest}: something changed them after they were loaded (ADR-009); load the "
                "partner again and find what trains it."
            )
        return digest

    def sizes(self) -> tuple[int, int]:
        """Load the actor if need be, and return O and A."""
        return self._loaded().sizes

    def actions(self, states: Float32Array, noise: Float32Array | None) -> Float32Array:
        """Return means, or means + σ · ``noise``, (N, A)."""
        import torch

        actor = self._loaded()
        actions = actor.mean(actor.tensors, torch.tensor(states))
        if noise is not None:
            actions = actions + actor.deviation(actor.tensors) * torch.tensor(noise)
        return actions.numpy()

    def _loaded(self) -> _Actor:
        if self._actor is None:
            actor = self.read_actor(load_weights(type(self).__name__, self.spec))
            self._actor, self._digest = actor, actor.digest()
        return self._actor


@register_partner("frozen_mappo")
class FrozenMAPPOPartner(FrozenNetworkPartner):
    """Plays a shared-parameter MAPPO actor with two tanh layers.

    The checkpoint holds the weights under ``actor``, or, with a warning, at the top: ``fc1``,
    ``fc2`` and ``head``, with biases, and optionally ``log_std`` (A,), without which samples are
    the means. Sizes are read off the tensors.
    """

    input_name = "fc1 input dim"
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays the frozen weights of a MAPPO actor (two tanh layers).",
        options={"uid": "robot it drives"},
    )

    def read_actor(self, payload: Mapping[str, Any]) -> _Actor:
        """Return the actor in ``payload``."""
        owner = type(self).__name__
        tensors = _actor_tensors(owner, payload, _MAPPO_WEIGHTS, "fc1/fc2/head")
        shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        fc1, fc2, head = (shapes[key] for key in _MAPPO_WEIGHTS)
        hidden, inputs, outputs = (*fc1, 0, 0)[0], fc1[-1:], head[:1]
        if fc2 != (hidden, hidden):
            raise InputError(
                f"{owner}: fc2 shape: expected {(hidden, hidden)}, got {fc2}; the actor has two "
                "layers of one width."
            )
        if head[-1:] != (hidden,):
            raise InputError(
                f"{owner}: head input dim: expected {hidden}, the width of fc2, got {head[-1:]}."
            )
        layers = {"fc1": (hidden, *inputs), "fc2": fc2, "head": (*outputs, hidden)}
        wanted = {f"{name}.weight": shape for name, shape in layers.items()}
        wanted |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
        wanted |= {_LOG_STD: outputs} if _LOG_STD in shapes else {}
        if shapes != wanted:
            raise InputError(
                f"{owner}: load_state_dict failed: expected tensors of the shapes {wanted}, got "
                f"{shapes}."
            )
        return _Actor(
            tensors=tuple(tensors[key] for key in wanted),
            mean=_mappo_mean,
            deviation=_mappo_deviation,
            sizes=(inputs[0], outputs[0]),
        )


@register_partner("frozen_harl")
class FrozenHARLPartner(FrozenNetworkPartner):
    """Plays the actor of a HAPPO checkpoint, this package's or HARL's own.

    The checkpoint holds the state dict of HARL's stochastic policy (feature normalization, ReLU,
    no recurrence) under ``actor`` beside critic and optimizers, or alone at the top. Depth and
    widths are read off the tensors.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays the frozen weights of a HAPPO actor (HARL's network).",
        options={"uid": "robot it drives"},
    )

    def read_actor(self, payload: Mapping[str, Any]) -> _Actor:
        """Return the actor in ``payload``."""
        from cadenza.learn.nn import gaussian_actor as harl

        owner = type(self).__name__
        state = _actor_tensors(
            owner, payload, _HARL_SHAPES, "HARL's stochastic policy with feature normalization"
        )
        bound = float(payload.get(harl.STANDARD_DEVIATION_KEY, harl.MAX_STANDARD_DEVIATION))
        try:
            actor = harl.GaussianActor.from_state_dict(state, max_standard_deviation=bound)
        except CheckpointError as error:
            raise InputError(f"{owner}: load_state_dict failed: {error}") from error
        tensors = tuple(parameter.detach() for parameter in actor.parameters())
        transposed = [tensor.t() for tensor in tensors]  # views of the same weights
        log_std = next(
            i for i, (name, _) in enumerate(actor.named_parameters()) if "log_std" in name
        )
        return _Actor(
            tensors=tensors,
            mean=lambda _, states: harl.actor_mean(transposed, states),
            deviation=lambda weights: harl.actor_standard_deviation(weights[log_std], bound),
            sizes=(int(tensors[0].shape[0]), int(tensors[-1].shape[0])),
        )


def _mappo_mean(weights: "Sequence[Tensor]", states: "Tensor") -> "Tensor":
    import torch

    fc1, fc2, head, *biases = weights
    linear = torch.nn.functional.linear
    x = torch.tanh_(linear(states, fc1, biases[0]))
    x = torch.tanh_(linear(x, fc2, biases[1]))
    return linear(x, head, biases[2])


def _mappo_deviation(weights: "Sequence[Tensor]") -> "Tensor":
    """Return exp(log_std), the last of seven tensors; zeros where there are six."""
    return weights[6].exp() if len(weights) > 6 else 0.0 * weights[5]


def _actor_tensors(
    owner: str, payload: Mapping[str, Any], needed: Sequence[str], what: str
) -> "dict[str, Tensor]":
    """Return independent float32 copies of the actor's tensors, the entry ``actor`` or all."""
    import torch

    state = payload.get("actor")
    if state is None and set(needed) <= set(payload):
        _LOGGER.warning(
            "%s: the checkpoint holds an actor without the key 'actor'; save {'actor': ...} to "
            "leave no doubt what it is.",
            owner,
        )
        state = payload
    if not isinstance(state, Mapping):
        raise InputError(
            f"{owner}: expected a checkpoint with a mapping 'actor', got the keys "
            f"{sorted(payload)}; save {{'actor': actor.state_dict()}}."
        )
    named = cast("Mapping[str, Any]", state)
    if missing := [key for key in needed if key not in named]:
        raise InputError(
            f"{owner}: expected the weights of {what}, got none called {missing[0]!r} among "
            f"{sorted(named)}; save the actor's state dict."
        )
    tensors: dict[str, Tensor] = {}
    for key, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{owner}: {key!r} must be torch.Tensor, got {type(value).__name__}.")
        tensors[key] = value.detach().to(torch.float32).contiguous().clone()
    return tensors


#: Name of the noise input.
EPSILON: Final = "epsilon"
#: Largest file that is read.
MAX_BYTES: Final = 2**31


@register_partner("onnx")
class OnnxPartner(StatePolicyPartner):
    """Plays the policy in an ONNX file, on the CPU.

    A policy without noise input gives the same action whether sampled or not.
    """

    input_name = "width of the graph's input"
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays the policy in an ONNX file.", options={"uid": "robot it drives"}
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._session: Any = None
        self._takes_noise = False
        self._sizes = (0, 0)
        self._names: tuple[str, str] = ("", "")

    def sizes(self) -> tuple[int, int]:
        """Load the file if need be, and return O and A.

        Raises:
            CheckpointError: The file is missing or no ONNX graph.
            InputError: The graph has other inputs or outputs.
            MissingExtraError: The extra ``onnx`` is not installed.
        """
        if self._session is None:
            self._load()
        return self._sizes

    def actions(self, states: Float32Array, noise: Float32Array | None) -> Float32Array:
        """Return the graph's actions, (N, A)."""
        state_name, action_name = self._names
        feeds = {state_name: states}
        if self._takes_noise:
            zeros = np.zeros((len(states), self._sizes[1]), dtype=np.float32)
            feeds[EPSILON] = zeros if noise is None else noise
        (actions,) = self._session.run([action_name], feeds)
        return np.asarray(actions, dtype=np.float32)

    def _load(self) -> None:
        owner, spec = type(self).__name__, self.spec
        path = weights_path(require_weights_uri(owner, spec))
        if not path.is_file():
            raise CheckpointNotFoundError(
                f"{owner}: {path}: file not found; check the name and the artifacts folder."
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
        require_digest(owner, spec, sha256_bytes(data))
        runtime = load_extra("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:  # from bytes: a graph read from a path could name further files
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CheckpointError(
                f"{owner}: {path}: expected an ONNX graph, got {error}"
            ) from error
        self._describe(session)
        self._session = session

    def _describe(self, session: Any) -> None:
        """Note names and widths of the graph's inputs and outputs."""
        inputs: Mapping[str, Any] = {node.name: node for node in session.get_inputs()}
        output = session.get_outputs()[0]
        states = [node for name, node in inputs.items() if name != EPSILON]
        shapes = {name: tuple(node.shape) for name, node in inputs.items()}
        ranks = [len(node.shape) for node in (*states, output)]
        widths = [node.shape[-1] for node in (*states, output) if len(node.shape)]
        if len(states) != 1 or ranks != [2, 2] or not all(type(n) is int for n in widths):
            raise InputError(
                f"{type(self).__name__}: {self.spec.weights_uri}: expected one input (N, O), "
                f"perhaps '{EPSILON}', and a first output (N, A), got the inputs {shapes} and "
                f"the output {tuple(output.shape)}; export a policy of flat states."
            )
        self._names = (states[0].name, output.name)
        self._sizes = (int(widths[0]), int(widths[1]))
        self._takes_noise = EPSILON in inputs
