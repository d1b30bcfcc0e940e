"""Tables of what other packages' users call: names, order of parameters, keywords and defaults.

A table lists, by module, a class or function and then its methods and properties (``.name``).
A promise may be exceeded (a required parameter may get a default, new ones may come as keywords),
never broken. A default written ``...`` may be anything.
"""

import importlib
import inspect
import math
import re

import numpy as np
from torch import nn

_TOKEN = re.compile(r"([\w.]+)(\((?:[^()]|\([^()]*\))*\))?")
_NAMES = {"np": np, "nn": nn, "math": math, "bool": bool}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def promises(table):
    """Yield module, path of the object in it, and its parameters as text or None."""
    module = ""
    for line in table.replace("\n    ", " ").strip().splitlines():
        if line.startswith("["):
            module = line.strip("[]")
            continue
        owner = ""
        for name, parameters in _TOKEN.findall(line):
            owner = owner if name.startswith(".") else name
            path = owner + name if name.startswith(".") else name
            yield module, path, parameters[1:-1] if parameters else None


def broken(function, parameters, *, is_bound):
    """Return how ``function`` breaks the promise of ``parameters``; empty if it does not."""
    scope = {}
    exec(f"def promised({parameters}): ...", dict(_NAMES), scope)  # noqa: S102 -- our own table
    promised = inspect.signature(scope["promised"]).parameters
    offered = dict(inspect.signature(function).parameters)
    if not is_bound:
        offered.pop(next(iter(offered)))  # self
    positional = [name for name, p in offered.items() if p.kind in _POSITIONAL]
    faults = []
    leading = [name for name, p in promised.items() if p.kind in _POSITIONAL]
    if positional[: len(leading)] != leading:
        faults.append(f"positional parameters {leading} are {positional}")
    for name, promise in promised.items():
        offer = offered.get(name)
        if offer is None:
            faults.append(f"no parameter {name}")
        elif offer.kind is inspect.Parameter.POSITIONAL_ONLY:
            faults.append(f"{name} cannot be passed by name")
        elif promise.default not in (inspect.Parameter.empty, ...):
            same = type(promise.default) is type(offer.default) or isinstance(offer.default, float)
            if not same or promise.default != offer.default:
                faults.append(f"{name}={offer.default!r}, promised {promise.default!r}")
        elif promise.default is ... and offer.default is inspect.Parameter.empty:
            faults.append(f"{name} has no default")
    for name, offer in offered.items():
        is_required = offer.default is inspect.Parameter.empty and offer.kind not in _VARIADIC
        if name not in promised and is_required:
            faults.append(f"new parameter {name} without default")
    return faults


def faults(module, path, parameters):
    """Return how what stands at ``path`` in ``module`` breaks its promise; empty if it does not."""
    found = importlib.import_module(module)
    owner, _, method = path.partition(".")
    found = getattr(found, owner)
    if method:
        fields = getattr(found, "__dataclass_fields__", None) or getattr(found, "model_fields", ())
        if parameters is None and method in fields:
            return []
        is_static = isinstance(inspect.getattr_static(found, method), staticmethod | classmethod)
        found = getattr(found, method)
        is_bound = is_static or inspect.ismethod(found)
    elif isinstance(found, type):  # not its own signature, which a metaclass may hide
        found, is_bound = found.__init__, False
    else:
        is_bound = True
    return [] if parameters is None else broken(found, parameters, is_bound=is_bound)
