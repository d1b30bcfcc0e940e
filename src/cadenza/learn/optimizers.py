"""What optimisers share, and an AdamW that decays only the weights it should.

It resumes by parameter name.

Rule:    biases, blacklisted layers and excluded layers are never decayed; weights of whitelisted
         layers are; what no rule covers is trained without decay, with a warning.
Source:  decoupled weight decay, arXiv:1711.05101; the split of parameters follows common practice
         for transformers (weights of linear layers only).
Promise: groups list parameters in declaration order, each exactly once, in every process.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import torch
from torch import nn

from cadenza.core.errors import CheckpointError, ConfigurationError, PreconditionError

#: What `torch.nn.utils.clip_grad_norm_` adds to a norm before it divides by it.
NORM_MARGIN: Final = 1e-6
#: Steps from one look at a loss to the next where looking waits for a device.
LOOK_EVERY: Final = 100
#: Key under which torch keeps the names of a group's parameters.
_NAMES: Final = "param_names"

ModuleTypes = tuple[type[nn.Module], ...]


def may_look(device: torch.device, step: int) -> bool:
    """Return whether a step reads what it computed: each on the CPU, few where that waits."""
    return device.type == "cpu" or step % LOOK_EVERY == 0


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


def adam(network: nn.Module, learning_rate: float) -> torch.optim.Adam:
    """Return an optimiser, in one kernel per step, of all in ``network`` that is not frozen."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=learning_rate, fused=True)


def set_rate(optimizer: Any, learning_rate: float) -> None:
    """Make ``optimizer`` take steps of this size, whatever a loaded state said."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
