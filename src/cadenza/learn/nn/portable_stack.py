"""Several policies of equal shapes in one forward pass: every row is answered by its own policy.

Rows are sorted by policy into blocks of `STACK_ROWS`, the last ones filled up with zeros, and one
batched product per layer answers all blocks: what a row gets does not depend on how many rows are
asked together, nor on who plays the others.

Axes:    P = policies, n = rows, b = blocks, O = observation, A = action, W = numbers of y.
Limits:  perceptrons of states (linear layers, elementwise functions, standardized inputs); whatever
         else there is plays by `PortableNetwork.step`.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.files import canonical_json
from cadenza.learn.nn.layer_kinds import KINDS
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.portable import PortableNetwork

#: Rows of a block. At 16 an action of usual widths was, bit for bit, the one that a policy takes
#: alone (`BLOCK_ROWS`); 20 policies beside 160 rows fill about one block each.
STACK_ROWS: Final = 16
_ELEMENTWISE: Final = {"relu", "tanh", "silu", "elu", "gelu", "sigmoid", "leaky_relu"} | {
    *("selu", "hardswish", "scale_by", "clamp")
}


def stack_key(network: PortableNetwork) -> bytes | None:
    """Return what policies must share to be stacked; None for one that cannot be.

    That is all but the weights: layers, shapes, what is observed and done.
    """
    kinds = {layer.kind for layer in network.layers} - {"linear", "standardise"}
    is_plain = network.observation.get("kind") == "box" and network.masks is None
    if not (kinds <= _ELEMENTWISE and is_plain):
        return None
    output = network.output
    ends = {k: str(t.numpy().tolist()) for k, t in output.tensors().items() if k != "log_std"}
    layers = [
        [
            layer.kind,
            dict(layer.numbers),
            {name: [str(t.dtype), *t.shape] for name, t in layer.tensors.items()},
        ]
        for layer in network.layers
    ]
    does = [output.kind, ends, output.log_std is None, dict(network.action)]
    return canonical_json([layers, does, dict(network.observation)])


class PolicyStack:
    """P policies with one `stack_key`; their weights are copies.

    Attributes:
        digests: Digest of every policy's weights as they were stacked, (P,).
    """

    def __init__(self, networks: Sequence[PortableNetwork]) -> None:
        self._first = networks[0]
        self._layers = [
            layer._replace(
                tensors={
                    name: torch.stack([n.layers[place].tensors[name] for n in networks])
                    for name in layer.tensors
                }
            )
            for place, layer in enumerate(networks[0].layers)
        ]
        spreads = [n.output.log_std for n in networks]
        self._deviations: NDArray[Any] | None = None
        if spreads[0] is not None:
            self._deviations = np.stack([cast("Tensor", s).exp().numpy() for s in spreads])
        self.digests: tuple[str, ...] = tuple(map(self.digest, range(len(networks))))

    def digest(self, policy: int) -> str:
        """Return the SHA-256 of the weights that answer for ``policy`` now."""
        material = sha256()
        for layer in self._layers:
            for tensor in layer.tensors.values():
                material.update(tensor[policy].numpy().tobytes())
        if self._deviations is not None:
            material.update(self._deviations[policy].tobytes())
        return material.hexdigest()

    def act(
        self, rows: NDArray[np.float32], who: NDArray[np.int64], noise: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return actions as the environment takes them, (n, *shape).

        Args:
            rows: Flat observations, (n, O).
            who: Number of the policy that answers each, (n,).
            noise: As of `PortableNetwork.act`, (n, W).
        """
        y, output = self._outputs(rows, who), self._first.output
        if noise is not None and output.chooses:
            y = y + noise
        elif noise is not None and self._deviations is not None:
            y = (y + self._deviations[who] * noise).astype(np.float32)
        action = self._first.action
        return output.decide(y, action.get("shape", ()), action.get("dtype", "int64"))

    def _outputs(self, rows: NDArray[np.float32], who: NDArray[np.int64]) -> NDArray[Any]:
        """Return y, (n, W)."""
        order = np.argsort(who, kind="stable")
        counts = np.bincount(who)
        present = np.flatnonzero(counts)
        blocks = -(-counts[present] // STACK_ROWS)
        starts = np.cumsum(counts[present]) - counts[present]
        first = STACK_ROWS * (np.cumsum(blocks) - blocks)  # row at which a policy's blocks begin
        within = np.arange(len(who)) - np.repeat(starts, counts[present])
        place = np.repeat(first, counts[present]) + within
        total = int(blocks.sum())
        filled = np.zeros((total * STACK_ROWS, rows.shape[1]), np.float32)
        filled[place] = rows[order]
        policies = torch.as_tensor(np.repeat(present, blocks))
        with torch.inference_mode():
            x = torch.as_tensor(filled).view(total, STACK_ROWS, -1)
            for layer in self._layers:
                x = _run(x, layer, policies)
            found = x.reshape(total * STACK_ROWS, -1).numpy()
        y = np.empty((len(who), found.shape[1]), found.dtype)
        y[order] = found[place]
        return y


def _run(x: Tensor, layer: Layer, policies: Tensor) -> Tensor:
    """Return what a layer makes of blocks (b, rows, inputs), each by its own policy, (b,)."""
    if not layer.tensors:
        return KINDS[layer.kind].run(x, layer, 0)
    own = {name: tensor.index_select(0, policies) for name, tensor in layer.tensors.items()}
    if layer.kind == "linear":
        return torch.baddbmm(own["bias"][:, None], x, own["weight"].transpose(1, 2))
    own = {name: tensor[:, None] for name, tensor in own.items()}
    return KINDS[layer.kind].run(x, layer._replace(tensors=own), 0)
