"""One proposal's talk with a language model: asks, and tells which pages the model read."""

import json
from collections.abc import Mapping
from typing import Any, Final

from cadenza.loop.events import Event, EventSink
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.place import current_place
from cadenza.loop.llm.protocol import LLMClient
from cadenza.loop.orchestrator.proposer_prompt import Prompt

#: Most characters of an error in an event.
ERROR_CHARS: Final = 200
#: What is wrong with a reply that is not there, where the client does not say.
_NO_REPLY: Final = "the language model gave no reply"


class Talk:
    """Calls for one proposal.

    The event ``orchestrator/knowledge_used`` follows the first reply. It names the pages of the
    prompt that the reply answers: where the reply was recorded before a kill, those of the prompt
    then, whatever the pages are now. A later prompt that holds other pages is told by another one.
    """

    def __init__(
        self, llm: LLMClient, bus: EventSink | None, run_id: str, cycle: int, max_tokens: int
    ) -> None:
        """Ask ``llm``.

        Args:
            llm: The model.
            bus: Gets the events; None for nobody.
            run_id: Run of the events.
            cycle: Cycle of the events.
            max_tokens: Most tokens of one reply.
        """
        self._llm = llm
        self._bus = bus
        self._run_id = run_id
        self._cycle = cycle
        self._max_tokens = max_tokens
        self._told: set[str] | None = None
        self._error: str | None = None

    def ask(self, prompt: Prompt, system: str) -> str:
        """Return the reply; the empty text if there is none."""
        place = current_place()
        place.about, place.error = prompt.about(), None
        reply = ask_safely(self._llm, prompt.text, system=system, max_tokens=self._max_tokens)
        answered = current_place()  # a recorded reply changed it
        self._error = None if reply else (answered.error or _NO_REPLY)
        if reply and answered.about is not None:
            self._tell_pages(json.loads(answered.about))
        return reply

    def problem(self, unusable: Exception) -> str:
        """Return why there is no usable reply: the last call's error, or what is wrong with it."""
        return (self._error or str(unusable))[:ERROR_CHARS]

    def emit(self, stage: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Tell the run of something, if anybody keeps events."""
        if self._bus is not None:
            self._bus.emit(Event(self._run_id, stage, kind, self._cycle, payload))

    def _tell_pages(self, used: dict[str, Any]) -> None:
        pages = {json.dumps(page, sort_keys=True) for page in used["pages"]}
        if self._told is None or not pages <= self._told:
            self.emit("orchestrator", "knowledge_used", used)
            self._told = pages | (self._told or set())
