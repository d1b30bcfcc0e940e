"""Proposers: what the next cycle trains on. Ask one by ``propose(cycle, last_report)``.

`PlanProposer` asks a language model for k plans, with one more call to repair a malformed reply. A
single plan is taken as it is; of several the model scores each and refines the best.

Prompts:  facts first, then pages as untrusted data, within a budget.
Promise:  whatever a reply says, the dataset is the seed dataset, the count one that the schedule
          allows, the focus names tasks of the last report, and the notes are one printable line.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import MAX_NOTES, EvalReport, Proposal
from cadenza.loop.events import Event, EventSink
from cadenza.loop.knowledge.pages import newest_pages
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    LLMClient,
    NullLLM,
    asking,
    clean_line,
    current_place,
    data_mark,
    fenced,
    fit,
    shortened,
    storable,
    warning,
)
from cadenza.loop.schedule import (
    MAX_FOCUS,
    MAX_NAME,
    DeterministicProposer,
    Proposer,
)

_Read = TypeVar("_Read")

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


class _Score(BaseModel):
    index: int
    score: float
    reason: str


class _Scores(BaseModel):
    scores: list[_Score]


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

    Raises:
        InputError: There is none.
    """
    if len(reply) > MAX_REPLY_CHARS:
        raise InputError(f"expected at most {MAX_REPLY_CHARS} characters, got {len(reply)}")
    found: list[Any] = []
    problem, place = "none", reply.find(brackets[0])
    for _ in range(_MAX_OPENINGS):
        if place < 0:
            break
        try:
            value, end = json.JSONDecoder().raw_decode(reply, place)
            found.append(value)
        except (ValueError, RecursionError) as error:
            problem, end = f"an error: {error}", place + 1
        place = reply.find(brackets[0], end)
    if not found:
        raise InputError(f"expected JSON between {brackets[0]} and {brackets[1]}, got {problem}")
    return found[::-1]


def strict_plan(reply: str) -> Plan:
    """Return the plan that a reply holds.

    Raises:
        InputError: The reply does not fit the schema; the message lists the problems.
    """
    told: list[str] = []
    for document in json_values(reply, "{}"):
        try:
            return Plan.model_validate(document)
        except ValidationError as error:
            listed = error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
            problems = (f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in listed)
            told.append("; ".join(clean_line(one, _MAX_PROBLEM_CHARS) for one in problems))
    raise InputError(told[0])


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


def lenient_proposal(
    document: object,
    bounds: DeterministicProposer,
    cycle: int,
    report: EvalReport | None,
) -> Proposal | None:
    """Return a candidate, of any type, as a proposal within ``bounds``; None without an action."""
    if not isinstance(document, Mapping):
        return None
    plan = cast("Mapping[str, Any]", document)
    count, notes, focus = _whole(plan.get("num_episodes")), plan.get("notes"), plan.get("focus")
    usable = {
        "action": plan.get("action"),
        "num_episodes": bounds.scheduled_episodes(cycle) if count is None else max(1, count),
        "notes": notes if isinstance(notes, str) else "",
        "focus": [name for name in _listed(focus) if isinstance(name, str)],
    }
    for moved in ({name: plan[name] for name in _MOVES if name in plan}, {}):
        try:
            made = Plan.model_validate(usable | moved)
        except ValidationError:
            continue
        return bounded_proposal(made, bounds, cycle, report)
    return None


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    """Return a finite number cut to a whole one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or math.isfinite(value) else None


def _focus(
    action: str, named: list[Any], bounds: DeterministicProposer, report: EvalReport | None
) -> tuple[str, ...]:
    """Return the known ones among the named tasks, or those that fail if none is known."""
    if action != "recollect_failing" or report is None:
        return ()
    known = (task for task in named if isinstance(task, str) and task in report.per_task)
    unique = tuple(dict.fromkeys(task for task in known if 1 <= len(task) <= MAX_NAME))
    return unique[:MAX_FOCUS] or bounds.focus(report)


#: Longest prompt, characters; about 12 000 tokens.
MAX_PROMPT_CHARS: Final = 48_000
#: Smallest budget of a prompt: room for facts, delimiters and a repair turn, characters.
MIN_PROMPT_CHARS: Final = 6000
#: Delimiters of one text without its name, characters, rounded up.
_OVERHEAD: Final = 120
#: Characters that one character of a name takes at most as JSON.
_MAX_ESCAPE: Final = 12
#: Characters of a reply, and of its problems, in a repair turn.
_REPAIR_CHARS: Final = 700
#: Characters of a request, with the delimiters of what it is about, rounded up.
_REQUEST_CHARS: Final = 600
#: A mark, for its length.
_ANY_MARK: Final = "0" * 32
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
        self._cycle = cycle
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
        return self.ask(_quoting([(kind, "proposed before", text)], request), system, form)

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

        Raises:
            InputError: There is no usable reply, even after a repair turn.
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
        return read(self.ask(_quoting(shown, f"Reply again with only {wanted}."), system, form))

    def problem(self, unusable: Exception) -> str:
        """Return why there is no usable reply: the last call's error, or what is wrong with it."""
        return (self._error or str(unusable))[:ERROR_CHARS]

    def emit(self, stage: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Tell the run of something, if anybody keeps events."""
        if self._by.bus is not None:
            self._by.bus.emit(Event(self._by.run_id, stage, kind, self._cycle, payload))

    def _prompt(self, request: str) -> tuple[str, dict[str, Any]]:
        """Return a prompt that ends with ``request``, and which pages a reply could draw on."""
        by = self._by
        request = shortened(request, by.max_prompt_chars // 2)
        room = by.max_prompt_chars - len(self._facts) - len(request)
        room -= len(warning(_ANY_MARK)) + _OVERHEAD
        report = _report_json(self._report, raw=by.raw, chars=room)
        longest_path = max((len(page.path) for page in self._pages), default=0)
        texts = fit(
            [shortened(page.text, by.page_chars) for page in self._pages],
            room - len(report),
            _OVERHEAD + _MAX_ESCAPE * longest_path,
        )
        used = self._pages[: len(texts)]
        mark = data_mark([report, *texts, *(page.path for page in used)])
        blocks = [fenced("report", "last evaluation", report, mark)]
        blocks += [fenced("page", p.path, t, mark) for p, t in zip(used, texts, strict=True)]
        text = "\n\n".join([self._facts, warning(mark), *blocks, request])
        listed = [{"path": page.path, "sha256": page.sha256} for page in used]
        return storable(text), {"pages": listed, "chars": sum(len(t) for t in texts)}

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


def _quoting(texts: Sequence[tuple[str, str, str]], request: str) -> str:
    """Return ``request`` after (kind, name, text) of the model's own, fenced off."""
    mark = data_mark([text for _, _, text in texts])
    blocks = [fenced(kind, name, text, mark) for kind, name, text in texts]
    return "\n\n".join([warning(mark), *blocks, request])


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
#: Best score that a plan can get.
_MAX_SCORE: Final = 10.0
#: Characters of notes in an event.
_NOTE_CHARS: Final = 80
#: Stage of the events that tell how the best of several plans was found.
_STAGE: Final = "curation"


class PlanProposer:
    """Asks a language model for plans, and falls back to the schedule; the bounds hold always."""

    def __init__(
        self,
        llm: LLMClient,
        knowledge_root: Path,
        bounds: DeterministicProposer,
        plans: int = 1,
        *,
        max_pages: int = 6,
        page_chars: int = 8000,
        raw: bool = True,
        bus: EventSink | None = None,
        run_id: str = "proposal",
        max_prompt_chars: int = MAX_PROMPT_CHARS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """Ask ``llm`` for so many ``plans`` within ``bounds``, which also propose without a reply.

        The ``max_pages`` newest pages below ``knowledge_root``, which may be missing, go into the
        prompt, ``page_chars`` of each at most, and with ``raw`` what the evaluation itself wrote.
        ``bus`` gets ``orchestrator/knowledge_used`` of ``run_id``, and ``proposal_fallback``, or
        ``curation/*`` of several plans. A prompt has at most ``max_prompt_chars`` characters, at
        least `MIN_PROMPT_CHARS`.

        Raises:
            ConfigurationError: A number is out of range.
        """
        if plans < 1:
            raise ConfigurationError(
                f"candidates: expected at least 1 plan, got {plans}; set curation.enabled "
                "to false for none."
            )
        if max_prompt_chars < MIN_PROMPT_CHARS:
            raise ConfigurationError(
                f"max_prompt_chars: expected at least {MIN_PROMPT_CHARS}, got {max_prompt_chars}."
            )
        self.llm = llm
        self.root: Path = Path(knowledge_root)
        self.bounds = bounds
        self.plans = plans
        self.max_pages = max_pages
        self.page_chars = page_chars
        self.raw = raw
        self.bus = bus
        self.run_id = run_id
        self.max_prompt_chars = max_prompt_chars
        self.max_tokens = max_tokens

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the model's best plan within the bounds, or the schedule's proposal."""
        if isinstance(self.llm, NullLLM):
            return self.bounds.propose(cycle, last_report)
        talk = Talk(self, cycle, last_report)
        try:
            plans = self._listed(talk, cycle, last_report)
        except InputError as error:
            problem = talk.problem(error)
            _logger.warning("proposal: falling back to the schedule: %s", problem)
            if self.plans == 1:
                talk.emit("orchestrator", "proposal_fallback", {"error": problem})
            else:
                talk.emit(_STAGE, "curation_fallback", {"error": problem})
            return self.bounds.propose(cycle, last_report)
        return plans[0] if self.plans == 1 else self._best(talk, cycle, last_report, plans)

    def _listed(self, talk: Talk, cycle: int, report: EvalReport | None) -> list[Proposal]:
        """Return the plans of a reply, at least one, or raise `InputError`."""
        if self.plans == 1:
            with asking(cycle, "propose"):
                plan = talk.answer(
                    "Plan the cycle.",
                    SYSTEM,
                    form=Plan,
                    wanted="the JSON object",
                    read=strict_plan,
                )
            return [bounded_proposal(plan, self.bounds, cycle, report)]

        def read(reply: str) -> list[Proposal]:
            for document in json_values(reply, "[]"):
                found = (lenient_proposal(one, self.bounds, cycle, report) for one in document)
                if plans := [plan for plan in found if plan is not None]:
                    return plans[: self.plans]
            raise InputError("expected plans with a known action, got none")

        with asking(cycle, "curate_plans"):
            return talk.answer(
                f"List {self.plans} different plans.",
                _PLANS_SYSTEM,
                form=_Plans,
                wanted=f"a JSON array of {self.plans} plans, each {_PLAN}",
                read=read,
            )

    def _best(
        self, talk: Talk, cycle: int, report: EvalReport | None, plans: list[Proposal]
    ) -> Proposal:
        """Return the plan with the highest score, refined; the first of equal ones."""
        notes = [plan.notes[:_NOTE_CHARS] for plan in plans]
        talk.emit(_STAGE, "curation_candidates", {"count": len(plans), "notes": notes})
        listed, best = [plan.model_dump(mode="json") for plan in plans], 0
        if len(plans) > 1:
            request = "Score every plan, numbered from 0."
            with asking(cycle, "curate_scores"):
                reply = talk.ask_about("plans", listed, request, _SCORE_SYSTEM, _Scores)
            scores = _scores(reply, len(plans))
            best = max(scores, key=lambda index: (scores[index], -index)) if scores else 0
            told = [scores.get(index) for index in range(len(plans))]
            talk.emit(_STAGE, "curation_scored", {"winner": best, "scores": told})
        with asking(cycle, "curate_refine"):
            reply = talk.ask_about("plan", listed[best], "Refine the plan.", _REFINE_SYSTEM, Plan)
        refined = (
            lenient_proposal(one, self.bounds, cycle, report)
            for one in _values_or_none(reply, "{}")
        )
        final = next(filter(None, refined), plans[best])
        talk.emit(_STAGE, "curation_final", {"proposal": final.model_dump(mode="json")})
        return final


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
        bus: EventSink | None = None,
        max_tokens: int = 8192,
        **more: Any,
    ) -> None:
        """Choose from ``candidates`` within ``fallback`` and the cap of ``data_cfg``.

        ``more`` as `PlanProposer`.
        """
        caps = [c for c in (fallback.max_episodes, data_cfg.max_episodes) if c is not None]
        bounds = copy(fallback)
        bounds.max_episodes = min(caps, default=None)
        more = {"run_id": _STAGE, "max_pages": 4, "page_chars": 2000, "raw": False} | more
        super().__init__(
            llm, knowledge_root, bounds, candidates, bus=bus, max_tokens=max_tokens, **more
        )


def _values_or_none(reply: str, brackets: Literal["{}", "[]"]) -> list[Any]:
    try:
        return json_values(reply, brackets)
    except InputError:
        return []


def _scores(reply: str, count: int) -> dict[int, float]:
    """Return the usable scores by index: known plans, finite numbers in [0, 10]."""
    for document in _values_or_none(reply, "[]"):
        scores: dict[int, float] = {}
        for entry in document:
            match entry:
                case {"index": int(index), "score": int(score) | float(score)} if (
                    not isinstance(index, bool)
                    and not isinstance(score, bool)
                    and 0 <= index < count
                    and 0.0 <= score <= _MAX_SCORE  # False for NaN, too
                ):
                    scores.setdefault(index, float(score))
                case _:
                    continue
        if scores:
            return scores
    return {}


__all__ = ["CuratedProposer", "DeterministicProposer", "LLMProposer", "PlanProposer", "Proposer"]
