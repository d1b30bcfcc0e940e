"""Makes an environment for packages that cannot live in this project's own; prints its Python.

    python environments/install.py environments/lerobot.txt [--needs-header linux/input.h]
    python environments/install.py --remove-all

Place:       ``$XDG_CACHE_HOME/cadenza/environments/<name>-<key>``, ``~/.cache`` by default; the
             key comes from the pins and the Python, so all checkouts on a machine share one.
Durability:  a stamp is written last. Without it an environment is half made, and made anew.
Together:    a lock lets one process at a time work on an environment; the others wait. Whoever is
             killed leaves the lock to the installer it had started, until that ends too.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STAMP = ".complete"


class InstallError(Exception):
    """The environment cannot be made; the text says what to do."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where environments are; a relative ``XDG_CACHE_HOME`` does not count."""
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    base = given if given.is_absolute() else Path(environ["HOME"]) / ".cache"
    return base / "cadenza" / "environments"


def environment_folder(requirements: Path, cache: Path) -> Path:
    """Return the folder for these pins and this Python."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    facts = [sys.version, sysconfig.get_platform(), sys.base_prefix, *filter(None, lines)]
    digest = hashlib.sha256("\n".join(facts).encode())
    return cache / f"{requirements.stem}-{digest.hexdigest()[:16]}"


def install(requirements: Path, cache: Path, header: str | None) -> Path:
    """Return the Python of the environment, which is made if it is not there.

    Args:
        requirements: Pins.
        cache: Folder of all environments.
        header: C header that a package is built with on Linux.

    Raises:
        InstallError: The compiler, the header or a package could not be had.
    """
    folder = environment_folder(requirements, cache)
    python = folder / "bin" / "python"
    with locked(folder, "finish installing") as lock:
        if (folder / STAMP).is_file() and runs(python):
            return python
        if header is not None and sys.platform == "linux":
            require_header(header)
        say(f"Installing {requirements} into {folder} (once per machine; takes minutes) ...")
        if folder.exists():
            shutil.rmtree(folder)
        # Modules are compiled when they are first imported: most of them never are.
        options = ["--quiet", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        options += ["--no-compile"]
        pip = [str(python), "-m", "pip", "install", *options, "--requirement", str(requirements)]
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            # The child has the lock too, so it holds until the child has ended.
            code = call(command, stdout=sys.stderr, pass_fds=[lock])
            if code:
                raise InstallError(
                    f"{requirements}: expected '{' '.join(command)}' to succeed, got exit code "
                    f"{code}; see the lines above and run again."
                )
        (folder / STAMP).touch()
    return python


def remove_all(cache: Path) -> None:
    """Delete every environment; their locks stay, since others may wait for them."""
    for folder in sorted(path for path in cache.glob("*") if path.is_dir()):
        with locked(folder, "finish installing"):
            say(f"Removing {folder}")
            (folder / STAMP).unlink(missing_ok=True)
            shutil.rmtree(folder)


def require_header(header: str) -> None:
    """Refuse to begin if C code with ``header`` and Python's own cannot be compiled.

    Raises:
        InstallError: It cannot.
    """
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise InstallError(
            f"expected the C compiler {compiler}, got none; a package is built from source: "
            "apt-get install gcc libc6-dev linux-libc-dev"
        )
    include = sysconfig.get_path("include")
    for wanted, package in ((header, "linux-libc-dev"), ("Python.h", "python3-dev")):
        command = [compiler, "-fsyntax-only", f"-I{include}", "-x", "c", "-"]
        source = f"#include <{wanted}>\n"
        if call(command, input=source, text=True, capture_output=True):
            raise InstallError(
                f"expected the C header {wanted}, got none; a package is built from source: "
                f"apt-get install {package}"
            )


def runs(python: Path) -> bool:
    """Return whether an interpreter is there; its base may have been removed since."""
    try:
        return call([str(python), "-c", ""]) == 0
    except OSError:
        return False


def call(command: Sequence[str], **options: Any) -> int:
    """Run a command of this file and return its exit code."""
    return subprocess.run(command, check=False, **options).returncode  # noqa: S603 - no user input


@contextmanager
def locked(folder: Path, purpose: str) -> Generator[int]:
    """Hold the lock of ``folder``; wait while another process does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another process to {purpose} {folder} ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def say(text: str) -> None:
    """Tell the user; standard output is for the result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Make an environment; print its Python.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("requirements", nargs="?", type=Path, help="pins of the environment")
    what.add_argument("--remove-all", action="store_true", help="delete every environment")
    parser.add_argument("--needs-header", metavar="HEADER", help="C header of a package (Linux)")
    arguments = parser.parse_args()
    cache = cache_folder(os.environ)
    if arguments.remove_all:
        remove_all(cache)
        return 0
    try:
        python = install(arguments.requirements, cache, arguments.needs_header)
    except InstallError as error:
        say(f"install.py: {error}")
        return 1
    sys.stdout.write(f"{python}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
