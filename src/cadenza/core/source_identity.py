"""Digest of the code that can change the result of an evaluation or a job.

Covered:  every Python file of the package except the folders that only start runs or show results;
          of code beside the package, the whole package or file that defines what is used.
Use:      part of every cell key and job, so that results of other code are never mixed in.
"""

import hashlib
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast

import cadenza
from cadenza.core.files import canonical_json, sha256_bytes, sha256_file
from cadenza.core.plug_ins import GROUPS

#: Folders without influence on any episode.
_NOT_COVERED: Final = frozenset({"cli", "web", "loop", "report"})


def source_digest(*used: Any) -> str:
    """Return the SHA-256 over the package's sources and over the `outside_code` of ``used``."""
    outside = outside_code(*used)
    own = _own_digest()
    return sha256_bytes(canonical_json({"cadenza": own, **outside})) if outside else own


def outside_code(*used: Any) -> dict[str, str]:
    """Return digests of the code beside this package that defines ``used``.

    Args:
        used: Classes and functions; those of this package are left out.

    Returns:
        Name of a package or module, with the version of the distribution that offers it as a
        plug-in, to the SHA-256 of its sources as they are now.
    """
    found: dict[str, str] = {}
    for thing in used:
        names = str(thing.__module__).split(".")
        if names[0] == cadenza.__name__:
            continue
        paths = [".".join(names[:length]) for length in range(1, len(names) + 1)]
        places = [(path, getattr(sys.modules.get(path), "__file__", None)) for path in paths]
        path, file = next((place for place in places if place[1]), (paths[-1], None))
        if file is None:
            found[path] = _digest_without_file(thing)
        elif file.endswith("__init__.py"):
            found[_versioned(path)] = digest_of_sources(Path(file).parent, leave_out=frozenset())
        else:  # a script is called __main__ in one process and __mp_main__ in another
            label = Path(file).stem if path.endswith("main__") else _versioned(path)
            found[label] = sha256_file(Path(file))
    return found


@cache
def _own_digest() -> str:
    return digest_of_sources(Path(cadenza.__file__).parent)


def digest_of_sources(root: Path, *, leave_out: frozenset[str] = _NOT_COVERED) -> str:
    """Return the SHA-256 over the Python files below ``root``, names and bytes, in sorted order.

    Args:
        root: Folder of a package.
        leave_out: Names of folders whose files do not count.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if leave_out.intersection(relative.parts[:-1]):
            continue
        content = path.read_bytes()
        digest.update(f"{relative.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _versioned(module: str) -> str:
    """Return the name with the version of the plug-in distribution it belongs to, if it does."""
    top = module.partition(".")[0]
    for plug_in in (plug_in for group in GROUPS for plug_in in entry_points(group=group)):
        if plug_in.dist is not None and plug_in.module.partition(".")[0] == top:
            return f"{module} of {plug_in.dist.name} {plug_in.dist.version}"
    return module


def _digest_without_file(thing: Any) -> str:
    """Return the SHA-256 over what a class, or a function, of a notebook does and holds."""
    members: dict[str, Any] = {"": thing, **vars(thing)}
    return sha256_bytes(repr([(name, _content(held)) for name, held in members.items()]).encode())


def _content(member: Any) -> Any:
    """Return compiled code without the place it stands at, plain values, and types of the rest."""
    function = getattr(member, "__func__", getattr(member, "fget", member))
    code = getattr(function, "__code__", member)
    if isinstance(code, CodeType):
        return code.co_code, code.co_names, [_content(held) for held in code.co_consts]
    if isinstance(member, tuple):
        return [_content(held) for held in cast("tuple[Any, ...]", member)]
    return repr(member) if isinstance(member, str | bytes | int | float) else type(member).__name__
