"""Reading YAML that people wrote; every failure is one sentence.

Refused: text that is not UTF-8, a key that stands twice in one mapping (YAML would keep the last),
tags that build objects, nesting without end.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from cadenza.core.errors import ConfigurationError


def read_yaml(path: Path) -> Any:
    """Return what the YAML file ``path`` holds; None for an empty one.

    Raises:
        ConfigurationError: The file is missing, no file, unreadable or not YAML.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path}: expected a YAML file, got a folder; name a file in it.")
    if not path.is_file():
        raise ConfigurationError(
            f"{path}: expected a YAML file, got none; `configs` holds the shipped ones."
        )
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506  # a SafeLoader
    except OSError as error:
        raise ConfigurationError(
            f"{path}: expected a readable YAML file, got '{error.strerror}'; check its permissions."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: expected YAML in UTF-8, got {error.object[error.start : error.start + 1]!r} "
            f"at byte {error.start}; save the file as UTF-8 text."
        ) from error
    except RecursionError as error:
        raise ConfigurationError(
            f"{path}: expected YAML, got brackets nested without end; check the file."
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).replace("<unicode string>", path.name).split())
        raise ConfigurationError(f"{path}: expected YAML, got an error: {reason}.") from error


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping at ``node``."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            is_scalar = isinstance(key_node, yaml.ScalarNode)
            if is_scalar and key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} stands twice", key_node.start_mark
                )
            if is_scalar:
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)
