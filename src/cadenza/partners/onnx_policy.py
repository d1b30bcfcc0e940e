"""A partner read from an ONNX file: any policy that maps a state to an action.

File:    one float input (N, O) with the states, perhaps a second one, ``epsilon`` (N, A), with
         standard normal noise; the first output is the actions, (N, A). `Agent.export_onnx` and the
         engine's exporter write such files.
Frozen:  the bytes that were hashed are those that are played; ONNX Runtime has no way to change a
         loaded graph.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, CheckpointNotFoundError, InputError
from cadenza.core.extras import load_extra
from cadenza.core.files import sha256_bytes
from cadenza.partners.frozen import StatePolicyPartner
from cadenza.partners.interface import PartnerCard
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import require_digest, require_weights_uri, weights_path

#: Name of the noise input.
EPSILON: Final = "epsilon"
#: Largest file that is read.
MAX_BYTES: Final = 2**31


@register_partner("onnx")
class OnnxPartner(StatePolicyPartner):
    """Plays the policy in an ONNX file, on the CPU.

    A policy without noise input gives the same action whether sampled or not.

    Raises:
        InputError: ``weights_uri`` or the option ``uid`` is missing.
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
