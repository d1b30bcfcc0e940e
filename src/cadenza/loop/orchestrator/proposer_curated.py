"""A proposal by propose, score and refine: several plans, the best of them, made better.

At most three calls of a model, and one more if the list of plans is unusable.
"""

import json
import math
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import EvalReport, Proposal
from cadenza.loop.events import EventSink
from cadenza.loop.knowledge.folder import newest_pages
from cadenza.loop.llm.protocol import LLMClient, asking
from cadenza.loop.orchestrator.proposer_llm import Talk
from cadenza.loop.orchestrator.proposer_plans import lenient_proposal, parsed_json
from cadenza.loop.orchestrator.proposer_prompt import (
    MAX_PROMPT_CHARS,
    PromptSource,
)
from cadenza.loop.schedule import DeterministicProposer

#: Pages in the prompt, and most characters of each.
_PAGES: Final = 4
_PAGE_CHARS: Final = 2000
#: Best score that a plan can get.
_MAX_SCORE: Final = 10.0
#: Characters of notes in an event.
_NOTE_CHARS: Final = 80
#: Stage of the events that tell how the plan was found.
_STAGE: Final = "curation"
_PLAN: Final = (
    '{"action": "reuse_seed" or "recollect_failing", "dataset": the allowed dataset, '
    '"num_episodes": whole number, "notes": one sentence, "focus": names of failing tasks}'
)
_PLAN_SYSTEM: Final = (
    "You plan the next training cycle of a robot policy. Reply with only a JSON array of plans, "
    f"each {_PLAN}."
)
_SCORE_SYSTEM: Final = (
    "You judge plans for the next training cycle of a robot policy. Reply with only a JSON array "
    'of {"index": number of the plan, "score": 0 to 10, "reason": one sentence}.'
)
_REFINE_SYSTEM: Final = (
    "You improve a plan for the next training cycle of a robot policy. Reply with only one JSON "
    f"object {_PLAN}."
)


class CuratedProposer:
    """Lets a language model list, judge and refine plans; the bounds hold for each of them."""

    def __init__(
        self,
        llm: LLMClient,
        knowledge_root: Path,
        fallback: DeterministicProposer,
        data_cfg: DataConfig,
        candidates: int = 3,
        bus: EventSink | None = None,
        max_tokens: int = 8192,
        *,
        run_id: str = "curation",
        max_prompt_chars: int = MAX_PROMPT_CHARS,
    ) -> None:
        """Propose with ``llm`` within the bounds of ``fallback`` and ``data_cfg``.

        Args:
            llm: The model.
            knowledge_root: Folder of the pages; it may be missing.
            fallback: Seed dataset, schedule, and the proposal without usable plans.
            data_cfg: Its cap holds too; the smaller of the two does.
            candidates: Plans asked for, >= 1.
            bus: Gets the events ``curation/*`` and ``orchestrator/knowledge_used``.
            max_tokens: Most tokens of one reply.
            run_id: Run of those events.
            max_prompt_chars: Longest prompt, characters.

        Raises:
            ConfigurationError: ``candidates`` is out of range.
        """
        if candidates < 1:
            raise ConfigurationError(
                f"candidates: expected at least 1 plan, got {candidates}; set curation.enabled "
                "to false for none."
            )
        caps = [c for c in (fallback.max_episodes, data_cfg.max_episodes) if c is not None]
        self._llm = llm
        self._root = Path(knowledge_root)
        self._bounds = DeterministicProposer(
            fallback.seed_dataset,
            fallback.initial_episodes,
            fallback.growth,
            min(caps, default=None),
            fallback.failing_threshold,
            moves=fallback.moves,
        )
        self._candidates = candidates
        self._bus = bus
        self._max_tokens = max_tokens
        self._run_id = run_id
        self._max_chars = max_prompt_chars

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the refined winner, or the schedule's proposal."""
        source = self._source(cycle, last_report)
        talk = Talk(self._llm, self._bus, self._run_id, cycle, self._max_tokens)
        try:
            with asking(cycle, "curate_plans"):
                plans = self._plans(talk, cycle, last_report, source)
        except InputError as error:
            talk.emit(_STAGE, "curation_fallback", {"error": talk.problem(error)})
            return self._bounds.propose(cycle, last_report)
        notes = [plan.notes[:_NOTE_CHARS] for plan in plans]
        talk.emit(_STAGE, "curation_candidates", {"count": len(plans), "notes": notes})
        winner = plans[0]
        if len(plans) > 1:
            with asking(cycle, "curate_scores"):
                winner = plans[_best(talk, plans, source)]
        with asking(cycle, "curate_refine"):
            final = self._refined(talk, cycle, winner, last_report, source)
        talk.emit(_STAGE, "curation_final", {"proposal": final.model_dump(mode="json")})
        return final

    def _plans(
        self, talk: Talk, cycle: int, report: EvalReport | None, source: PromptSource
    ) -> list[Proposal]:
        """Return the usable plans, at least one.

        Raises:
            InputError: There is none, even after a repair turn.
        """
        prompt = source.build(f"List {self._candidates} different plans.")
        reply = talk.ask(prompt, _PLAN_SYSTEM)
        if not reply:
            raise InputError("no reply")
        try:
            return self._usable(cycle, report, reply)
        except InputError as error:
            wanted = f"a JSON array of {self._candidates} plans, each {_PLAN}"
            again = source.repair(reply, str(error), wanted)
        return self._usable(cycle, report, talk.ask(again, _PLAN_SYSTEM))

    def _usable(self, cycle: int, report: EvalReport | None, reply: str) -> list[Proposal]:
        document = parsed_json(reply, "[]")
        listed = [lenient_proposal(d, self._bounds, cycle, report) for d in document]
        plans = [plan for plan in listed if plan is not None][: self._candidates]
        if not plans:
            raise InputError("expected plans with a known action, got none")
        return plans

    def _refined(
        self,
        talk: Talk,
        cycle: int,
        winner: Proposal,
        report: EvalReport | None,
        source: PromptSource,
    ) -> Proposal:
        """Return the winner as the model refines it; the winner itself without a usable reply."""
        listed = json.dumps(winner.model_dump(mode="json"))
        prompt = source.build_about("plan", listed, "Refine the plan.")
        try:
            document = parsed_json(talk.ask(prompt, _REFINE_SYSTEM), "{}")
        except InputError:
            return winner
        return lenient_proposal(document, self._bounds, cycle, report) or winner

    def _source(self, cycle: int, report: EvalReport | None) -> PromptSource:
        scheduled = self._bounds.scheduled_episodes(cycle)
        most = self._bounds.most_episodes(cycle)
        facts = "\n".join(
            [
                f"Cycle: {cycle}",
                f"The only allowed dataset: {json.dumps(self._bounds.seed_dataset)}",
                f"Episodes that the schedule suggests: {scheduled or 'all'}",
                f"Most episodes: {'all there are, and no fewer' if most is None else most}",
                self._bounds.told_moves(),
                "The last evaluation and pages about earlier runs follow.",
            ]
        )
        return PromptSource(
            facts=facts,
            report=report,
            pages=newest_pages(self._root, _PAGES),
            raw=False,
            max_chars=self._max_chars,
            page_chars=_PAGE_CHARS,
        )


def _best(talk: Talk, plans: list[Proposal], source: PromptSource) -> int:
    """Return the index of the plan with the highest score; the first without scores."""
    listed = json.dumps([plan.model_dump(mode="json") for plan in plans])
    prompt = source.build_about("plans", listed, "Score every plan, numbered from 0.")
    scores = _scores(talk.ask(prompt, _SCORE_SYSTEM), len(plans))
    winner = max(scores, key=lambda index: (scores[index], -index)) if scores else 0
    told = [scores.get(i) for i in range(len(plans))]
    talk.emit(_STAGE, "curation_scored", {"winner": winner, "scores": told})
    return winner


def _scores(reply: str, count: int) -> dict[int, float]:
    """Return the usable scores by index: known plans, finite numbers in [0, 10]."""
    try:
        document = parsed_json(reply, "[]")
    except InputError:
        return {}
    scores: dict[int, float] = {}
    for entry in cast("list[Any]", document):
        match entry:
            case {"index": int(index), "score": int(score) | float(score)} if (
                not isinstance(index, bool)
                and not isinstance(score, bool)
                and 0 <= index < count
                and math.isfinite(score)
                and 0.0 <= score <= _MAX_SCORE
            ):
                scores.setdefault(index, float(score))
            case _:
                continue
    return scores
