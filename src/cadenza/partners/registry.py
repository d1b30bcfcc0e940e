"""Names of partner classes: registration, loading from a spec, listing.

Built-in partners come from one list of modules; other packages add theirs through the entry-point
group ``cadenza.partners``, see `cadenza.core.plug_ins`.
"""

import inspect
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from cadenza.core.errors import InputError, UnknownNameError, did_you_mean
from cadenza.partners.interface import FrozenPartner, PartnerCard, require_no_training_surface
from cadenza.partners.spec import PartnerSpec, plug_ins, registered_classes

PartnerClass = TypeVar("PartnerClass", bound=type)


def register_partner(class_name: str) -> Callable[[PartnerClass], PartnerClass]:
    """Return a decorator that records a partner class under ``class_name``, and returns it.

    It raises ``TypeError`` if the class cannot be built from one spec, or its ``reset`` and ``act``
    do not take `FrozenPartner`'s arguments, or it offers a training method.

    Raises:
        InputError: The name is empty or already registered.
    """
    if not class_name:
        raise InputError("register_partner: expected a non-empty name, got ''.")
    _require_free(class_name)

    def record(cls: PartnerClass) -> PartnerClass:
        _require_free(class_name)
        require_no_training_surface(cls)
        _require_signature(cls, "__init__", PartnerSpec("x", 0))
        _require_signature(cls, "reset", seed=None)
        _require_signature(cls, "reset")
        _require_signature(cls, "act", {}, deterministic=True)
        _require_signature(cls, "act", {})
        registered_classes[class_name] = cls
        return cls

    return record


def load_partner(spec: PartnerSpec) -> FrozenPartner:
    """Return a new partner of the class that ``spec`` names.

    Raises:
        UnknownNameError: ``spec.class_name`` is not registered; lists the known names.
    """
    return cast("FrozenPartner", partner_class(spec.class_name)(spec))


def partner_class(class_name: str) -> type:
    """Return the class registered under ``class_name``.

    Raises:
        UnknownNameError: There is none; lists the known names.
    """
    plug_ins.load()
    cls = registered_classes.get(class_name)
    if cls is None:
        known = ", ".join(sorted(registered_classes)) or "<none>"
        hint = did_you_mean(class_name, registered_classes)
        raise UnknownNameError(
            f"Partner {class_name!r}: expected one of: {known}{hint}; check the spelling, or "
            f"install the package that registers it.{plug_ins.complaint()}"
        )
    return cls


def outside_modules(class_names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules beside this package that define these partners, for other processes.

    Raises:
        UnknownNameError: A name is not registered.
    """
    modules = {partner_class(name).__module__ for name in class_names}
    return tuple(sorted(module for module in modules if not module.startswith("cadenza.")))


def list_registered() -> list[str]:
    """Return the registered names, sorted; a new list on every call."""
    plug_ins.load()
    return sorted(registered_classes)


def partner_card(class_name: str) -> PartnerCard:
    """Return the card of one partner class; without an own one, its docstring's first line.

    Raises:
        UnknownNameError: ``class_name`` is not registered; lists the known names.
    """
    cls = partner_class(class_name)
    card = getattr(cls, "card", None)
    if isinstance(card, PartnerCard):
        return card
    first_line = (inspect.getdoc(cls) or "No description.").splitlines()[0]
    return PartnerCard(summary=first_line)


def cards() -> dict[str, PartnerCard]:
    """Return every registered name, sorted, with its card."""
    return {name: partner_card(name) for name in list_registered()}


@contextmanager
def isolated_registry(*, empty: bool = False) -> Generator[None]:
    """Undo every registration made inside the ``with`` block, for tests and notebooks."""
    plug_ins.load()
    before = dict(registered_classes)
    if empty:
        registered_classes.clear()
    try:
        yield
    finally:
        registered_classes.clear()
        registered_classes.update(before)


def _require_free(class_name: str) -> None:
    taken = registered_classes.get(class_name)
    if taken is not None:
        raise InputError(
            f"Partner {class_name!r} is already registered, by "
            f"{taken.__module__}.{taken.__qualname__}; choose another name."
        )


def _require_signature(cls: type, method: str, *args: Any, **kwargs: Any) -> None:
    """Raise unless ``cls.method(self, *args, **kwargs)`` is a valid call."""
    function = getattr(cls, method, None)
    wanted = ", ".join(
        ["self", *(type(argument).__name__ for argument in args), *(f"{key}=" for key in kwargs)]
    )
    if not callable(function):
        raise TypeError(f"{cls.__name__}: expected a method {method}({wanted}), got none.")
    try:
        inspect.signature(function).bind(object(), *args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"{cls.__name__}.{method}: expected to accept ({wanted}), got "
            f"{inspect.signature(function)}: {error}; see `FrozenPartner`."
        ) from error
