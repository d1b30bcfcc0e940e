"""Partners that play a frozen policy: a policy file, MAPPO's or HARL's weights, or an ONNX file.

MAPPO:      mean = Wh f(W2 f(W1 s + b1) + b2) + bh,   σ = exp(log_std), or 0 without it; f is tanh
            unless said otherwise
HARL:       see `cadenza.learn.nn.gaussian_actor`; the file that HARL's runner writes loads as it is
Action:     the mean, or mean + σ ε with ε ~ Normal(0, 1) from the partner's own generator; neither
            squashed nor clipped, unless the option ``squash`` says so or `bind` was called. A
            choice is the likeliest one, or a draw.
Axes:       N = rows, O = state, H = hidden, A = action.
ONNX:       one float input (N, O) with the states, perhaps a second one, ``epsilon`` (N, A), with
            standard normal noise; the first output is the actions, (N, A). `Agent.export_onnx` and
            the engine's exporter write such files. N may be a fixed number: rows are then played
            that many at a time, the last ones repeated.
Files:      the SHA-256 of the file's bytes is in ``spec.content_id``; nothing is written beside it.
Frozen:     weights are hashed when they are loaded and again at every reset; the bytes of a graph
            that were hashed are those that are played, and ONNX Runtime cannot change it.
"""

import json
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.contracts import TaskContract
from cadenza.core.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    InputError,
    IntegrityError,
)
from cadenza.core.extras import load_extra
from cadenza.core.files import sha256_bytes
from cadenza.partners.interface import DrawingPartner, PartnerCard, read_state
from cadenza.partners.options import NumberOption, refuse_unknown_options
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

    from cadenza.learn.nn.portable import PortableNetwork

_LOGGER = logging.getLogger(__name__)

#: Weights of the MAPPO actor.
_MAPPO_WEIGHTS: Final = ("fc1.weight", "fc2.weight", "head.weight")
#: Its log standard deviation, (A,); absent from checkpoints of a deterministic actor.
_LOG_STD: Final = "log_std"
#: What weights do not show, as options.
_TRAINED_WITH: Final = {
    "activation_func": (
        "of its hidden layers: relu, tanh, elu, gelu, silu, selu, leaky_relu, hardswish, sigmoid"
    ),
    "squash": "range 'LOW,HIGH' that the tanh of its outputs is scaled to; none (default): as is",
}
_SPREADS: Final = (
    NumberOption(key="std_x_coef", default=1.0, low=0.0, high=1e6, summary="scale of log_std"),
    NumberOption(key="std_y_coef", default=0.5, low=0.0, high=1e6, summary="largest spread"),
)


class StatePolicyPartner(DrawingPartner):
    """Plays a function of the robot's own state, loaded at the first ``reset`` or ``act``.

    Subclasses say how: `sizes` loads it, `actions` computes it, `contract` tells what its numbers
    mean.
    """

    _place: TaskContract | None = None

    #: How messages call the length of the state.
    input_name: ClassVar[str] = "input dim"
    #: Options beside those of every partner.
    own_options: ClassVar[tuple[str, ...]] = ()
    #: Robot it drives unless told otherwise; None asks for it.
    default_uid: ClassVar[str | None] = None

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        require_weights_uri(owner, spec)
        self._uid = spec.extra.get("uid") or self.default_uid or require_uid(owner, spec)
        refuse_unknown_options(owner, spec.extra, self.own_options)

    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Load the policy if need be, and return the lengths O of states and A of actions."""

    @abstractmethod
    def actions(
        self, states: Float32Array, noise: Float32Array | None, rows: Sequence[int]
    ) -> Float32Array:
        """Return actions (N, A) for ``states`` (N, O) of ``rows`` of the batch, (N,)."""

    @property
    def contract(self) -> TaskContract | None:
        """What the policy's numbers mean, as far as its file says it; it is loaded if need be."""
        return None

    def bind_contract(self, contract: TaskContract | None) -> None:
        """See `PartnerBase.bind_contract`; the next reset refuses a policy of another one."""
        self._place = contract

    def reset(self, *, seed: int | None = None) -> None:
        """Load the policy if need be and open the episode's generator.

        Raises:
            CheckpointError: It was trained for another task contract.
        """
        self.sizes()
        if self._place is not None:
            self._place.require_match(str(self.spec.weights_uri), self.contract)
        super().reset(seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the policy's action, float32, (A,), or (N, A) for N states."""
        state = read_state(obs, self._uid)
        action = self._act(
            np.atleast_2d(state), range(state.size // state.shape[-1]), deterministic
        )
        return action if state.ndim == 2 else action[0]

    def _act(self, state: NDArray[Any], rows: Sequence[int], deterministic: bool) -> Float32Array:
        """Return the actions of ``rows`` for their states, (n, A)."""
        length, width = self.sizes()
        if state.shape[-1] != length:
            raise InputError(
                f"{type(self).__name__}: obs['agent'][{self._uid!r}]['state']: expected length "
                f"{length} ({self.input_name} of the policy), got {state.shape[-1]}; the "
                "weights were trained on another task, seat or number of robots."
            )
        states = np.ascontiguousarray(state, dtype=np.float32)
        noise = None if deterministic else self._noise(rows, width)
        return self.checked(self.actions(states, noise, rows))

    def _noise(self, rows: Sequence[int], width: int) -> Float32Array:
        noise, generators = np.empty((len(rows), width), dtype=np.float32), self.generators
        for place, row in enumerate(rows):
            generators[row].standard_normal(out=noise[place], dtype=np.float32)
        return noise


class FrozenNetworkPartner(StatePolicyPartner):
    """Plays a network out of a file, on the CPU."""

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._network: PortableNetwork | None = None
        self._remembered: dict[int, Float32Array] = {}  # of every row's episode, (S,)
        self._bound: Box[Any] | Discrete[Any] | None = None

    @abstractmethod
    def read_network(self) -> "PortableNetwork":
        """Return what the spec names."""

    def reset(self, *, seed: int | None = None) -> None:
        """Check the weights and open the episode's generator.

        Raises:
            CheckpointError: The weights cannot be loaded.
            IntegrityError: A weight has changed since it was loaded.
        """
        super().reset(seed=seed)
        self._remembered = {}
        self.verify_weights()

    def verify_weights(self) -> str:
        """Return the content id of the network, which is the one that was loaded; see `reset`."""
        network = self.network
        digest = network.digest()
        if digest != network.content_id:
            raise IntegrityError(
                f"{type(self).__name__}: expected frozen weights with the id {network.content_id}, "
                f"got {digest}: something changed them after they were loaded (ADR-009); load the "
                "partner again and find what trains it."
            )
        return digest

    def sizes(self) -> tuple[int, int]:
        """Load the network if need be, and return O and A, the number of choices if it chooses."""
        network = self.network
        return network.observation_dim, network.num_choices or network.action_dim

    @property
    def contract(self) -> TaskContract | None:
        """What the numbers of the network mean."""
        return self.network.contract

    @property
    def network(self) -> "PortableNetwork":
        """The policy, loaded if need be."""
        if self._network is None:
            network = self.read_network()
            self._require_kind(network)
            self._network = network
        return self._network

    def noise(self, rows: Sequence[int]) -> Float32Array:
        """Return what draws the next actions of ``rows``, one generator each; see `act`."""
        return self._noise(rows, self.sizes()[1])

    @property
    def uid(self) -> str:
        """Robot whose state it reads."""
        return self._uid

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        self._remembered.pop(row, None)

    def act_rows(
        self, obs: Mapping[str, Any], rows: NDArray[np.intp], *, deterministic: bool = True
    ) -> Float32Array:
        """Return the actions of some rows alone, (n, A); see `PartnerBase.act_rows`."""
        return self._act(read_state(obs, self._uid)[rows], rows.tolist(), deterministic)

    def actions(
        self, states: Float32Array, noise: Float32Array | None, rows: Sequence[int]
    ) -> Float32Array:
        """Return actions without noise or drawn with it, (N, A), or choices, (N, 1)."""
        network, memory = self.network, None
        if network.state_width:
            fresh = np.zeros(network.state_width, np.float32)
            memory = np.stack([self._remembered.get(row, fresh) for row in rows])
        actions, memory = network.step(states, memory, noise)
        if network.state_width:
            self._remembered |= dict(zip(rows, memory, strict=True))
        return actions.reshape(len(states), -1).astype(np.float32)

    def bind(self, action_space: "Box[Any] | Discrete[Any]") -> None:
        """See `PartnerBase.bind`; a network of other actions is refused when it is loaded."""
        super().bind(action_space)
        self._bound = action_space
        if self._network is not None:
            self._require_kind(self._network)

    def _require_kind(self, network: "PortableNetwork") -> None:
        """Raise unless ``network`` has the actions of the bound space, or its choices."""
        space, table = self._bound, network.output.choices
        if isinstance(space, Discrete):
            first = None if table is None else float(table.min())
            fits = (network.num_choices, first) == (int(space.n), float(space.start))
        else:
            fits = space is None or network.action_dim == (space.shape or (1,))[0]
            fits = fits and (space is None or table is None or table.ndim > 1)
        if not fits:
            choices = network.num_choices
            kind = f"{choices} choices" if choices else f"{network.action_dim} continuous actions"
            raise InputError(
                f"{type(self).__name__}: expected an actor for {space}, got one of {kind}; it was "
                "trained on another task or for another robot."
            )

    def _noise(self, rows: Sequence[int], width: int) -> Float32Array:
        if self.network.num_choices is None:
            return super()._noise(rows, width)
        rngs = [self.generators[row] for row in rows]
        return np.array([rng.gumbel(size=width) for rng in rngs], dtype=np.float32)


class FrozenActorPartner(FrozenNetworkPartner):
    """Plays an actor out of a checkpoint, or out of a file that another library wrote."""

    _is_foreign = False  # which of them it is

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._squash = _squash(type(self).__name__, spec.extra.get("squash", "none"))

    @abstractmethod
    def read_actor(self, payload: Mapping[str, Any]) -> "PortableNetwork":
        """Return the actor in the content of a file."""

    def read_network(self) -> "PortableNetwork":
        """Return the actor that the spec names."""
        payload, self._is_foreign = load_weights(type(self).__name__, self.spec)
        return self.read_actor(payload)


@register_partner("frozen_mappo")
class FrozenMAPPOPartner(FrozenActorPartner):
    """Plays a shared-parameter MAPPO actor with two hidden layers, tanh unless said otherwise.

    The checkpoint holds the weights under ``actor``, or, with a warning, at the top: ``fc1``,
    ``fc2`` and ``head``, with biases, and optionally ``log_std`` (A,), without which samples are
    the means. Sizes are read off the tensors. The activation stands in the checkpoint, as
    ``activation_func``, or in the options; tanh is assumed with a warning.
    """

    input_name = "fc1 input dim"
    own_options: ClassVar[tuple[str, ...]] = tuple(_TRAINED_WITH)
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays the frozen weights of a MAPPO actor (two tanh layers).",
        options={"uid": "robot it drives", **_TRAINED_WITH},
    )

    def read_actor(self, payload: Mapping[str, Any]) -> "PortableNetwork":
        """Return the actor in ``payload``."""
        owner = type(self).__name__
        tensors = _actor_tensors(
            owner, payload, _MAPPO_WEIGHTS, "fc1/fc2/head", is_foreign=self._is_foreign
        )
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
        from cadenza.learn.nn.layers import Layer
        from cadenza.learn.nn.portable import Output, flat_network

        activation = self._activation(payload)
        between = [] if activation == "identity" else [Layer(activation)]
        fc1, fc2, head = (
            Layer("linear", tensors={k: tensors[f"{name}.{k}"] for k in ("weight", "bias")})
            for name in layers
        )
        stack = (fc1, *between, fc2, *between, head)
        ends = _ends(outputs[0], self._squash)
        return flat_network(stack, inputs[0], Output(**ends, log_std=tensors.get(_LOG_STD)))

    def _activation(self, payload: Mapping[str, Any]) -> str:
        from cadenza.learn.nn import gaussian_actor as harl

        owner, options = type(self).__name__, dict(self.spec.extra)
        if not {harl.ACTIVATION_KEY} & {*payload, *options}:
            _LOGGER.warning(
                "%s: the weights do not show which activation the actor was trained with; it "
                "uses tanh. Confirm or correct it with the option %r.",
                owner,
                harl.ACTIVATION_KEY,
            )
            options[harl.ACTIVATION_KEY] = "tanh"
        return harl.named_activation(owner, payload, options, is_foreign=False)


@register_partner("frozen_harl")
class FrozenHARLPartner(FrozenActorPartner):
    """Plays an actor of HARL's kind: of a HAPPO checkpoint of this package, or a file of HARL's.

    A checkpoint holds the state dict under ``actor`` beside critic and optimizers; HARL's own
    ``actor_agent0.pt`` is the state dict alone. Depth, widths, feature normalization and whether it
    chooses are read off the tensors; the options say the rest, see
    `cadenza.learn.nn.gaussian_actor.named_activation`.
    """

    own_options: ClassVar[tuple[str, ...]] = (*_TRAINED_WITH, *(option.key for option in _SPREADS))
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays the frozen weights of a HAPPO actor (HARL's network).",
        options={
            "uid": "robot it drives",
            **_TRAINED_WITH,
            **{o.key: f"{o.summary} of samples (default {o.default:g})" for o in _SPREADS},
        },
    )

    def read_actor(self, payload: Mapping[str, Any]) -> "PortableNetwork":
        """Return the actor in ``payload``."""
        from cadenza.learn.nn import gaussian_actor as harl
        from cadenza.learn.nn.portable import Output

        owner, extra = type(self).__name__, self.spec.extra
        state = _actor_tensors(owner, payload, (), "a HARL actor", is_foreign=self._is_foreign)
        named = harl.named_activation(owner, payload, extra, is_foreign=self._is_foreign)
        scale, bound = (option.read(owner, extra) for option in _SPREADS)
        if "std_y_coef" not in extra:
            bound = float(payload.get(harl.STANDARD_DEVIATION_KEY, bound))
        try:
            actor = harl.GaussianActor.from_state_dict(state, activation=named)
        except CheckpointError as error:
            raise InputError(f"{owner}: load_state_dict failed: {error}") from error
        network = actor.network()
        if actor.chooses:
            return network
        log_std = None
        if bound > 0.0:
            own = state["act.action_out.log_std"]
            log_std = harl.actor_standard_deviation(own, bound, scale).log()
        ends = _ends(actor.sizes[1], self._squash)
        return replace(network, output=Output(**ends, log_std=log_std))


def _ends(width: int, squash: tuple[np.float32, np.float32] | None) -> dict[str, Any]:
    """Return kind and bounds of an output: as is, or squashed into a range."""
    low, high = squash or (np.float32(-np.inf), np.float32(np.inf))
    ends = {"low": np.full(width, low), "high": np.full(width, high)}
    return {"kind": "mean" if squash is None else "tanh", **ends}


def _squash(owner: str, text: str) -> tuple[np.float32, np.float32] | None:
    """Return the range in the option ``squash``; None for none."""
    if text == "none":
        return None
    try:
        low, high = (np.float32(part) for part in text.split(","))
    except ValueError:
        low = high = np.float32("nan")
    if not -np.inf < low < high < np.inf:
        raise ConfigurationError(
            f"{owner}: option 'squash': expected 'none' or two numbers 'LOW,HIGH', got {text!r}."
        )
    return low, high


def _actor_tensors(
    owner: str,
    payload: Mapping[str, Any],
    needed: Sequence[str],
    what: str,
    *,
    is_foreign: bool,
) -> "dict[str, Tensor]":
    """Return independent float32 copies of the actor's tensors, the entry ``actor`` or all."""
    import torch

    state = payload.get("actor")
    is_flat = any(isinstance(value, torch.Tensor) for value in payload.values())
    if state is None and is_flat and (is_foreign or set(needed) <= set(payload)):
        if not is_foreign:
            _LOGGER.warning(
                "%s: the checkpoint holds an actor without the key 'actor'; save {'actor': ...} to "
                "leave no doubt what it is.",
                owner,
            )
        state = {key: value for key, value in payload.items() if key not in _TRAINED_WITH}
    if not isinstance(state, Mapping):
        raise InputError(
            f"{owner}: expected a checkpoint with a mapping 'actor', got the keys "
            f"{sorted(payload)}; save {{'actor': actor.state_dict()}}."
        )
    named = cast("Mapping[str, Any]", state)
    if missing := [key for key in needed if key not in named]:
        raise InputError(
            f"{owner}: expected the weights of {what}, got none called {missing[0]!r} among "
            f"{sorted(named)}; save the actor's state dict, or choose the class that plays it "
            "(frozen_mappo, frozen_harl, onnx)."
        )
    tensors: dict[str, Tensor] = {}
    for key, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{owner}: {key!r} must be torch.Tensor, got {type(value).__name__}.")
        if not (value.is_floating_point() and bool(value.isfinite().all())):
            raise InputError(
                f"{owner}: {key!r}: expected finite real numbers, got {value.dtype} with "
                f"{value.numel() - int(value.isfinite().sum())} that are not; take weights of an "
                "earlier step."
            )
        tensors[key] = value.detach().to(torch.float32).contiguous().clone()
    return tensors


#: Name of the noise input.
EPSILON: Final = "epsilon"
#: Types of inputs that states and noise are converted to.
_FLOATS: Final[Mapping[str, type[np.floating[Any]]]] = {
    "tensor(double)": np.float64,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
#: Largest file that is read.
MAX_BYTES: Final = 2**31


class OnnxGraph:
    """The policy in an ONNX file, on the CPU; messages name ``owner`` and ``source``.

    Attributes:
        sizes: O and A.
        contract: What the numbers mean, if `Agent.export_onnx` of one robot wrote it down.

    Raises:
        CheckpointError: The bytes are no ONNX graph.
        InputError: The graph has other inputs or outputs.
        MissingExtraError: The extra ``onnx`` is not installed.
    """

    def __init__(self, data: bytes, *, owner: str, source: str) -> None:
        self._owner, self._source = owner, source
        runtime = load_extra("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:  # from bytes: a graph read from a path could name further files
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CheckpointError(
                f"{owner}: {source}: expected an ONNX graph, got {error}"
            ) from error
        self._session: Any = session
        told = session.get_modelmeta().custom_metadata_map.get("contracts", "{}")
        self.contract: TaskContract | None = None
        if (facts := json.loads(told)).keys() == {""}:
            self.contract = TaskContract.from_facts(facts[""])
        self._describe(session)

    def actions(self, states: Float32Array, noise: Float32Array | None = None) -> Float32Array:
        """Return the graph's actions, (N, A)."""
        count, size = len(states), self._batch or len(states)
        if noise is None:
            noise = np.zeros((count, self.sizes[1]), dtype=np.float32)
        if size != count:  # whole runs: the last row is repeated
            whole = np.minimum(np.arange(-(-count // size) * size), count - 1)
            states, noise = states[whole], noise[whole]
        runs = [
            self._run(states[first : first + size], noise[first : first + size])
            for first in range(0, len(states), size)
        ]
        return np.concatenate(runs)[:count]

    def _run(self, states: Float32Array, noise: Float32Array) -> Float32Array:
        """Return the actions of as many rows as the graph takes at once, (n, A)."""
        state_name, action_name = self._names
        feeds: dict[str, Any] = {state_name: states.astype(self._types[state_name])}
        if self._takes_noise:
            feeds[EPSILON] = noise.astype(self._types[EPSILON])
        wanted = (len(states), self.sizes[1])

        def refusal(came: object) -> InputError:
            shapes = {name: value.shape for name, value in feeds.items()}
            return InputError(
                f"{self._owner}: {self._source}: expected the graph to turn "
                f"{shapes} into actions {wanted}, got {came}; export it with a dynamic batch axis."
            )

        try:
            (actions,) = self._session.run([action_name], feeds)
        except Exception as error:
            raise refusal(error) from error
        actions = actions[:, None] if actions.ndim == 1 else actions
        if actions.shape != wanted:
            raise refusal(actions.shape)
        return np.asarray(actions, dtype=np.float32)

    def _describe(self, session: Any) -> None:
        """Note names and widths of the graph's inputs and outputs."""
        inputs: Mapping[str, Any] = {node.name: node for node in session.get_inputs()}
        output = session.get_outputs()[0]
        states = [node for name, node in inputs.items() if name != EPSILON]
        types = {name: _FLOATS.get(node.type) for name, node in inputs.items()}
        ranks = [len(node.shape) for node in (*states, output)]
        widths = [node.shape[-1] for node in (*states, output) if len(node.shape)]
        if ranks[-1:] == [1]:  # one number per row, as of a choice
            widths[-1], ranks[-1] = 1, 2
        is_plain = len(states) == 1 and ranks == [2, 2] and type(widths[0]) is int
        batches = {node.shape[0] for node in inputs.values() if is_plain}
        fixed = [n for n in batches if type(n) is int]
        if not is_plain or None in types.values() or len(fixed) > 1 or fixed == [0]:
            shown = {name: (node.type, *node.shape) for name, node in inputs.items()}
            raise InputError(
                f"{self._owner}: {self._source}: expected one input (N, O), "
                f"perhaps '{EPSILON}' (N, A), of floats, and a first output (N, A), got the inputs "
                f"{shown} and the output {(output.type, *output.shape)}; export a policy of flat "
                "states."
            )
        self._names: tuple[str, str] = (states[0].name, output.name)
        self._takes_noise: bool = EPSILON in inputs
        self._batch: int | None = fixed[0] if fixed else None  # None: any number of rows
        self._types: dict[str, type[np.floating[Any]]] = {
            name: kind for name, kind in types.items() if kind is not None
        }
        if type(widths[1]) is not int:  # a graph need not say it: its actions do
            shapes = {
                name: [n if type(n) is int else 1 for n in inputs[name].shape] for name in types
            }
            zeros = {name: np.zeros(shapes[name], kind) for name, kind in self._types.items()}
            try:
                widths[1] = session.run([output.name], zeros)[0].shape[-1]
            except Exception as error:
                raise InputError(
                    f"{self._owner}: {self._source}: expected the graph to take "
                    f"inputs of the shapes {shapes}, got {error}; export it with a static width."
                ) from error
        self.sizes: tuple[int, int] = (int(widths[0]), int(widths[1]))


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
        self._graph: OnnxGraph | None = None

    def sizes(self) -> tuple[int, int]:
        """Load the file if need be, and return O and A.

        Raises:
            CheckpointError: The file is missing or no ONNX graph.
            InputError: The graph has other inputs or outputs.
            MissingExtraError: The extra ``onnx`` is not installed.
        """
        return self._loaded().sizes

    @property
    def contract(self) -> TaskContract | None:
        """What the numbers of the graph mean."""
        return self._loaded().contract

    def actions(
        self, states: Float32Array, noise: Float32Array | None, rows: Sequence[int]
    ) -> Float32Array:
        """Return the graph's actions, (N, A)."""
        del rows
        return self._loaded().actions(states, noise)

    def _loaded(self) -> OnnxGraph:
        if self._graph is None:
            owner, spec = type(self).__name__, self.spec
            data = read_bytes(owner, weights_path(require_weights_uri(owner, spec)))
            require_digest(owner, spec, sha256_bytes(data))
            self._graph = OnnxGraph(data, owner=owner, source=str(spec.weights_uri))
        return self._graph


def read_bytes(owner: str, path: Path) -> bytes:
    """Return what is in a file of weights, at most `MAX_BYTES` of it.

    Raises:
        CheckpointNotFoundError: There is no such file.
    """
    if not path.is_file():
        raise CheckpointNotFoundError(
            f"{owner}: {path}: file not found; check the name and the artifacts folder."
        )
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


@register_partner("policy")
class PolicyPartner(FrozenNetworkPartner):
    """Plays a policy file, whichever algorithm trained it; see `cadenza.learn.nn.portable`.

    Draws come from the file's own spread, or from its logits of choices; a policy without either
    acts alike, drawn or not.
    """

    input_name = "observation"
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays any policy file (*.policy.safetensors).",
        options={"uid": "robot it drives"},
    )

    def read_network(self) -> "PortableNetwork":
        """Return the policy that the spec names."""
        from cadenza.learn.nn.portable import load_policy_file

        owner, spec = type(self).__name__, self.spec
        network = load_policy_file(weights_path(require_weights_uri(owner, spec)))
        require_digest(owner, spec, network.content_id)
        return network
