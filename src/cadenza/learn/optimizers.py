"""AdamW that decays only the weights it should, and resumes by parameter name.

Rule:    biases, blacklisted layers and excluded layers are never decayed; weights of whitelisted
         layers are; what no rule covers is trained without decay, with a warning.
Source:  decoupled weight decay, arXiv:1711.05101; the split of parameters follows common practice
         for transformers (weights of linear layers only).
Promise: groups list parameters in declaration order, each exactly once, in every process.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import nn

from cadenza.core.errors import CheckpointError, ConfigurationError, PreconditionError

#: Key under which torch keeps the names of a group's parameters.
_NAMES: Final = "param_names"

ModuleTypes = tuple[type[nn.Module], ...]


def separate_modules_for_weight_decay(
    network: nn.Module,
    whitelist_weight_modules: ModuleTypes,
    blacklist_weight_modules: ModuleTypes,
    layers_to_exclude: set[str] | None = None,
) -> tuple[set[str], set[str]]:
    """Return the names of parameters with and without weight decay.

    The first rule that fits decides: in or beneath one of ``layers_to_exclude`` (dotted names,
    containers included): none; a name that ends in ``bias``: none; one that ends in ``weight``: by
    the nearest module above it of a listed type. A parameter that no rule covers is not decayed,
    with a `UserWarning`; a shared one counts once, under its first name, and is decayed only if it
    would be under each.

    Raises:
        PreconditionError: A type is on both lists.
        ConfigurationError: ``layers_to_exclude`` names a layer ``network`` does not have.
    """
    overlap = set(whitelist_weight_modules) & set(blacklist_weight_modules)
    if overlap:
        raise PreconditionError(
            "Some modules are both whitelisted and blacklisted! Expected every type on one list, "
            f"got {sorted(kind.__name__ for kind in overlap)} on both; remove it from one."
        )
    modules = dict(
        cast("Iterator[tuple[str, nn.Module]]", network.named_modules(remove_duplicate=False))
    )
    excluded = layers_to_exclude or set[str]()
    unknown = excluded - modules.keys()
    if unknown:
        raise ConfigurationError(
            f"layers_to_exclude: expected names of layers of the network, got {sorted(unknown)}; "
            f"known layers: {sorted(modules)}."
        )
    verdicts: dict[str, bool] = {}
    unclassified: list[str] = []
    first_names: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        verdict = _decays(
            name, modules, excluded, whitelist_weight_modules, blacklist_weight_modules
        )
        if verdict is None:
            unclassified.append(name)
        first = first_names.setdefault(id(parameter), name)
        verdicts[first] = verdicts.get(first, True) and bool(verdict)
    if unclassified:
        warnings.warn(
            "separate_modules_for_weight_decay: no rule covers "
            f"{unclassified}, so they are trained without weight decay; list the type of their "
            "module as whitelisted or blacklisted to choose.",
            UserWarning,
            stacklevel=2,
        )
    decay = {name for name, is_decayed in verdicts.items() if is_decayed}
    return decay, set(verdicts) - decay


#: Parameters, first moments, second moments and step counts.
AdamLists = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


class FusedAdam(torch.optim.Adam):
    """``Adam(fused=True)`` in less time: its step is the kernel and nothing else.

    States, results and files are those of torch's class. Hooks of optimisers are not called.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(params, lr=lr, fused=True)
        self._lists: dict[int, AdamLists] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a state, of a copy or of a checkpoint."""
        super().__setstate__(state)
        self._lists = {}

    def lists(self, index: int = 0) -> "AdamLists":
        """Return parameters, first and second moments and step counts of one group."""
        parameters: list[torch.Tensor] = self.param_groups[index]["params"]
        lists = self._lists.get(index)
        if lists is None or len(lists[0]) != len(parameters):
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = {
                        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            parts = [self.state[parameter] for parameter in parameters]
            if len({float(part["step"]) for part in parts}) == 1:  # they count together
                for part in parts:
                    part["step"] = parts[0]["step"]
            means, squares, steps = (
                [part[name] for part in parts] for name in ("exp_avg", "exp_avg_sq", "step")
            )
            lists = self._lists[index] = (list(parameters), means, squares, steps)
        return lists

    def count(self, places: Sequence[int], index: int = 0) -> None:
        """Count a step of the parameters at ``places`` of `lists`."""
        parameters, means, squares, steps = self.lists(index)
        are_shared = steps[0] is steps[-1]
        if are_shared and len(places) < len(steps):  # they part
            steps = [step.clone() for step in steps]
            for parameter, step in zip(parameters, steps, strict=True):
                self.state[parameter]["step"] = step
            self._lists[index] = (parameters, means, squares, steps)
            are_shared = False
        for step in steps[:1] if are_shared else [steps[place] for place in places]:
            step += 1

    def factors(self) -> torch.Tensor:
        """Return what `adam_` needs of each parameter's next step: size, β1, β2, ε, √(1 − β2^t)."""
        self._opt_called = True  # schedules of learning rates ask whether a step was taken
        group = self.param_groups[0]
        first, second = group["betas"]
        steps = self.lists()[3]
        are_shared = steps[0] is steps[-1]
        rows = [
            (
                group["lr"] / (1.0 - first**t),
                first,
                second,
                group["eps"],
                (1.0 - second**t) ** 0.5,
            )
            for t in (float(step) + 1.0 for step in (steps[:1] if are_shared else steps))
        ]
        return torch.tensor(rows).expand(len(steps), -1)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] -- no closure
        """Take a step by the gradients that the parameters hold."""
        del closure
        for index, group in enumerate(self.param_groups):
            lists = self.lists(index)
            kept = [place for place, p in enumerate(lists[0]) if p.grad is not None]
            self.count(kept, index)
            if len(kept) != len(lists[0]):
                lists = tuple([values[place] for place in kept] for values in self.lists(index))
            parameters, means, squares, steps = lists
            torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
                parameters,
                [cast("torch.Tensor", p.grad) for p in parameters],
                means,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    #: Keeps torch from wrapping the step into its profiler.
    setattr(step, "hooked", True)  # noqa: B010 -- a function has no such field


def adam_(
    parameter: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    gradient: torch.Tensor,
    factors: torch.Tensor,
    is_wanted: torch.Tensor,
) -> None:
    """Take Adam's step in operations that can be compiled; change nothing unless ``is_wanted``.

    Source: arXiv:1412.6980, algorithm 1.
    """
    size, first, second, epsilon, root = factors
    new_mean = mean + (1.0 - first) * (gradient - mean)
    new_square = second * square + (1.0 - second) * gradient * gradient
    change = size * new_mean / (new_square.sqrt() / root + epsilon)
    mean.copy_(torch.where(is_wanted, new_mean, mean))
    square.copy_(torch.where(is_wanted, new_square, square))
    parameter.sub_(torch.where(is_wanted, change, 0.0))


class ModifiedAdamW(torch.optim.AdamW):
    """AdamW whose weight decay spares biases, normalisation layers and excluded layers.

    The first parameter group decays, the second does not; both list their parameters in the order
    of declaration, and the saved state holds the names, so it is loaded by name.

    Raises:
        ConfigurationError: As `separate_modules_for_weight_decay`.
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float,
        weight_decay: float,
        whitelist_weight_modules: ModuleTypes = (nn.Linear,),
        blacklist_weight_modules: ModuleTypes = (nn.LayerNorm,),
        layers_to_exclude: set[str] | None = None,
    ) -> None:
        decay, no_decay = separate_modules_for_weight_decay(
            network, whitelist_weight_modules, blacklist_weight_modules, layers_to_exclude
        )
        groups: list[dict[str, Any]] = []
        for names, coefficient in ((decay, weight_decay), (no_decay, 0.0)):
            members = [item for item in network.named_parameters() if item[0] in names]
            # torch reads the names off the pairs, except off none; an empty group needs its own.
            groups.append({"params": members, "weight_decay": coefficient, _NAMES: list[str]()})
        super().__init__(groups, lr=lr, weight_decay=weight_decay)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a saved state, giving every parameter the moments that were saved under its name."""
        super().load_state_dict(self._reordered(state_dict))

    def _reordered(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``state_dict`` with each group's parameters in the order of this optimiser."""
        saved_groups = cast("list[dict[str, Any]]", state_dict["param_groups"])
        if len(saved_groups) != len(self.param_groups):
            raise CheckpointError(
                f"ModifiedAdamW.load_state_dict: expected {len(self.param_groups)} parameter "
                f"groups, got {len(saved_groups)}; load the state of a ModifiedAdamW."
            )
        groups: list[dict[str, Any]] = []
        for own, saved in zip(self.param_groups, saved_groups, strict=True):
            own_names = cast("list[str]", own[_NAMES])
            saved_names = cast("list[str] | None", saved.get(_NAMES))
            if saved_names is None:
                raise CheckpointError(
                    f"ModifiedAdamW.load_state_dict: expected '{_NAMES}' in every group, got a "
                    "state without names, whose order cannot be checked; start with a fresh "
                    "optimiser state."
                )
            if sorted(saved_names) != sorted(own_names):
                raise CheckpointError(
                    f"ModifiedAdamW.load_state_dict: expected the parameters {own_names}, got "
                    f"{saved_names}; build the optimiser for the network that was saved."
                )
            index_of = dict(zip(saved_names, saved["params"], strict=True))
            params = [index_of[name] for name in own_names]
            groups.append({**saved, "params": params, _NAMES: list(own_names)})
        return {**state_dict, "param_groups": groups}


def _decays(
    name: str,
    modules: Mapping[str, nn.Module],
    excluded: set[str],
    whitelist: ModuleTypes,
    blacklist: ModuleTypes,
) -> bool | None:
    """Return whether parameter ``name`` decays; None if no rule covers it."""
    if any(path in excluded for path in _paths_above(name)):
        return False
    if name.endswith("bias"):
        return False
    if name.endswith("weight"):
        for path in _paths_above(name):
            if isinstance(modules[path], blacklist):
                return False
            if isinstance(modules[path], whitelist):
                return True
    return None


def _paths_above(name: str) -> Iterator[str]:
    """Yield the dotted paths of the modules that hold parameter ``name``, nearest first."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        yield path


def adam(network: nn.Module, learning_rate: float) -> FusedAdam:
    """Return an optimiser, in one kernel per step, of all in ``network`` that is not frozen."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return FusedAdam(trained, learning_rate)


def set_rate(optimizer: Any, learning_rate: float) -> None:
    """Make ``optimizer`` take steps of this size, whatever a loaded state said."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
