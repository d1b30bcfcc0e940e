"""Results that were found and pages that were computed of them, kept for all visitors.

A visitor names a finding by its digest, which is looked up in what a search has found: no path
comes from outside. What a page shows is computed once per state of the files, few at a time; a page
that would wait long says so instead. The server does not wait for computations when it ends.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError, Future
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from cadenza.benchmark.finding import Finding, Kind, Search, search
from cadenza.core.errors import NotReadyError

#: Module that computes pages.
SHOWING: Final = "cadenza.benchmark.showing"
#: Time for which a search is used again, s, at least, and as a multiple of the time that it took;
#: time that a page waits for what it shows, s.
FRESH_S, _PAUSES, WAIT_S = 2.0, 10.0, 20.0
#: Computations at once, and how many are kept.
_AT_ONCE, _KEPT = 2, 64
T = TypeVar("T")


class Findings:
    """Looks for results below one folder, and keeps what was computed of them."""

    def __init__(self, root: Path) -> None:
        """Look below ``root``."""
        self._root = root
        self._lock = threading.Lock()
        self._search: tuple[float, Search] | None = None
        self._turns = threading.Semaphore(_AT_ONCE)
        self._computed: OrderedDict[Hashable, Future[Any]] = OrderedDict()

    def search(self) -> Search:
        """Return what is there, as of a moment ago at most."""
        with self._lock:
            begun = time.monotonic()
            if self._search is None or self._search[0] < begun:
                found = search(self._root)
                took_s = time.monotonic() - begun
                self._search = begun + max(FRESH_S, _PAUSES * took_s), found
            return self._search[1]

    def get(self, identity: str, *kinds: Kind) -> Finding | None:
        """Return the finding with this identity, of one of ``kinds`` if any are given."""
        found = self.search()
        known = found.of(*kinds) if kinds else found.findings
        one = next((one for one in known if one.identity == identity), None)
        # between the search and now, a folder may have become a link that leads elsewhere
        return one if one is not None and one.path.resolve() == one.path else None

    def computed(
        self, name: str, state: Hashable, compute: Callable[[], T], *, anew: bool = False
    ) -> T:
        """Return what ``compute`` gives for this state of files, computed once or ``anew``.

        Raises:
            NotReadyError: It takes long and goes on, or gave way to others; ask again.
        """
        key = name, state
        with self._lock:
            future = self._computed.get(key)
            if future is None or (future.done() and (anew or future.exception())):
                future = self._computed[key] = Future()
                threading.Thread(target=self._work, args=(future, compute), daemon=True).start()
            self._computed.move_to_end(key)
            while len(self._computed) > _KEPT:
                self._computed.popitem(last=False)[1].cancel()
        try:
            return future.result(WAIT_S)
        except (TimeoutError, CancelledError) as error:
            raise NotReadyError(
                "This is still being computed; the page loads itself again in a moment."
            ) from error

    def known(self, name: str, state: Hashable) -> Any:
        """Return what was computed for this state of files, None if nothing or not yet."""
        with self._lock:
            future = self._computed.get((name, state))
        if future is None or not future.done() or future.cancelled() or future.exception():
            return None
        return future.result()

    def prepare(self) -> None:
        """Start to import the module that computes pages, which takes seconds."""
        threading.Thread(target=import_module, args=(SHOWING,), daemon=True).start()

    def _work(self, future: Future[Any], compute: Callable[[], Any]) -> None:
        with self._turns:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(compute())
            except Exception as error:  # noqa: BLE001 -- whoever waits for it gets it
                future.set_exception(error)


def state_of(paths: Iterable[Path]) -> Hashable:
    """Return a value that changes when one of the files does."""
    told: list[tuple[str, int, int, int]] = []
    for path in paths:
        try:
            status = path.stat()
            told.append((str(path), status.st_ctime_ns, status.st_size, status.st_ino))
        except OSError:
            told.append((str(path), 0, 0, 0))
    return tuple(sorted(told))
