"""Proposers: what the next cycle trains on. Ask one by ``propose(cycle, last_report)``.

`PlanProposer` asks a language model for k plans, with one more call to repair a malformed reply. A
single plan is taken as it is; of several the model scores each and refines the best.

Prompts:  facts first, then pages as untrusted data, within a budget.
Promise:  whatever a reply says, the dataset is the seed dataset, the count one that the schedule
          allows, the focus names tasks of the last report, and the notes are one printable line.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import MAX_NOTES, EvalReport, Proposal
from cadenza.loop.events import Event, EventBus
from cadenza.loop.knowledge.pages import PageFile, newest_pages
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.protocol import (
    CUT,
    DEFAULT_MAX_TOKENS,
    LLMClient,
    NullLLM,
    asking,
    clean_line,
    current_place,
    quoted,
    shortened,
    storable,
)
from cadenza.loop.schedule import MAX_FOCUS, MAX_NAME, DeterministicProposer, Proposer

_Read = TypeVar("_Read")
_Form = TypeVar("_Form", bound=BaseModel)

#: Longest reply that is parsed, characters.
MAX_REPLY_CHARS: Final = 1 << 18
#: What a plan may move beside the data.
_MOVES: Final = ("learning_rate", "steps", "batch_size", "rung")
#: Problems that a repair prompt names.
_MAX_PROBLEMS: Final = 5
#: Characters of one problem.
_MAX_PROBLEM_CHARS: Final = 200


class Plan(BaseModel):
    """What a model must reply; its JSON schema stands in the prompt."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="ignore")

    action: Literal["reuse_seed", "recollect_failing"]
    dataset: str = ""
    num_episodes: int | None = Field(default=None, ge=1)
    notes: str = ""
    focus: list[str] = []
    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    rung: str | None = None


class _Plans(BaseModel):
    plans: list[Plan]


class Score(BaseModel):
    """What a model must reply of one of several plans."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="ignore")

    index: int = Field(ge=0)
    score: float = Field(ge=0, le=10, allow_inf_nan=False)
    reason: str = ""


class _Scores(BaseModel):
    scores: list[Score]


def reply_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of ``model`` as services take it: nothing optional, no bounds."""
    return _closed(model.model_json_schema())


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    named = ("properties", "$defs")
    kept = {
        key: {name: _closed(one) for name, one in value.items()} if key in named else _closed(value)
        for key, value in given.items()
        if key in (*named, "type", "items", "anyOf", "enum", "const", "$ref")
    }
    if "properties" in kept:
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
    return kept


#: Openings of brackets at which JSON is looked for.
_MAX_OPENINGS: Final = 1000


def json_values(reply: str, brackets: Literal["{}", "[]"]) -> list[Any]:
    """Return the JSON values in a reply that begin with a bracket, the last one first.

    Around its answer a model may think aloud, in braces too, or put up a fence. What lies within a
    value is none of its own.
    """
    found: list[Any] = []
    place = reply.find(brackets[0]) if len(reply) <= MAX_REPLY_CHARS else -1
    for _ in range(_MAX_OPENINGS):
        if place < 0:
            break
        try:
            value, end = json.JSONDecoder().raw_decode(reply, place)
            found.append(value)
        except (ValueError, RecursionError):
            end = place + 1
        place = reply.find(brackets[0], end)
    return found[::-1]


def strict_plan(reply: str) -> Plan:
    """Return the plan that a reply holds, or raise an `InputError` that lists what does not fit."""
    told: list[str] = []
    for document in json_values(reply, "{}"):
        try:
            return Plan.model_validate(document)
        except ValidationError as error:
            listed = error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
            problems = (f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in listed)
            told.append("; ".join(clean_line(one, _MAX_PROBLEM_CHARS) for one in problems))
    raise InputError(told[0] if told else "expected a JSON object, got none")


def usable(form: type[_Form], document: Any) -> _Form | None:
    """Return what of a document fits ``form``; None if a field without a default does not."""
    try:
        return form.model_validate(document)
    except ValidationError as error:
        wrong = {place["loc"][0] for place in error.errors() if place["loc"]}
    if not wrong or any(form.model_fields[str(name)].is_required() for name in wrong):
        return None
    return form.model_validate({key: document[key] for key in document if key not in wrong})


def bounded_proposal(
    plan: Plan, bounds: DeterministicProposer, cycle: int, report: EvalReport | None
) -> Proposal:
    """Return a plan as a proposal within ``bounds``; without a count it takes all it may."""
    proposal = Proposal(
        action=plan.action,
        dataset=bounds.seed_dataset,
        num_episodes=bounds.allowed_episodes(cycle, plan.num_episodes),
        notes=clean_line(plan.notes, MAX_NOTES),
        focus=_focus(plan.action, plan.focus, bounds, report),
    )
    return bounds.within(proposal.model_copy(update=plan.model_dump(include={*_MOVES})))


def _focus(
    action: str, named: list[str], bounds: DeterministicProposer, report: EvalReport | None
) -> tuple[str, ...]:
    """Return the known ones among the named tasks, or those that fail if none is known."""
    if action != "recollect_failing" or report is None:
        return ()
    known = (task for task in named if task in report.per_task and 1 <= len(task) <= MAX_NAME)
    return tuple(dict.fromkeys(known))[:MAX_FOCUS] or bounds.focus(report)


#: Longest prompt, characters; about 12 000 tokens.
MAX_PROMPT_CHARS: Final = 48_000
#: Smallest budget of a prompt: room for facts, delimiters and a repair turn, characters.
MIN_PROMPT_CHARS: Final = 6000
#: Characters of a reply, and of its problems, in a repair turn.
_REPAIR_CHARS: Final = 700
#: Characters of a request, with the delimiters of what it is about, rounded up.
_REQUEST_CHARS: Final = 600
#: Most characters of an error in an event.
ERROR_CHARS: Final = 200
#: What is wrong with a reply that is not there, where the client does not say.
_NO_REPLY: Final = "the language model gave no reply"


class Talk:
    """The calls for one proposal: prompts within a budget, of which pages are cut first.

    The event ``orchestrator/knowledge_used`` follows the first reply. It names the pages of the
    prompt that the reply answers: where the reply was recorded before a kill, those of the prompt
    then, whatever the pages are now. A later prompt that holds other pages is told by another one.
    """

    def __init__(self, proposer: "PlanProposer", cycle: int, report: EvalReport | None) -> None:
        """Begin to ask about ``cycle``, given the evaluation of the cycle before."""
        self._by = proposer
        self.cycle = cycle
        self._report = report
        self._facts = shortened(_facts(proposer.bounds, cycle), MIN_PROMPT_CHARS // 4)
        self._pages = newest_pages(proposer.root, proposer.max_pages)
        self._told: set[str] | None = None
        self._error: str | None = None

    def ask(self, request: str, system: str, form: type[BaseModel]) -> str:
        """Return the reply, as ``form`` if the service can; the empty text if there is none."""
        prompt, used = self._prompt(request)
        place = current_place()
        place.about, place.error, place.schema = json.dumps(used), None, reply_schema(form)
        reply = ask_safely(self._by.llm, prompt, system=system, max_tokens=self._by.max_tokens)
        answered = current_place()  # a recorded reply changed it
        self._error = None if reply else (answered.error or _NO_REPLY)
        if reply and answered.about is not None:
            self._tell_pages(json.loads(answered.about))
        return reply

    def ask_about(
        self, kind: str, told: object, request: str, system: str, form: type[BaseModel]
    ) -> str:
        """Ask about what the model proposed before, which is as untrusted as any other text."""
        text = shortened(json.dumps(told), self._by.max_prompt_chars // 2 - _REQUEST_CHARS)
        return self.ask(quoted([(kind, "proposed before", text)], request), system, form)

    def answer(
        self,
        request: str,
        system: str,
        *,
        form: type[BaseModel],
        wanted: str,
        read: Callable[[str], _Read],
    ) -> _Read:
        """Return what a reply says, with one more call to repair one that cannot be read.

        An `InputError` says that there is no usable reply, even after that.
        """
        reply = self.ask(request, system, form)
        if not reply:
            raise InputError("no reply")
        try:
            return read(reply)
        except InputError as error:
            shown = [
                ("reply", "your last reply", shortened(reply, _REPAIR_CHARS)),
                ("problem", "what is wrong with it", shortened(str(error), _REPAIR_CHARS)),
            ]
        return read(self.ask(quoted(shown, f"Reply again with only {wanted}."), system, form))

    def problem(self, unusable: Exception) -> str:
        """Return why there is no usable reply: the last call's error, or what is wrong with it."""
        return (self._error or str(unusable))[:ERROR_CHARS]

    def emit(self, stage: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Tell the run of something, if anybody keeps events."""
        if self._by.bus is not None:
            self._by.bus.emit(Event(self._by.run_id, stage, kind, self.cycle, payload))

    def bounded(self, plan: Plan) -> Proposal:
        """Return a plan as a proposal within the bounds."""
        return bounded_proposal(plan, self._by.bounds, self.cycle, self._report)

    def _prompt(self, request: str) -> tuple[str, dict[str, Any]]:
        """Return a prompt that ends with ``request``, and which pages a reply could draw on."""
        by, what = self._by, "last evaluation"
        request = shortened(request, by.max_prompt_chars // 2)

        def room(texts: list[tuple[str, str, str]]) -> int:
            return by.max_prompt_chars - len(quoted(texts, request, facts=self._facts))

        chars = room([("report", what, "")])
        texts = [("report", what, _report_json(self._report, raw=by.raw, chars=chars))]
        used: list[PageFile] = []
        for page in self._pages:
            chars = room([*texts, ("page", page.path, "")])
            if chars <= len(CUT):
                break
            used.append(page)
            texts.append(("page", page.path, shortened(page.text, min(chars, by.page_chars))))
        listed = [{"path": page.path, "sha256": page.sha256} for page in used]
        drawn_on = {"pages": listed, "chars": sum(len(text) for *_, text in texts[1:])}
        return storable(quoted(texts, request, facts=self._facts)), drawn_on

    def _tell_pages(self, used: dict[str, Any]) -> None:
        pages = {json.dumps(page, sort_keys=True) for page in used["pages"]}
        if self._told is None or not pages <= self._told:
            self.emit("orchestrator", "knowledge_used", used)
            self._told = pages | (self._told or set())


def _facts(bounds: DeterministicProposer, cycle: int) -> str:
    """Return what the model must know: cycle, dataset, bounds."""
    most = bounds.most_episodes(cycle)
    return "\n".join(
        [
            f"Cycle: {cycle}",
            f"Seed dataset, the only one allowed: {json.dumps(bounds.seed_dataset)}",
            f"Episodes that the schedule suggests: {bounds.scheduled_episodes(cycle) or 'all'}",
            f"Most episodes: {'all there are, and no fewer' if most is None else most}",
            bounds.told_moves(),
            "The last evaluation and pages about earlier runs follow.",
        ]
    )


def _report_json(report: EvalReport | None, *, raw: bool, chars: int) -> str:
    """Return a report as JSON, without its larger parts or cut if it is too long."""
    if report is None:
        return "none"
    texts = [
        json.dumps(report.model_dump(mode="json", exclude=cut), sort_keys=True, ensure_ascii=False)
        for cut in ([{"outcomes"}] if raw else []) + [{"outcomes", "raw"}]
    ]
    return next((text for text in texts if len(text) <= chars), shortened(texts[-1], chars))


_logger = logging.getLogger(__name__)

_PLAN: Final = (
    '{"action": "reuse_seed" or "recollect_failing", "dataset": the allowed dataset, '
    '"num_episodes": whole number or null, "notes": one sentence, "focus": names of failing tasks}'
)
SYSTEM: Final = (
    f"You plan the next training cycle of a robot policy. Reply with only a JSON object {_PLAN}, "
    "and learning_rate, steps, batch_size or rung where they may be set. Its JSON schema: "
    + json.dumps(Plan.model_json_schema(), sort_keys=True)
)
_PLANS_SYSTEM: Final = (
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
#: Characters of notes in an event.
_NOTE_CHARS: Final = 80
#: Stage of the events that tell how the best of several plans was found.
_STAGE: Final = "curation"


@dataclass(eq=False)
class PlanProposer:
    """Asks a language model for plans, and falls back to the schedule; the bounds hold always.

    Attributes:
        root: Folder of the pages, which may be missing.
        bounds: Schedule that proposes where there is no reply.
        plans: So many are asked for.
        max_pages: Newest pages that go into a prompt, with ``page_chars`` of each at most.
        raw: Whether a prompt tells what the evaluation itself wrote.
        bus: Gets ``orchestrator/knowledge_used`` of ``run_id``, and ``proposal_fallback``, or
            ``curation/*`` of several plans; None for nobody.
        max_prompt_chars: Longest prompt, at least `MIN_PROMPT_CHARS`.
    """

    llm: LLMClient
    root: Path
    bounds: DeterministicProposer
    plans: int = 1
    _: KW_ONLY
    max_pages: int = 6
    page_chars: int = 8000
    raw: bool = True
    bus: EventBus | None = None
    run_id: str = "proposal"
    max_prompt_chars: int = MAX_PROMPT_CHARS
    max_tokens: int = DEFAULT_MAX_TOKENS

    def __post_init__(self) -> None:
        self.root = Path(self.root)
        if self.plans < 1:
            raise ConfigurationError(
                f"candidates: expected at least 1 plan, got {self.plans}; set curation.enabled "
                "to false for none."
            )
        if self.max_prompt_chars < MIN_PROMPT_CHARS:
            raise ConfigurationError(
                f"max_prompt_chars: expected at least {MIN_PROMPT_CHARS}, got "
                f"{self.max_prompt_chars}."
            )

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the model's best plan within the bounds, or the schedule's proposal."""
        if isinstance(self.llm, NullLLM):
            return self.bounds.propose(cycle, last_report)
        talk, curates = Talk(self, cycle, last_report), self.plans > 1
        try:
            plans = self._listed(talk) if curates else [self._single(talk)]
        except InputError as error:
            problem = talk.problem(error)
            _logger.warning("proposal: falling back to the schedule: %s", problem)
            where = (_STAGE, "curation") if curates else ("orchestrator", "proposal")
            talk.emit(where[0], f"{where[1]}_fallback", {"error": problem})
            return self.bounds.propose(cycle, last_report)
        return self._best(talk, plans) if curates else plans[0]

    def _single(self, talk: Talk) -> Proposal:
        """Return the plan of a reply, or raise `InputError`."""
        with asking(talk.cycle, "propose"):
            plan = talk.answer(
                "Plan the cycle.", SYSTEM, form=Plan, wanted="the JSON object", read=strict_plan
            )
        return talk.bounded(plan)

    def _listed(self, talk: Talk) -> list[Proposal]:
        """Return the plans of a reply, at least one, or raise `InputError`."""

        def read(reply: str) -> list[Proposal]:
            for document in json_values(reply, "[]"):
                found = [usable(Plan, one) for one in document]
                if plans := [talk.bounded(plan) for plan in found if plan is not None]:
                    return plans[: self.plans]
            raise InputError("expected plans with a known action, got none")

        with asking(talk.cycle, "curate_plans"):
            return talk.answer(
                f"List {self.plans} different plans.",
                _PLANS_SYSTEM,
                form=_Plans,
                wanted=f"a JSON array of {self.plans} plans, each {_PLAN}",
                read=read,
            )

    def _best(self, talk: Talk, plans: list[Proposal]) -> Proposal:
        """Return the plan with the highest score, refined; the first of equal ones."""
        notes = [plan.notes[:_NOTE_CHARS] for plan in plans]
        talk.emit(_STAGE, "curation_candidates", {"count": len(plans), "notes": notes})
        listed, best = [plan.model_dump(mode="json") for plan in plans], 0
        if len(plans) > 1:
            request = "Score every plan, numbered from 0."
            with asking(talk.cycle, "curate_scores"):
                reply = talk.ask_about("plans", listed, request, _SCORE_SYSTEM, _Scores)
            scores = _scores(reply, len(plans))
            best = max(scores, key=lambda index: (scores[index], -index)) if scores else 0
            told = [scores.get(index) for index in range(len(plans))]
            talk.emit(_STAGE, "curation_scored", {"winner": best, "scores": told})
        with asking(talk.cycle, "curate_refine"):
            reply = talk.ask_about("plan", listed[best], "Refine the plan.", _REFINE_SYSTEM, Plan)
        refined = next(filter(None, (usable(Plan, one) for one in json_values(reply, "{}"))), None)
        final = plans[best] if refined is None else talk.bounded(refined)
        talk.emit(_STAGE, "curation_final", {"proposal": final.model_dump(mode="json")})
        return final


def _scores(reply: str, count: int) -> dict[int, float]:
    """Return the usable scores of known plans by index; of two of one plan, the first."""
    for document in json_values(reply, "[]"):
        found = [one for entry in document if (one := usable(Score, entry)) is not None]
        if scores := {one.index: one.score for one in reversed(found) if one.index < count}:
            return scores
    return {}


class LLMProposer(PlanProposer):
    """Takes the one plan that a language model proposes."""

    def __init__(
        self,
        llm: LLMClient,
        knowledge_root: Path,
        fallback: DeterministicProposer,
        max_pages: int = 6,
        **more: Any,
    ) -> None:
        """Propose within the bounds of ``fallback``; ``more`` as `PlanProposer`."""
        super().__init__(llm, knowledge_root, fallback, max_pages=max_pages, **more)


class CuratedProposer(PlanProposer):
    """Lets a language model list, judge and refine plans."""

    def __init__(
        self,
        llm: LLMClient,
        knowledge_root: Path,
        fallback: DeterministicProposer,
        data_cfg: DataConfig,
        candidates: int = 3,
        bus: EventBus | None = None,
        max_tokens: int = 8192,
        **more: Any,
    ) -> None:
        """Choose from ``candidates`` within ``fallback`` and the cap of ``data_cfg``.

        ``more`` as `PlanProposer`.
        """
        caps = [c for c in (fallback.max_episodes, data_cfg.max_episodes) if c is not None]
        bounds = replace(fallback, max_episodes=min(caps, default=None))
        more = {"run_id": _STAGE, "max_pages": 4, "page_chars": 2000, "raw": False} | more
        super().__init__(
            llm, knowledge_root, bounds, candidates, bus=bus, max_tokens=max_tokens, **more
        )


__all__ = ["CuratedProposer", "DeterministicProposer", "LLMProposer", "PlanProposer", "Proposer"]
