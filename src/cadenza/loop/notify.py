"""Tell people what happens to a run, by a command or a webhook, without harm to the run.

Source:    the events in the store, behind the number in ``notified.json`` of the run's folder: what
           a killed controller did not tell, the next one tells.
How often: ``failed`` and ``approval`` at least once, as the number moves on after they were told;
           all others at most once, as it moves before. A nearly full disk is told once until there
           is room again.
Limits:    works in a thread; each attempt ends after ``timeout_s``, and the third is the last. What
           was not told stands in ``incidents.jsonl``. A run that ends waits for the last attempts.
Secrets:   a failure names the kind and host of a webhook, never its address.
"""

import json
import logging
import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import shorten
from typing import Any, Final
from urllib.parse import urlsplit

from cadenza.core.errors import IntegrityError, StorageError
from cadenza.core.files import atomic_write_json
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import HIDDEN, BackendName, LoopConfig, NotifyConfig, Occasion
from cadenza.loop.errors import StoreError
from cadenza.loop.retention import disk_space, shortage
from cadenza.loop.store.database import shown
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import StoredEvent

#: Variable with the address, for a run whose stored configuration has it without its key.
WEBHOOK_VARIABLE: Final = "CADENZA_NOTIFY_WEBHOOK"
#: Variable in which a command gets the text, one line.
TEXT_VARIABLE: Final = "CADENZA_NOTIFY_TEXT"
#: File in the folder of a run: what was told so far.
STATE_FILE: Final = "notified.json"
#: Pauses before the second and the third attempt, s.
_PAUSES_S: Final = (1.0, 3.0)
#: Longest line, characters.
_TEXT_WIDTH: Final = 800
#: What a document repeats of an event, beside its payload.
_OWN: Final = ("seq", "cycle", "ts", "stage", "kind")
#: Told at least once; all others at most once.
_MUST_BE_TOLD: Final[tuple[Occasion, ...]] = ("failed", "approval")
#: Most events read at once.
_PAGE: Final = 500

_logger = logging.getLogger(__name__)

#: Notes an incident: its kind and a sentence.
Note = Callable[[str, str], None]


def news_of(run_id: str, event: StoredEvent, *, place: str) -> tuple[Occasion, str] | None:
    """Return the occasion that an event is, and one line about it; None if it is none.

    ``place`` are the words of a command that say from any folder where the run is.
    """
    told: dict[str, Any] = json.loads(event.payload)
    reason = str(told.get("reason", ""))
    match event.kind:
        case "decision" if told.get("decision") == "promote":
            return "promoted", f"run {run_id} promoted the policy of cycle {event.cycle}: {reason}"
        case "approval_requested":
            asked = f"whether to {told.get('gate')} in cycle {event.cycle}: {reason}"
            how = f"cadenza loop approve {run_id} {place} --by NAME --reason TEXT"
            room = _TEXT_WIDTH - len(how) - 60  # a long reason must not push the command out
            asked = shorten(f"run {run_id} waits for approval, {asked}", max(room, 100))
            return "approval", f"{asked} Answer with: {how}"
        case "run_failed":
            return "failed", f"run {run_id} failed: {told.get('error')}"
        case "run_finished":
            why = str(told.get("stop_reason"))
            cycles = f"after {told.get('cycles_run')} cycles"
            if why.startswith("budget: ") and why != "budget: max_cycles":
                return "budget", f"run {run_id} is out of budget ({why}) {cycles}"
            best = told.get("blessed_checkpoint") or "nothing"
            return "finished", f"run {run_id} finished ({why}) {cycles}; blessed: {best}"
        case _:
            return None


@contextmanager
def notifications(
    config: LoopConfig,
    note: Note,
    store: JobStore,
    folder: Path,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Generator[Callable[[object], None]]:
    """Tell of the run of a folder during the block; yield what is to be called after each event."""
    notify = config.notify
    webhook = _address(notify, environ)
    if webhook is None and notify.webhook is not None:
        problem = (
            f"the webhook is told nothing: its address is kept nowhere; name it in "
            f"{WEBHOOK_VARIABLE}, or in the file of --config, and resume the run"
        )
        _logger.warning(problem)
        note("notify_failed", problem)
    if webhook is None and not notify.command:
        yield lambda _: None
        return
    teller = _Teller(config, webhook, note, store, folder)
    try:
        yield teller.look
    finally:
        teller.close()


def _address(config: NotifyConfig, environ: Mapping[str, str]) -> str | None:
    """Return the full address of the webhook; None if there is none, or only a hidden one."""
    given = config.webhook
    if given is not None and given.get_secret_value().endswith(HIDDEN):
        named = environ.get(WEBHOOK_VARIABLE)
        given = None if not named else NotifyConfig.model_validate({"webhook": named}).webhook
    return None if given is None else given.get_secret_value()


class _Teller:
    """A thread that looks at the events of a run when it is woken, and tells them in order."""

    def __init__(
        self, config: LoopConfig, webhook: str | None, note: Note, store: JobStore, folder: Path
    ) -> None:
        self._config = config.notify
        self._backend: BackendName = config.backend
        self._webhook = webhook
        self._note = note
        self._store = store
        self._folder, self._run_id = folder, folder.name
        place = ["--workdir", str(folder.parent.absolute())]
        self._place = shlex.join(["--store", shown(config.store)] if config.store else place)
        self._seq, self._disk_told = self._read_state()
        self._seen = self._seq
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="notifications", daemon=True)
        self._thread.start()
        self.look()

    def look(self, _event: object = None) -> None:
        """Wake the thread."""
        self._woken.set()

    def close(self) -> None:
        """Tell what is left, as long as a few attempts take."""
        self._closing.set()
        self.look()
        hooks = int(bool(self._config.command)) + int(self._webhook is not None)
        self._thread.join(hooks * 3 * self._config.timeout_s + sum(_PAUSES_S) + 1.0)
        if self._thread.is_alive():
            self._note("notify_failed", "the run ended before everything was told")

    def _work(self) -> None:
        closing = False
        while not closing:
            self._woken.wait()
            self._woken.clear()
            closing = self._closing.is_set()  # asked first, so that nothing is left then
            try:
                self._tell_events()
                self._tell_disk()
            except (StoreError, StorageError) as error:  # the next look tells it
                _logger.info("what is new was not told yet: %s", error)

    def _tell_events(self) -> None:
        while events := self._store.events.find(self._run_id, after=self._seen, limit=_PAGE):
            for event in events:
                what, text = news_of(self._run_id, event, place=self._place) or (None, "")
                if what is not None and what in self._config.events:
                    if what not in _MUST_BE_TOLD:
                        self._write_state(event.seq)
                    own = {name: getattr(event, name) for name in _OWN}
                    self._tell(what, text, {**own, "payload": json.loads(event.payload)})
                    if what in _MUST_BE_TOLD:
                        self._write_state(event.seq)
                self._seen = event.seq

    def _tell_disk(self) -> None:
        told = shortage(disk_space(self._folder, self._backend), self._folder)
        if bool(told) == self._disk_told or "disk" not in self._config.events:
            return
        self._disk_told = bool(told)
        with suppress(StorageError):  # it is full: this process still knows
            self._write_state(self._seq)
        if told:
            self._tell("disk", f"run {self._run_id}: {told}", {})

    def _tell(self, what: Occasion, text: str, document: dict[str, Any]) -> None:
        """Tell all hooks, each in up to three attempts."""
        line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:_TEXT_WIDTH]
        news = {"text": line, "event": what, "run_id": self._run_id, **document}
        body = json.dumps(news).encode()
        hooks: dict[str, Callable[[], str]] = {}
        if self._config.command:
            hooks[f"command {self._config.command[0]}"] = lambda: self._run(line, body)
        if self._webhook is not None:
            address = self._webhook
            told = f"webhook {urlsplit(address).hostname}"
            hooks[told] = lambda: _post(address, body, timeout_s=self._config.timeout_s)
        for name, attempt in hooks.items():
            problem, pauses = attempt(), list(_PAUSES_S)
            while problem and pauses:
                self._closing.wait(pauses.pop(0))
                problem = attempt()
            if problem:
                _logger.warning("%s was not told of %s: %s", name, what, problem)
                self._note("notify_failed", f"{name} was not told of {what}: {problem}")

    def _run(self, line: str, body: bytes) -> str:
        """Run the command once; return what went wrong, empty if nothing did."""
        with TemporaryFile() as errors:
            try:
                code = subprocess.run(  # noqa: S603 - the user's own words, no shell
                    self._config.command,
                    input=body,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, TEXT_VARIABLE: line},
                    start_new_session=True,
                    timeout=self._config.timeout_s,
                    check=False,
                ).returncode
            except OSError as error:
                return f"it cannot be started ({error.strerror})"
            except subprocess.TimeoutExpired:
                return f"it was ended after {self._config.timeout_s:g} s"
            if code == 0:
                return ""
            errors.seek(0)
            said = errors.read(4096).decode(errors="replace").partition("\n")[0].strip()
            return f"exit code {code} {said[:200]}".strip()

    def _read_state(self) -> tuple[int, bool]:
        """Return the number of the last event that was told, and whether a full disk was."""
        path = self._folder / STATE_FILE
        with suppress(OSError, IntegrityError, KeyError, TypeError, ValueError):
            state = parse_json_object(path.read_bytes(), source=str(path))
            return int(state["seq"]), bool(state["disk"])
        self._seq, self._disk_told = self._store.events.last_seq(self._run_id), False
        with suppress(StorageError):
            self._write_state(self._seq)  # what was before it was asked for is no news
        return self._seq, False

    def _write_state(self, seq: int) -> None:
        self._seq = seq
        atomic_write_json(self._folder / STATE_FILE, {"seq": seq, "disk": self._disk_told})


def _post(address: str, body: bytes, *, timeout_s: float) -> str:
    """Post JSON once; return what went wrong. Redirections are not followed."""
    parts = urlsplit(address)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with closing(kind(parts.hostname or "", parts.port, timeout=timeout_s)) as connection:
            connection.request("POST", target, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (HTTPException, OSError) as error:
        return getattr(error, "strerror", None) or type(error).__name__
    return "" if status // 100 == 2 else f"status {status}"
