"""A proposal by one call of a language model, with one more to repair a malformed reply."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import InputError
from cadenza.loop.contracts.records import EvalReport, Proposal
from cadenza.loop.events import Event, EventSink
from cadenza.loop.knowledge.folder import newest_pages
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.protocol import DEFAULT_MAX_TOKENS, LLMClient, NullLLM, asking, current_place
from cadenza.loop.orchestrator.proposer_plans import Plan, bounded_proposal, strict_plan
from cadenza.loop.orchestrator.proposer_prompt import (
    MAX_PROMPT_CHARS,
    Prompt,
    PromptSource,
)
from cadenza.loop.schedule import DeterministicProposer

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


_LOGGER: Final = logging.getLogger(__name__)

#: Most characters of one page in a prompt.
_PAGE_CHARS: Final = 8000
_REQUEST: Final = "Plan the cycle."
SYSTEM: Final = (
    "You plan the next training cycle of a robot policy. Reply with only a JSON object "
    '{"action": "reuse_seed" or "recollect_failing", "dataset": the seed dataset, '
    '"num_episodes": whole number or null, "notes": one sentence, "focus": names of failing '
    "tasks}, and learning_rate, steps, batch_size or rung where they may be set. Its JSON schema: "
    + json.dumps(Plan.model_json_schema(), sort_keys=True)
)


class LLMProposer:
    """Asks a language model, and falls back to the schedule; the bounds hold either way."""

    def __init__(
        self,
        llm: LLMClient,
        knowledge_root: Path,
        fallback: DeterministicProposer,
        max_pages: int = 6,
        *,
        bus: EventSink | None = None,
        run_id: str = "proposal",
        max_prompt_chars: int = MAX_PROMPT_CHARS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """Propose with ``llm`` within the bounds of ``fallback``.

        Args:
            llm: The model.
            knowledge_root: Folder of the pages; it may be missing.
            fallback: Seed dataset, cap, and the proposal without a usable reply.
            max_pages: Most pages in the prompt, the newest.
            bus: Gets the events ``orchestrator/knowledge_used``, and ``proposal_fallback`` with the
                error; None for nobody.
            run_id: Run of those events.
            max_prompt_chars: Longest prompt, characters, at least
                `cadenza.loop.orchestrator.proposer_prompt.MIN_PROMPT_CHARS`.
            max_tokens: Most tokens of one reply.
        """
        self._llm = llm
        self._root = Path(knowledge_root)
        self._fallback = fallback
        self._max_pages = max_pages
        self._bus = bus
        self._run_id = run_id
        self._max_chars = max_prompt_chars
        self._max_tokens = max_tokens

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the model's proposal within the bounds, or the schedule's."""
        if isinstance(self._llm, NullLLM):
            return self._fallback.propose(cycle, last_report)
        talk = Talk(self._llm, self._bus, self._run_id, cycle, self._max_tokens)
        try:
            with asking(cycle, "propose"):
                plan = _plan(talk, self._source(cycle, last_report))
        except InputError as error:
            problem = talk.problem(error)
            _LOGGER.warning("proposal: falling back to the schedule: %s", problem)
            talk.emit("orchestrator", "proposal_fallback", {"error": problem})
            return self._fallback.propose(cycle, last_report)
        return bounded_proposal(plan, self._fallback, cycle, last_report)

    def _source(self, cycle: int, report: EvalReport | None) -> PromptSource:
        most = self._fallback.most_episodes(cycle)
        facts = "\n".join(
            [
                f"Cycle: {cycle}",
                f"Seed dataset, the only one allowed: {json.dumps(self._fallback.seed_dataset)}",
                f"Most episodes: {'all there are, and no fewer' if most is None else most}",
                self._fallback.told_moves(),
                "The last evaluation and pages about earlier runs follow.",
            ]
        )
        return PromptSource(
            facts=facts,
            report=report,
            pages=newest_pages(self._root, self._max_pages),
            raw=True,
            max_chars=self._max_chars,
            page_chars=_PAGE_CHARS,
        )


def _plan(talk: Talk, source: PromptSource) -> Plan:
    """Return the model's plan.

    Raises:
        InputError: There is none, even after a repair turn.
    """
    reply = talk.ask(source.build(_REQUEST), SYSTEM)
    if not reply:
        raise InputError("no reply")
    try:
        return strict_plan(reply)
    except InputError as error:
        again = source.repair(reply, str(error), "the JSON object")
    return strict_plan(talk.ask(again, SYSTEM))
