"""K policies of equal sizes as one: parameters in one array, and a backward pass written out.

A layer of all members is one batched product, so K small networks cost about as many calls as one.
Nothing is recorded for automatic differentiation: at these sizes it costs more than the products.

Equations, for layers x_{i+1} = φ(x_i W_i + b_i) with g the gradient of what a layer puts out:
    W: x^T g      b: Σ_B g      x: (g W^T) φ'
    softmax:  ∂ log π(a) / ∂ logit_j = 1[j = a] − π_j      ∂H / ∂ logit_j = −π_j (log π_j + H)
    normal:   z = (a − μ) / σ;  ∂ log π / ∂μ = z / σ       ∂ log π / ∂ log σ = z² − 1
Source:  heads and first weights: `cadenza.learn.nn.policy_networks`.
Axes:    K = members, B = rows, D = inputs, A = outputs of the actor (choices or components).
Layout:  parameter by parameter, each one block (K, in, out) or (K, 1, out) of ``flat``.
Bytes:   a member must not notice whom it is stacked with. Therefore
         - layers are filled up with units that are zero and stay so: torch takes another product
           for one column if K is 1, and products round otherwise where a member's rows do not
           begin at a multiple of 16 bytes. A multiple of 16 is also twice as fast as 4 or 8;
         - vectorised loops round the last entries of an array, fewer than 32, in another way, so
           hidden layers are a multiple of 32 wide, and 64 entries follow the last parameter;
         - what loops over (K, B) or (K, B, A) is arithmetic or of the kernels without such an end.
         This is how the libraries behave, not what they promise: a test compares groupings.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError, refuse
from cadenza.learn.nn.policy_networks import (
    CategoricalHead,
    DiagonalGaussianHead,
    OrthogonalMlp,
    Policy,
)

#: Entries after the last block.
PADDING: Final = 64
#: Entries to whose multiples blocks begin: 64 bytes.
_ALIGNMENT: Final = 16
#: Units to whose multiples hidden layers and the last one are filled up.
_HIDDEN_WIDTH: Final = 32
_OUTPUT_WIDTH: Final = 16
#: Rows of each member that a pass over a whole rollout takes at a time.
_CHUNK: Final = 1024
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)

_aten: Any = torch.ops.aten
_vector_norm: Callable[..., Tensor] = cast("Any", torch.linalg).vector_norm


def _tanh(x: Tensor) -> Tensor:
    """Return tanh(x), in place; by numpy on the CPU, seven times as fast there as MKL's on AMD."""
    if not x.is_cpu:
        return x.tanh_()
    values = x.numpy()
    np.tanh(values, out=values)
    return x


#: What an activation makes of a layer's output, in place.
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"tanh": _tanh, "relu": _aten.relu_}


def _multiply_by_slope(activation: str, g: Tensor, y: Tensor) -> None:
    """Turn the gradient of y = φ(x) into that of x, in place."""
    if activation == "tanh":
        _aten.tanh_backward.grad_input(g, y, grad_input=g)
    else:
        _aten.threshold_backward.grad_input(g, y, 0, grad_input=g)


class _Pass(NamedTuple):
    """What a forward pass of B rows leaves for the backward one, written over by the next."""

    before: list[Tensor]  # (K, B, out) of every layer
    after: list[Tensor]  # bent, of the hidden ones
    gradients: list[Tensor]  # of ``before``


class _Trunk:
    """The same perceptron of every member; ``weights`` and ``biases`` alternate, as gradients."""

    def __init__(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor], activation: str
    ) -> None:
        self._weights, self._biases = parameters[::2], parameters[1::2]
        self._weight_gradients, self._bias_gradients = gradients[::2], gradients[1::2]
        self._activation = activation
        self._activate = ACTIVATIONS[activation]
        self._kept: dict[int, _Pass] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out, (K, B, out), until the next pass of as many rows."""
        kept = self._buffers(x.shape[1])
        kept.after.clear()
        last = len(self._weights) - 1
        for i, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            torch.baddbmm(bias, x, weight, out=kept.before[i])
            if i < last:
                x = self._activate(kept.before[i])
                kept.after.append(x)
        return kept.before[last]

    def output_gradient(self, rows: int) -> Tensor:
        """Return where `backward` reads the gradient of what came out, (K, B, out), zeros first."""
        return self._buffers(rows).gradients[-1]

    def backward(self, x: Tensor) -> None:
        """Write the gradients of all parameters; ``x`` is what went in."""
        kept = self._buffers(x.shape[1])
        for i in reversed(range(len(self._weights))):
            g = kept.gradients[i]
            entered = kept.after[i - 1] if i else x
            torch.bmm(entered.transpose(1, 2), g, out=self._weight_gradients[i])
            torch.sum(g, 1, keepdim=True, out=self._bias_gradients[i])
            if i:
                below = torch.bmm(g, self._weights[i].transpose(1, 2), out=kept.gradients[i - 1])
                _multiply_by_slope(self._activation, below, entered)

    def of_member(self, member: int, x: Tensor) -> Tensor:
        """Return what comes out of one member's own rows, (B, in) to (B, out)."""
        pairs = list(zip(self._weights, self._biases, strict=True))
        for weight, bias in pairs[:-1]:
            x = self._activate(torch.addmm(bias[member], x, weight[member]))
        weight, bias = pairs[-1]
        return torch.addmm(bias[member], x, weight[member])

    def _buffers(self, rows: int) -> _Pass:
        if rows not in self._kept:
            like = self._weights[0]
            shapes = [(len(like), rows, weight.shape[2]) for weight in self._weights]
            before = [like.new_empty(shape) for shape in shapes]
            self._kept[rows] = _Pass(before, [], [like.new_zeros(shape) for shape in shapes])
        return self._kept[rows]


class Terms(NamedTuple):
    """What a head says of decisions: log π(a|s) and the entropy, (K, B) each, nats.

    ``kept`` is for the gradient.
    """

    log_probs: Tensor
    entropy: Tensor
    kept: tuple[Tensor, ...]


# Heads: how outputs (K, B, A) become decisions. Their `differentiate` writes the gradient of
# Σ (slope log π − bonus H) with respect to the output, (K, B, A), and to σ; ``slope`` is (K, B),
# and ``bonus`` the weight of each row's entropy, (K, 1, 1).


class _Choice:
    """One of A choices, (K, B) int64, drawn by the Gumbel-max trick."""

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.empty(*shape).exponential_(generator=generator).log_()

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        return torch.argmax(output - noise, dim=-1)

    def terms(self, output: Tensor, actions: Tensor) -> Terms:
        # Choices before rows, (K, A, B): loops over the last axis are long.
        logs = torch.log_softmax(output.transpose(1, 2).contiguous(), dim=1)
        probabilities = logs.exp()
        taken = actions.unsqueeze(1)
        entropy = -(probabilities * logs).sum(1)
        return Terms(logs.gather(1, taken).squeeze(1), entropy, (logs, probabilities, taken))

    def differentiate(
        self, terms: Terms, slope: Tensor, bonus: Tensor | None, gradient: Tensor
    ) -> None:
        logs, probabilities, taken = terms.kept
        slope = slope.unsqueeze(1)
        found = probabilities * -slope
        found.scatter_add_(1, taken, slope)
        if bonus is not None:
            found += bonus * probabilities * (logs + terms.entropy.unsqueeze(1))
        gradient.copy_(found.transpose(1, 2))


class _Normal:
    """Independent normal components, (K, B, A) float32; ``log_std`` is (K, 1, A)."""

    def __init__(self, log_std: Tensor, gradient: Tensor) -> None:
        self._log_std, self._gradient = log_std, gradient

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.empty(*shape).normal_(generator=generator)

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        return self._log_std.exp() * noise + output

    def terms(self, output: Tensor, actions: Tensor) -> Terms:
        inverse = torch.exp(-self._log_std)
        z = (actions - output) * inverse
        log_probs = (-0.5 * z.square() - self._log_std - _HALF_LOG_2PI).sum(-1)
        entropy = (self._log_std + (0.5 + _HALF_LOG_2PI)).sum(-1).expand_as(log_probs)
        return Terms(log_probs, entropy, (z, inverse))

    def differentiate(
        self, terms: Terms, slope: Tensor, bonus: Tensor | None, gradient: Tensor
    ) -> None:
        z, inverse = terms.kept
        slope = slope.unsqueeze(-1)
        torch.mul(z, inverse, out=gradient)
        gradient *= slope
        torch.sum((z.square() - 1.0) * slope, 1, keepdim=True, out=self._gradient)
        if bonus is not None:
            self._gradient -= bonus * slope.shape[1]


class StackedPolicies:
    """Actors, critics and log-deviations of K policies, and how they are differentiated.

    What `act`, `judge` and their like return is valid until the next pass of as many rows.

    Args:
        policies: Freshly drawn or trained ones, K of equal sizes, with critics; they are copied.
        activation: The one that they have.
        device: Where all arrays are.

    Attributes:
        count: K.
        outputs: A.
        flat: All parameters, one array.
        gradient: Of what `differentiate` is told to lower, in the same layout.

    Raises:
        ConfigurationError: The policies have encoders, masks, a memory or several choices at once.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        *,
        activation: str = "tanh",
        device: torch.device | str = "cpu",
    ) -> None:
        self._template = copy.deepcopy(policies[0])
        for policy in policies:
            if not all(isinstance(trunk, OrthogonalMlp) for trunk in (policy.actor, policy.critic)):
                refuse(
                    ConfigurationError,
                    "stacked policies",
                    expected="actors and critics that are perceptrons",
                    got=type(policy.actor).__name__,
                    do="train policies with encoders, masks or a memory one by one",
                )
        self.count: int = len(policies)
        self.outputs: int = self._template.head.outputs
        tables = [_parameters_of(policy) for policy in policies]
        self._shapes = [(table.shape[0], table.shape[1]) for table in tables[0]]
        self._starts: list[int] = []
        end = 0
        for rows, columns in self._shapes:
            self._starts.append(end)
            end += -(-self.count * rows * columns // _ALIGNMENT) * _ALIGNMENT
        self.flat: Tensor = torch.zeros(end + PADDING, device=device)
        self.gradient: Tensor = torch.zeros_like(self.flat)
        parameters, gradients = self.views(self.flat), self.views(self.gradient)
        for member, table in enumerate(tables):
            for view, own in zip(parameters, table, strict=True):
                view[member] = own
        middle, end = (2 * len(trunk) for trunk in _trunks(self._template))
        end += middle
        self._actor = _Trunk(parameters[:middle], gradients[:middle], activation)
        self._critic = _Trunk(parameters[middle:end], gradients[middle:end], activation)
        self._blocks, self._gradient_blocks = parameters, gradients
        self.head: _Choice | _Normal = _head_of(self._template, parameters[-1], gradients[-1])

    def act(self, rows: Tensor) -> Tensor:
        """Return what the head takes, (K, B, A), of rows (K, B, D)."""
        return self._actor.forward(rows)[..., : self.outputs]

    def judge(self, rows: Tensor) -> Tensor:
        """Return V(s), (K, B), of rows (K, B, S)."""
        return self._critic.forward(rows)[..., 0]

    def judge_all(self, rows: Tensor) -> Tensor:
        """Return V(s), (K, n), of as many rows as a rollout has, (K, n, S), in an array of its own.

        Rows are taken by equal numbers of each member, so that a pass stays within the cache.
        """
        return torch.cat([self.judge(part).clone() for part in _chunks(rows)], 1)

    def judge_member(self, member: int, rows: Tensor) -> Tensor:
        """Return V(s), (B,), of one member's own rows, (B, S)."""
        return self._critic.of_member(member, rows)[:, 0]

    def log_prob(self, rows: Tensor, actions: Tensor) -> Tensor:
        """Return log π_k(a|s), (K, n), of rows (K, n, D) and actions (K, n) or (K, n, A)."""
        parts = zip(_chunks(rows), _chunks(actions), strict=True)
        return torch.cat([self.head.terms(self.act(s), a).log_probs for s, a in parts], 1)

    def differentiate(
        self,
        rows: Tensor,
        critic_rows: Tensor,
        terms: Terms,
        slope: Tensor,
        value_slope: Tensor,
        *,
        bonus: Tensor | None = None,
    ) -> None:
        """Write the gradient of Σ_B (slope log π(a|s) + value_slope V(s) − bonus H) of each member.

        Args:
            rows: What `act` saw last, (K, B, D).
            critic_rows: What `judge` saw last, (K, B, S).
            terms: The head's, of what `act` returned.
            slope: ∂L / ∂ log π, (K, B).
            value_slope: ∂L / ∂V, (K, B).
            bonus: Weight of each row's entropy, (K, 1, 1); None is 0.
        """
        count = rows.shape[1]
        gradient = self._actor.output_gradient(count)[..., : self.outputs]
        self.head.differentiate(terms, slope, bonus, gradient)
        self._actor.backward(rows)
        self._critic.output_gradient(count)[..., 0] = value_slope
        self._critic.backward(critic_rows)

    def norms(self) -> Tensor:
        """Return each member's norm of ``gradient``, (K,) float64.

        Reduced over the last axis, block by block: over the first, the order depends on K.
        """
        blocks = [_vector_norm(g, dim=(1, 2)) for g in self._gradient_blocks]
        return _vector_norm(torch.stack(blocks, 1).double(), dim=1)

    def shorten(self, factors: Tensor) -> None:
        """Multiply each member's gradient by its factor, (K,)."""
        for block in self._gradient_blocks:
            block.mul_(factors[:, None, None])

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the blocks, (K, in, out) or (K, 1, out), of an array in the layout of ``flat``."""
        sizes = [self.count * rows * columns for rows, columns in self._shapes]
        parts = zip(self._starts, sizes, self._shapes, strict=True)
        return [flat[at : at + size].view(self.count, *shape) for at, size, shape in parts]

    def member(self, index: int, flat: Tensor) -> Tensor:
        """Return a copy of one member's part of an array in the layout of ``flat``, (P,)."""
        return torch.cat([block[index].flatten() for block in self.views(flat)])

    def load_member(self, index: int, flat: Tensor, values: Tensor) -> None:
        """Put what `member` returned back into an array in the layout of ``flat``."""
        at = 0
        for block in self.views(flat):
            size = block[index].numel()
            block[index] = values[at : at + size].view(block.shape[1:])
            at += size

    @torch.no_grad()
    def policy(self, index: int) -> Policy:
        """Return a copy of one member, on the CPU."""
        policy = copy.deepcopy(self._template)
        own = iter(block[index].cpu() for block in self._blocks)
        for linear in (layer for trunk in _trunks(policy) for layer in trunk):
            out, into = linear.weight.shape
            linear.weight.copy_(next(own).T[:out, :into])
            linear.bias.copy_(next(own)[0, :out])
        for spread in _spreads(policy):
            spread.copy_(next(own)[0])
        return policy


def _chunks(rows: Tensor) -> list[Tensor]:
    """Return (K, n, ...) cut along n, in views."""
    return [rows[:, at : at + _CHUNK] for at in range(0, rows.shape[1], _CHUNK)]


def _head_of(policy: Policy, log_std: Tensor, gradient: Tensor) -> _Choice | _Normal:
    head = policy.head
    if isinstance(head, CategoricalHead):
        return _Choice()
    if not isinstance(head, DiagonalGaussianHead):
        refuse(
            ConfigurationError,
            "stacked policies",
            expected="one choice, or normal components",
            got=type(head).__name__,
            do="train policies of several choices one by one",
        )
    return _Normal(log_std, gradient)


def _trunks(policy: Policy) -> list[list[nn.Linear]]:
    """Return the layers of actor and critic."""
    return [
        [cast("nn.Linear", layer) for layer in cast("OrthogonalMlp", trunk).layers]
        for trunk in (policy.actor, policy.critic)
    ]


def _spreads(policy: Policy) -> list[nn.Parameter]:
    """Return the log-deviations; of choices there are none."""
    return list(policy.head.parameters()) if isinstance(policy.head, nn.Module) else []


def _parameters_of(policy: Policy) -> list[Tensor]:
    """Return weights (in, out), biases (1, out) and log-deviations (1, A), layers filled up."""
    tables: list[Tensor] = []
    for trunk in _trunks(policy):
        missing = 0  # of the units below
        for linear in trunk:
            width = _OUTPUT_WIDTH if linear is trunk[-1] else _HIDDEN_WIDTH
            below, missing = missing, -linear.out_features % width
            weight, bias = linear.weight.detach().T, linear.bias.detach()[None]
            tables.append(nn.functional.pad(weight, (0, missing, 0, below)))
            tables.append(nn.functional.pad(bias, (0, missing)))
    return [*tables, *(spread.detach()[None] for spread in _spreads(policy))]
