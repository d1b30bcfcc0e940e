"""Files of agents, checks that a loaded state is of the right kind, and generators as states."""

import json
import zipfile
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from cadenza.core.checkpoints import LOCAL_URI_SCHEME, load_checkpoint, pending_path, sidecar_path
from cadenza.core.errors import CheckpointError, CheckpointKeyError, ConfigurationError

#: Settings that what a file holds was built with.
_BUILT_IN: Final = (
    *("action_bins", "action_masks", "activation", "belief_size", "bins", "chunk_length"),
    *("compile", "critic_sizes", "ensemble_size", "factored_choices", "group_size", "history"),
    *(
        "hidden_sizes",
        "imagined_size",
        "initial_alpha",
        "initial_log_std",
        "kl_coefficient",
        "loss",
    ),
    *("max_action_std", "max_value", "memory", "memory_size", "min_value", "model_hidden"),
    *("model_layers", "model_updates", "n_step", "normalize_observations", "num_elites"),
    *("precision", "priority_exponent", "squash_actions", "target_entropy"),
)

_CUDA_STATE_BYTES: Final = 16


def require_parts(owner: str, state: Mapping[str, Any], parts: Collection[str]) -> None:
    """Raise `CheckpointKeyError` unless ``state`` has every part."""
    missing = [part for part in parts if part not in state]
    if missing:
        raise CheckpointKeyError(
            f"{owner}: expected a state with {', '.join(parts)}, got {sorted(state)} without "
            f"{missing}; load what an object of the same kind saved."
        )


def require_version(owner: str, state: Mapping[str, Any], version: int) -> None:
    """Raise `CheckpointError` unless ``state`` has the layout ``version``."""
    if state.get("version") != version:
        raise CheckpointError(
            f"{owner}: expected a state of version {version}, got {state.get('version')!r}; load "
            "what an object of the same kind and version saved."
        )


@contextmanager
def complete_state(owner: str, kind: str) -> Generator[None]:
    """Load within it; what an incomplete or foreign state raises becomes a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(
            f"{owner}: expected a complete state of {kind}, got one with {error!r}."
        ) from error


def read_agent(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and state of a file that `Agent.save` wrote."""
    checksum = sidecar_path(source)
    if not source.is_file() or not (checksum.is_file() or pending_path(source).is_file()):
        raise CheckpointError(
            f"{source}: expected a file that Agent.save wrote, with its checksum {checksum.name} "
            f"beside it, got {found_at(source)}."
        )
    try:
        content, _ = load_checkpoint(
            uri=f"{LOCAL_URI_SCHEME}{source.name}",
            artifacts_root=source.parent,
            max_bytes=source.stat().st_size,
        )
    except CheckpointError as error:
        told = str(error).replace("sidecar", "checksum file")
        raise CheckpointError(f"expected a file that Agent.save wrote: {told}") from error
    with complete_state(f"{source}", "an agent that Agent.save wrote"):
        header, state = content["header"], content["state"]
        _ = header["algorithm"], header["is_custom"]
    return header, state


def found_at(path: Path) -> str:
    """Return what is there instead of an agent, and what to do with it."""
    if path.is_dir():
        agents = sorted(p.stem for p in path.glob("*.json") if p.with_suffix("").is_file())
        return f"a folder; name a file in it: {', '.join(agents) or 'it holds no agent'}"
    if not path.exists():
        return "no such file; check the path"
    if not zipfile.is_zipfile(path):
        return "another kind of file, which Agent.save did not write"
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    if "_stable_baselines3_version" in names:
        kind = "a model of Stable-Baselines3; evaluate that one there, or train an agent here"
    elif "data.pkl" in names:
        kind = f"a file of torch.save; if it is an agent's, bring {path.name}.json along"
    else:
        kind = "a zip archive"
    return f"{kind}: Agent.save did not write it like this"


def changed_settings(
    name: str, header: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings in an agent's file, changed to those ``given``; refuse built-in ones.

    A setting that is younger than the file has its default there.
    """
    saved = {**json.loads(header["config"]), "seed": int(header["seed"])}
    known = {**defaults, **saved}
    for key in given.keys() & {*_BUILT_IN, "seed"} & known.keys():
        value, before = given[key], known[key]
        if json.loads(json.dumps(value)) != json.loads(json.dumps(before)):  # (1,) is [1]
            raise ConfigurationError(
                f"{name}.load: {key}: expected {before!r}, which fixes its networks or "
                f"memory, got {value!r}; make a new agent to change it."
            )
    return {**saved, **given}


def learner_state(state: Mapping[str, Any], key: str = "learner") -> dict[str, Any]:
    """Return the learner's part of a state, with the moments that earlier versions kept beside."""
    beside = {
        "observation_moments": "observation_moments",
        "reward_moments": "reward_moments",
        "scaler": "reward_moments",
    }
    moved = {name: state[before] for before, name in beside.items() if before in state}
    return {**moved, **state[key]}


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a PCG64 generator, JSON scalars only; wide words are decimal strings."""
    state = rng.bit_generator.state
    return {
        "bit_generator": str(state["bit_generator"]),
        "state": str(state["state"]["state"]),
        "inc": str(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def set_generator_state(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Make ``rng`` continue where `generator_state` was taken, or raise `CheckpointError`."""
    expected = type(rng.bit_generator).__name__
    try:
        if state["bit_generator"] != expected:
            raise CheckpointError(
                f"generator state: expected {expected}, got {state['bit_generator']!r}."
            )
        rng.bit_generator.state = {
            "bit_generator": expected,
            "state": {"state": int(state["state"]), "inc": int(state["inc"])},
            "has_uint32": int(state["has_uint32"]),
            "uinteger": int(state["uinteger"]),
        }
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"generator state: expected the fields of {expected}, got {sorted(state)}: {error}"
        ) from error


def set_torch_state(generator: torch.Generator, state: torch.Tensor) -> None:
    """Make a generator of the CPU continue at ``state``.

    One of CUDA, from when draws were made there, holds a seed and an offset, 8 bytes each: of these
    a new stream begins.
    """
    if len(state) == _CUDA_STATE_BYTES:
        generator.manual_seed(sum(map(int, state.view(torch.int64))))
    else:
        generator.set_state(state)


#: What random numbers are drawn from.
RandomSource: TypeAlias = torch.Generator | np.random.Generator


class OwnStream:
    """Draws that leave no trace in the generators that they come from."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._position: Any = None

    @contextmanager
    def instead_of(self, source: RandomSource) -> Generator[None]:
        """Let ``source`` draw from this stream; afterwards it goes on where it was."""
        before = _position(source)
        if self._position is None:
            fresh = torch.Generator() if isinstance(source, torch.Generator) else None
            self._position = _position(
                np.random.default_rng(self._seed)
                if fresh is None
                else fresh.manual_seed(self._seed)
            )
        _move(source, self._position)
        try:
            yield
        finally:
            self._position = _position(source)
            _move(source, before)


def _position(source: RandomSource) -> Any:
    return source.get_state() if isinstance(source, torch.Generator) else source.bit_generator.state


def _move(source: RandomSource, position: Any) -> None:
    if isinstance(source, torch.Generator):
        source.set_state(position)
    else:
        source.bit_generator.state = position
