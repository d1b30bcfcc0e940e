"""What git says about a repository: read-only questions and one tag, always with a time limit.

Promise:  no network, no pager, no prompt, no redirection by a surrounding git command; a path is
          a path, never a pattern, and a tag is a name, never an expression that git would evaluate.
"""

import os
import shutil
import subprocess
from hashlib import sha1
from pathlib import Path
from typing import Final

from cadenza.core.errors import IntegrityError

#: Longest time one git command may take, s; many times what one needs on a busy machine.
GIT_TIMEOUT_S: Final = 60.0
#: Variables by which a surrounding git command (a hook, say) would redirect ours.
_GIT_REDIRECTS: Final = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE"}
)


def run_git(repo_root: Path, *arguments: str) -> bytes:
    """Return what git prints in ``repo_root``.

    Raises:
        IntegrityError: git is missing, failed or took too long.
    """
    program = shutil.which("git")
    if program is None:
        raise IntegrityError("git: expected the program on PATH, got none; install it.")
    environment = {key: value for key, value in os.environ.items() if key not in _GIT_REDIRECTS}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1"}
    environment |= {"GIT_TERMINAL_PROMPT": "0"}
    try:
        result = subprocess.run(  # noqa: S603  # no shell, and every argument is ours
            [program, "-C", str(repo_root), *arguments],
            capture_output=True,
            check=True,
            timeout=GIT_TIMEOUT_S,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode(errors="replace").split())
        raise IntegrityError(f"git {arguments[0]}: {said or 'it failed'}") from error
    except subprocess.TimeoutExpired as error:
        raise IntegrityError(f"git {arguments[0]}: no answer in {GIT_TIMEOUT_S:g} s") from error
    except OSError as error:
        raise IntegrityError(f"git {arguments[0]}: {error.strerror}") from error
    return result.stdout


def git_blob_sha(content: bytes) -> str:
    """Return the object id git gives a file with ``content``, 40 hex digits."""
    header = f"blob {len(content)}\0".encode()
    return sha1(header + content, usedforsecurity=False).hexdigest()


def tag_object(repo_root: Path, tag: str) -> str:
    """Return the object that ``tag`` names: the tag object if annotated, else the commit.

    Raises:
        IntegrityError: ``tag`` is no name of a tag, or there is none of that name.
    """
    run_git(repo_root, "check-ref-format", f"refs/tags/{tag}")
    return run_git(repo_root, "rev-parse", "--verify", f"refs/tags/{tag}").decode().strip()


def blobs_at_tag(repo_root: Path, tag: str, *, path: str | None = None) -> dict[str, str]:
    """Return the files of the tagged tree, by path from the top: all, or the one at ``path``.

    Raises:
        IntegrityError: There is no such tag.
    """
    tag_object(repo_root, tag)
    arguments = ["ls-tree", "-r", "-z", "--full-tree", f"refs/tags/{tag}"]
    if path is not None:
        arguments += ["--", path]
    blobs: dict[str, str] = {}
    for entry in run_git(repo_root, *arguments).decode(errors="surrogateescape").split("\0"):
        facts, _, name = entry.partition("\t")
        if name:
            blobs[name] = facts.rpartition(" ")[2]
    return blobs
