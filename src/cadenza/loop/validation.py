"""Pydantic's complaints about what a person wrote, one readable sentence each.

Form:  ``line L, column C: key.path: expected ..., got ...; what to do``, without the place where
       there is no file.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cadenza.core.errors import nearest_name
from cadenza.core.yaml_files import YamlDocument

#: Characters of a bad value that a message quotes.
_MAX_SHOWN: Final = 80
#: Kinds of values in the words of a YAML file, by pydantic's types of errors.
_EXPECTED: Final = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "schedule": "a number, or a mapping such as {schedule: linear, start: 1, end: 0, steps: 9}",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "path_type": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
#: Texts of a pattern in words, by their keys.
_READS: Final = {
    "older_than": "a number and m, h or d, as 30d",
    "max_size": "a number and kB, MB, GB or TB, as 50GB",
    "device": "'auto', 'cpu', 'mps', 'cuda' or 'cuda:<index>'",
}


def problems(
    error: ValidationError, model: type[BaseModel], document: YamlDocument | None = None
) -> tuple[str, ...]:
    """Return what ``error`` found wrong in a document of ``model``, one sentence per problem.

    ``document`` is the file that was validated, for the places; None for none.
    """
    # A list whose items were refused one by one is called too short as well, and a default that
    # depends on other keys is not made where one was refused: no news.
    details = [
        detail
        for detail in error.errors(include_url=False)
        if not (detail["type"] == "too_short" and detail["input"])
        and detail["type"] != "default_factory_not_called"
    ]
    return tuple(text for detail in details for text in _sentences(detail, model, document))


def _sentences(
    detail: ErrorDetails, model: type[BaseModel], document: YamlDocument | None
) -> tuple[str, ...]:
    """Return the sentences of one complaint; our own validators may raise several at once.

    Their sentences begin with the key, relative to the section that the validator belongs to.
    """
    if detail["type"] == "value_error":
        place = _place(detail["loc"])
        texts: Sequence[str] = detail.get("ctx", {})["error"].args
        full = [t if not detail["loc"] or t.startswith(place) else f"{place}.{t}" for t in texts]
        told = [(_keys_of(t), t + ("" if t[-1:] in "?." else ".")) for t in full]
    else:
        told = [(detail["loc"], _sentence(detail, model))]
    if document is None:
        return tuple(sentence for _, sentence in told)
    of_key = detail["type"] in ("extra_forbidden", "invalid_key")
    return tuple(f"{document.place(path, of_key=of_key)}: {sentence}" for path, sentence in told)


def _keys_of(sentence: str) -> tuple[str | int, ...]:
    """Return the keys and indices that a sentence of ours begins with."""
    parts = re.findall(r"([^.\[\]]+)|\[(\d+)\]", sentence.partition(": ")[0])
    return tuple(int(index) if index else name for name, index in parts)


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    place = _place(detail["loc"])
    kind, given = detail["type"], _shown(detail["input"])
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "missing":
        return f"{place}: expected a value, got none; add the key."
    if kind == "extra_forbidden":
        advice = _advice(detail["loc"], model)
        return f"{place}: expected a known key, got {_shown(detail['loc'][-1])}; {advice}"
    if kind == "invalid_key":
        return f"{_place(detail['loc'][:-1])}: expected texts as keys, got {given}; remove it."
    if kind == "too_short":
        return f"{place}: expected at least {context['min_length']}, got none."
    if kind in _EXPECTED:
        return f"{place}: expected {_EXPECTED[kind]}, got {given}{_hint(kind, detail['input'])}."
    if kind == "string_pattern_mismatch":
        expected = _READS.get(str(detail["loc"][-1]), f"a text like {context['pattern']}")
        return f"{place}: expected {expected}, got {given}."
    if kind == "literal_error":
        return f"{place}: expected {context['expected']}, got {given}."
    text = re.sub(
        r"^(Input|Value|String|Tuple|List|Dictionary) should (be|have) ", "", detail["msg"]
    )
    return f"{place}: expected {text[:1].lower()}{text[1:]}, got {given}."


def _hint(kind: str, value: object) -> str:
    """Return what to write for a text that reads like the number or truth that is expected.

    YAML takes ``"3"`` for a text, and ``1e3``, too, which has neither a point nor a sign.
    """
    if not isinstance(value, str):
        return ""
    if _EXPECTED[kind] == "true or false" and value.lower() in ("true", "false"):
        return f"; write {value.lower()} without quotes"
    if _EXPECTED[kind] in ("a whole number", "a number"):
        try:
            number = float(value)
        except ValueError:
            return ""
        whole = _EXPECTED[kind] == "a whole number" and number.is_integer()
        return f"; write {int(number) if whole else number} without quotes"
    return ""


def _place(location: tuple[int | str, ...]) -> str:
    """Return ``a.b[2].c`` for a pydantic location; the document itself has no path."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part if part.isidentifier() else _shown(part)}"
    return path.removeprefix(".") or "the file"


def _advice(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return what to do about an unknown key: the end of a sentence."""
    key, known = str(location[-1]), _known_keys(model, location[:-1])
    if absent := getattr(model, "ABSENT", {}).get(key):
        return f"{absent}; remove it."
    elsewhere = [dotted for dotted in dotted_keys(model) if dotted.rpartition(".")[2] == key]
    close = nearest_name(key, sorted(known))
    if elsewhere and (not close or len(location) == 1):  # at the top it lacks its section
        places = [repr(name) + ("" if "." in name else " at the top") for name in elsewhere]
        return f"did you mean {' or '.join(places)}?"
    if close:
        return f"did you mean {close!r}?"
    return f"known keys are {', '.join(sorted(known))}." if known else "remove it."


def dotted_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys of ``model`` and its sections, such as ``a.b``, in order.

    The keys of a list's sections follow the list's own key, such as ``a[].b``.
    """
    found: list[str] = []
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        if not hasattr(section, "model_fields"):
            found.append(name)
            continue
        mark = "" if section is field.annotation else "[]"
        found += [f"{name}{mark}.{key}" for key in dotted_keys(section)]
    return tuple(found)


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys of the section at ``location``; none where it is no section."""
    section: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        fields = getattr(section, "model_fields", {})
        if part not in fields:
            return ()
        section = _section_of(fields[part].annotation)
    return tuple(getattr(section, "model_fields", {}))


def _section_of(annotation: Any) -> Any:
    """Return the section within an annotation such as ``tuple[Section, ...]``."""
    inner = [_section_of(part) for part in getattr(annotation, "__args__", ())]
    return next((part for part in inner if hasattr(part, "model_fields")), annotation)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
