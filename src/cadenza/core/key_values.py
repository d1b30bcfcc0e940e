"""KEY=VALUE: the grammar in which every command takes settings.

Grammar:     ``a.b=VALUE`` sets a key, dots between the names of sections; VALUE is written as in a
             YAML file: lists, mappings, null and quoted text as there, and 1e-3 is a number. A
             mapping is merged into the one in place, any other value replaces what is there.
             ``~a.b`` removes a key, so that its default counts. A leading ``+`` or ``++``, as
             Hydra writes keys that the file does not mention, changes nothing.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.core.yaml_files import parse_yaml_value

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")


def apply_settings(content: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return ``content`` with the settings ``words`` applied in order.

    The reader of the result decides whether a key is known.

    Raises:
        ConfigurationError: A word or its value is malformed, or a key to remove is not there.
    """
    result = merged(content, {})
    for word in words:
        key, equals, text = word.lstrip("+").partition("=")
        removes, key = key.startswith("~"), key.removeprefix("~")
        parent, _, last = key.rpartition(".")
        if removes is bool(equals) or not all(key.split(".")):
            raise ConfigurationError(
                f"settings: expected key=value, got {word!r}; ~key removes a key."
            )
        if removes:
            _find(result, key)
            del (_find(result, parent) if parent else result)[last]
        else:
            value = parse_yaml_value(key, text)
            for name in reversed(key.split(".")):
                value = {name: value}
            result = merged(result, value)
    return result


def merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with ``changes`` laid over it, section by section; neither is altered."""
    result = copy.deepcopy(dict(content))
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(cast("dict[str, Any]", old), cast("dict[str, Any]", value))
        else:
            result[key] = copy.deepcopy(value)
    return result


def resolved(value: Any, root: Mapping[str, Any], open_keys: tuple[str, ...] = ()) -> Any:
    """Return ``value`` with every ``${a.b}`` in its texts replaced by that key's value in ``root``.

    ``open_keys`` are being looked up already.

    Raises:
        ConfigurationError: A key refers to itself, or to one that is not there.
    """

    def referred(match: re.Match[str]) -> Any:
        if match[1] in open_keys:
            raise ConfigurationError(f"{match[0]}: expected a value, got a reference to itself.")
        return resolved(_find(root, match[1]), root, (*open_keys, match[1]))

    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: resolved(one, root, open_keys) for key, one in items}
    if isinstance(value, list):
        return [resolved(one, root, open_keys) for one in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    return referred(whole) if whole else _REFERENCE.sub(lambda m: str(referred(m)), value)


def _find(root: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key."""
    values = dict(_values(root))
    if key not in values:
        meant = did_you_mean(key, values)
        raise ConfigurationError(f"settings: expected a key that is there, got {key!r}{meant}.")
    return values[key]


def _values(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from _values(cast("dict[str, Any]", value), f"{prefix}{name}.")
