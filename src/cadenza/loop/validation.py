"""Pydantic's complaints about what a person wrote, one readable sentence each.

Form:  ``key.path: expected ..., got ...; what to do``.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

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


def problems(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return what ``error`` found wrong in a document of ``model``, one sentence per problem."""
    # A list whose items were refused one by one is called too short as well: no news.
    details = [
        detail
        for detail in error.errors(include_url=False)
        if not (detail["type"] == "too_short" and detail["input"])
    ]
    return tuple(text for detail in details for text in _sentences(detail, model))


def _sentences(detail: ErrorDetails, model: type[BaseModel]) -> tuple[str, ...]:
    """Return the sentences of one complaint; our own validators may raise several at once.

    Their sentences begin with the key, relative to the section that the validator belongs to.
    """
    if detail["type"] != "value_error":
        return (_sentence(detail, model),)
    section = f"{_place(detail['loc'])}." if detail["loc"] else ""
    return tuple(f"{section}{sentence}." for sentence in detail.get("ctx", {})["error"].args)


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    place = _place(detail["loc"])
    kind, given = detail["type"], _shown(detail["input"])
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "missing":
        return f"{place}: expected a value, got none; add the key."
    if kind == "extra_forbidden":
        known = _known_keys(model, detail["loc"][:-1])
        return (
            f"{place}: expected a known key, got {detail['loc'][-1]!r}; {_advice(detail, known)}."
        )
    if kind == "too_short":
        return f"{place}: expected at least {context['min_length']}, got none."
    if kind in _EXPECTED:
        return f"{place}: expected {_EXPECTED[kind]}, got {given}."
    if kind == "string_pattern_mismatch":
        return f"{place}: expected a text like {context['pattern']}, got {given}."
    if kind == "literal_error":
        return f"{place}: expected {context['expected']}, got {given}."
    text = re.sub(
        r"^(Input|Value|String|Tuple|List|Dictionary) should (be|have) ", "", detail["msg"]
    )
    return f"{place}: expected {text[:1].lower()}{text[1:]}, got {given}."


def _place(location: tuple[int | str, ...]) -> str:
    """Return ``a.b[2].c`` for a pydantic location; the document itself has no path."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".") or "the file"


def _advice(detail: ErrorDetails, known: Collection[str]) -> str:
    close = difflib.get_close_matches(str(detail["loc"][-1]), sorted(known), n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known keys are {', '.join(sorted(known))}." if known else "remove it."


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
