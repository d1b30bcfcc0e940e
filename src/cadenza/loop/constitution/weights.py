"""Weights that a job may load: a path within the run's roots, or an allowed repository of a hub.

A folder is read whole: it may hold data only, and name no code but LeRobot's own steps, and no
source but those that the rules allow. Nothing is there yet in a dry run.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.constitution.flags import ConstitutionError, denied, quoted
from cadenza.loop.constitution.kinds import HUB_ID, Given, Value, listed_on_hub, read_path

#: Types of policies that train on recorded data alone, without other people's code.
POLICY_TYPES: Final = ("act", "diffusion", "pi0", "pi05", "smolvla", "tdmpc", "vqbet", "xvla")
#: Processor steps, as LeRobot registers them, that these policies are saved with. Left out:
#: action_tokenizer_processor and reward_classifier_processor, which load code of the hub.
_STEPS: Final = (
    *("rename_observations_processor", "to_batch_processor", "device_processor"),
    *("normalizer_processor", "unnormalizer_processor", "tokenizer_processor"),
    *("smolvla_new_line_processor", "pi0_new_line_processor", "libero_processor"),
    *("pi05_prepare_state_tokenizer_processor_step", "xvla_image_scale", "xvla_image_to_float"),
    *("xvla_imagenet_normalize", "xvla_add_domain_id", "xvla_rotation_6d_to_axis_angle"),
)
#: Repositories of their language models and tokenizers, which LeRobot's own code names.
_COMPANIONS: Final = (
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    "google/paligemma-3b-pt-224",
    "facebook/bart-large",
)
#: Endings of files that hold neither code nor pickles.
_DATA_FILES: Final = ("", ".json", ".safetensors", ".md", ".txt")
#: Keys of JSON files that name code to import, or where to fetch some.
_CODE_KEYS: Final = frozenset(
    {"class", "target", "_target_", "parent_library", "hub_path", "base_model_path"}
    | {"trust_remote_code"}
)
#: Keys whose texts LeRobot, or what it loads, may take for a repository or a folder.
_SOURCE_KEYS: Final = re.compile(
    r"(.*_)?((name|pretrained)_or_path|auto_map|paths?|dirs?|folder|urls?"
    r"|(model|tokenizer|processor|encoder|repo|hub|checkpoint|pretrained)(_names?|_ids?)?)",
    re.IGNORECASE,
)
#: ... and texts that are one whatever their key: of a hub, and paths and addresses.
_SOURCES: Final = re.compile(rf"{HUB_ID.pattern}|[/~.\\].*|[a-z0-9+]+://.*|.*\.\./.*", re.DOTALL)
#: Files whose texts are no sources: of a training, and of vocabularies.
_NO_SOURCES: Final = ("train_config.json", "tokenizer.json", "vocab.json", "added_tokens.json")
#: What ``config.json`` keeps of the training that wrote it, and LeRobot sets anew from its flags.
_PAST: Final = frozenset({"pretrained_path", "repo_id"})


def weights(value: Value, given: Given, adapted: tuple[Path, ...] = ()) -> Path | str:
    """Take a policy, and return its path or the repository's name.

    ``adapted`` are the folders whose adapters lead here, each with the next as its base.
    """
    text = str(value)
    if HUB_ID.fullmatch(text) and ".." not in text and not os.path.lexists(text):
        if not listed_on_hub(text, given.hub_policies):
            listed = f"one of {list(given.hub_policies)}" if given.hub_policies else "a listed name"
            raise given.refusal("allowed_hub_policies", f"as a path or {listed}", text)
        return text
    folder = read_path(text, given)
    if given.roots is not None and folder not in adapted:
        _require_harmless(folder, given, (*adapted, folder))
    return folder


def _require_harmless(folder: Path, given: Given, folders: tuple[Path, ...]) -> None:
    """Raise if loading ``folder`` could run or fetch what no flag names."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_dir() or any(part.startswith(".") for part in inside.parts):
            continue  # LeRobot reads nothing hidden
        if path.suffix not in _DATA_FILES:
            raise denied(
                "weights_file",
                f"expected --{given.key} as a folder with {', '.join(_DATA_FILES[1:])} files "
                f"alone, got {quoted(str(inside))}; remove it",
            )
        if path.suffix == ".json":
            _require_harmless_json(path, given, folders)


def _require_harmless_json(path: Path, given: Given, folders: tuple[Path, ...]) -> None:
    name = quoted(str(path.relative_to(folders[-1])))
    try:
        content = parse_json_object(path.read_bytes(), source=name)
    except (OSError, IntegrityError) as error:
        expected = "as a folder with valid JSON files"
        raise given.refusal("weights_file", expected, str(error)) from error
    main = path == folders[-1] / "config.json"
    if main and content.get("type", POLICY_TYPES[0]) not in POLICY_TYPES:
        raise denied(
            "policy_type",
            f"expected --{given.key} as a policy of {', '.join(POLICY_TYPES)}, got "
            f"{quoted(content.get('type'))} in {name}",
        )
    kept = _PAST if main else frozenset[str]()
    for entry, value in _entries({k: v for k, v in content.items() if k not in kept}):
        if entry == "base_model_name_or_path" and isinstance(value, str):
            weights(value, given, folders)
            continue
        if isinstance(value, str) and path.name not in _NO_SOURCES:
            _require_allowed_source(entry, value, name, given, folders)
        if not _is_own_code(entry, value):
            raise denied(
                "weights_entry",
                f"expected --{given.key} as a folder that names no code but LeRobot's own steps, "
                f"got {entry} = {quoted(value)} in {name}",
            )


def _is_own_code(entry: str, value: object) -> bool:
    """Return whether an entry names no code, or a step of LeRobot's."""
    if entry == "registry_name":
        return value in _STEPS
    if entry == "parent_library" and str(value).startswith("lerobot."):
        return True  # adapters are saved with the class of their base
    return entry not in _CODE_KEYS or value in (None, False) or isinstance(value, dict)


def _require_allowed_source(
    entry: str, value: str, name: str, given: Given, folders: tuple[Path, ...]
) -> None:
    """Raise if ``value`` names a repository, folder or file that the rules do not allow."""
    named = _SOURCE_KEYS.fullmatch(entry) or _SOURCES.fullmatch(value)
    if not value or value in _COMPANIONS or not named:
        return
    try:
        if not (HUB_ID.fullmatch(value) or Path(value).is_absolute()):
            raise given.refusal("relative_path", "without a relative path, or bare name", value)
        weights(value, given, folders)
    except ConstitutionError as error:
        raise denied(
            "weights_source",
            f"expected --{given.key} as a folder that names no repositories but those of "
            f"allowed_hub_policies, and no folders but those that the run may read, got {entry}"
            f" = {quoted(value)} in {name}; list it, or remove the entry",
        ) from error


def _entries(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield every key of nested JSON with its value; of lists, each item under their key."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _entries(item, key)
        return
    if key:
        yield key, value
    if isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            yield from _entries(item, name)
