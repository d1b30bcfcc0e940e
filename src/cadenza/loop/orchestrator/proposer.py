"""Proposers: what the next cycle trains on. Ask one by ``propose(cycle, last_report)``.

`LLMProposer` asks a language model once, with one more call to repair a malformed reply;
`CuratedProposer` lets it list several plans, score them and refine the best.

Prompts:  facts first, then pages as untrusted data, within a budget.
Promise:  whatever a reply says, the dataset is the seed dataset, the count one that the schedule
          allows, the focus names tasks of the last report, and the notes are one printable line.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import MAX_NOTES, EvalReport, Proposal
from cadenza.loop.events import Event, EventSink
from cadenza.loop.knowledge.pages import PageFile, newest_pages
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model reads; the pages in it, of which it reads at least the beginning."""

    text: str
    pages: tuple[PageFile, ...]
    page_chars: int

    def about(self) -> str:
        """Return which pages a reply could draw on, as JSON."""
        listed = [{"path": page.path, "sha256": page.sha256} for page in self.pages]
        return json.dumps({"pages": listed, "chars": self.page_chars})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """What a prompt is made of; pages are cut first to fit it into a budget, then the report.

    Attributes:
        facts: What the model must know: cycle, dataset, bounds.
        report: Evaluation of the last cycle; None before the first.
        pages: Pages, most important first.
        raw: Whether to show what the evaluation itself wrote, if that fits.
        max_chars: Longest prompt, characters, at least `MIN_PROMPT_CHARS`.
        page_chars: Most characters of one page.
    """

    facts: str
    report: EvalReport | None
    pages: Sequence[PageFile]
    raw: bool
    max_chars: int
    page_chars: int

    def __post_init__(self) -> None:
        if self.max_chars < MIN_PROMPT_CHARS:
            raise ConfigurationError(
                f"max_prompt_chars: expected at least {MIN_PROMPT_CHARS}, got {self.max_chars}."
            )

    def build(self, request: str) -> Prompt:
        """Return a prompt of at most ``max_chars`` characters that ends with ``request``."""
        facts = shortened(self.facts, MIN_PROMPT_CHARS // 4)
        request = shortened(request, self.max_chars // 2)
        room = self.max_chars - len(facts) - len(request) - len(warning(_ANY_MARK)) - _OVERHEAD
        report_text = _report_json(self.report, raw=self.raw, chars=room)
        longest_path = max((len(page.path) for page in self.pages), default=0)
        texts = fit(
            [shortened(page.text, self.page_chars) for page in self.pages],
            room - len(report_text),
            _OVERHEAD + _MAX_ESCAPE * longest_path,
        )
        used = tuple(self.pages[: len(texts)])
        mark = data_mark([report_text, *texts, *(page.path for page in used)])
        blocks = [fenced("report", "last evaluation", report_text, mark)]
        blocks += [fenced("page", p.path, t, mark) for p, t in zip(used, texts, strict=True)]
        text = "\n\n".join([facts, warning(mark), *blocks, request])
        return Prompt(storable(text), used, sum(len(t) for t in texts))

    def build_about(self, kind: str, text: str, request: str) -> Prompt:
        """Return a prompt that ends with a text of the model's own, as untrusted, and a request."""
        shown = shortened(text, self.max_chars // 2 - _REQUEST_CHARS)
        mark = data_mark([shown])
        return self.build(
            "\n\n".join([warning(mark), fenced(kind, "proposed before", shown, mark), request])
        )

    def repair(self, reply: str, problem: str, wanted: str) -> Prompt:
        """Return the prompt of a repair turn: the reply, and what is wrong with it, at its end."""
        shown, wrong = shortened(reply, _REPAIR_CHARS), shortened(problem, _REPAIR_CHARS)
        mark = data_mark([shown, wrong])
        request = "\n\n".join(
            [
                warning(mark),
                fenced("reply", "your last reply", shown, mark),
                fenced("problem", "what is wrong with it", wrong, mark),
                f"Reply again with only {wanted}.",
            ]
        )
        return self.build(request)


def _report_json(report: EvalReport | None, *, raw: bool, chars: int) -> str:
    """Return a report as JSON, without its larger parts or cut if it is too long."""
    if report is None:
        return "none"
    always = {"outcomes"}
    texts = [
        json.dumps(
            report.model_dump(mode="json", exclude=left_out), sort_keys=True, ensure_ascii=False
        )
        for left_out in ([always] if raw else []) + [always | {"raw"}]
    ]
    return next((text for text in texts if len(text) <= chars), shortened(texts[-1], chars))


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
        self._llm = llm
        self._bus = bus
        self._run_id = run_id
        self._cycle = cycle
        self._max_tokens = max_tokens
        self._told: set[str] | None = None
        self._error: str | None = None

    def ask(self, prompt: Prompt, system: str, form: type[BaseModel]) -> str:
        """Return the reply, as ``form`` if the service can; the empty text if there is none."""
        place = current_place()
        place.about, place.error, place.schema = prompt.about(), None, reply_schema(form)
        reply = ask_safely(self._llm, prompt.text, system=system, max_tokens=self._max_tokens)
        answered = current_place()  # a recorded reply changed it
        self._error = None if reply else (answered.error or _NO_REPLY)
        if reply and answered.about is not None:
            self._tell_pages(json.loads(answered.about))
        return reply

    def answer(
        self,
        source: PromptSource,
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
        reply = self.ask(source.build(request), system, form)
        if not reply:
            raise InputError("no reply")
        try:
            return read(reply)
        except InputError as error:
            again = source.repair(reply, str(error), wanted)
        return read(self.ask(again, system, form))

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


_logger = logging.getLogger(__name__)

SYSTEM: Final = (
    "You plan the next training cycle of a robot policy. Reply with only a JSON object "
    '{"action": "reuse_seed" or "recollect_failing", "dataset": the seed dataset, '
    '"num_episodes": whole number or null, "notes": one sentence, "focus": names of failing '
    "tasks}, and learning_rate, steps, batch_size or rung where they may be set. Its JSON schema: "
    + json.dumps(Plan.model_json_schema(), sort_keys=True)
)


class _ModelProposer:
    """What proposers share that ask a model, within the bounds of a schedule."""

    #: Pages in the prompt, most characters of each, and whether the evaluation's own text is, too.
    _pages: int = 4
    _page_chars: ClassVar = 2000
    _raw: ClassVar = False

    def __init__(
        self,
        llm: LLMClient,
        knowledge_root: Path,
        bounds: DeterministicProposer,
        bus: EventSink | None,
        run_id: str,
        max_prompt_chars: int,
        max_tokens: int,
    ) -> None:
        self._llm = llm
        self._root = Path(knowledge_root)
        self._bounds = bounds
        self._bus = bus
        self._run_id = run_id
        self._max_chars = max_prompt_chars
        self._max_tokens = max_tokens

    def _talk(self, cycle: int) -> Talk:
        return Talk(self._llm, self._bus, self._run_id, cycle, self._max_tokens)

    def _source(self, cycle: int, report: EvalReport | None) -> PromptSource:
        bounds, most = self._bounds, self._bounds.most_episodes(cycle)
        facts = (
            f"Cycle: {cycle}",
            f"Seed dataset, the only one allowed: {json.dumps(bounds.seed_dataset)}",
            f"Episodes that the schedule suggests: {bounds.scheduled_episodes(cycle) or 'all'}",
            f"Most episodes: {'all there are, and no fewer' if most is None else most}",
            bounds.told_moves(),
            "The last evaluation and pages about earlier runs follow.",
        )
        return PromptSource(
            facts="\n".join(facts),
            report=report,
            pages=newest_pages(self._root, self._pages),
            raw=self._raw,
            max_chars=self._max_chars,
            page_chars=self._page_chars,
        )


class LLMProposer(_ModelProposer):
    """Asks a language model, and falls back to the schedule; the bounds hold either way."""

    _page_chars: ClassVar = 8000
    _raw: ClassVar = True

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
        """Propose with ``llm`` within the bounds of ``fallback``, which also proposes without it.

        The ``max_pages`` newest pages below ``knowledge_root``, which may be missing, go into the
        prompt of at most ``max_prompt_chars`` characters, at least `MIN_PROMPT_CHARS`. ``bus`` gets
        the events ``orchestrator/knowledge_used`` and ``proposal_fallback`` of ``run_id``.
        """
        super().__init__(llm, knowledge_root, fallback, bus, run_id, max_prompt_chars, max_tokens)
        self._pages = max_pages

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the model's proposal within the bounds, or the schedule's."""
        if isinstance(self._llm, NullLLM):
            return self._bounds.propose(cycle, last_report)
        talk = self._talk(cycle)
        try:
            with asking(cycle, "propose"):
                plan = talk.answer(
                    self._source(cycle, last_report),
                    "Plan the cycle.",
                    SYSTEM,
                    form=Plan,
                    wanted="the JSON object",
                    read=strict_plan,
                )
        except InputError as error:
            problem = talk.problem(error)
            _logger.warning("proposal: falling back to the schedule: %s", problem)
            talk.emit("orchestrator", "proposal_fallback", {"error": problem})
            return self._bounds.propose(cycle, last_report)
        return bounded_proposal(plan, self._bounds, cycle, last_report)


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


class CuratedProposer(_ModelProposer):
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
        """Propose with ``llm`` within the bounds of ``fallback`` and the cap of ``data_cfg``.

        Of the ``candidates`` plans asked for, >= 1, the best is refined; other arguments as
        `LLMProposer`. The events are ``curation/*`` and ``orchestrator/knowledge_used``.

        Raises:
            ConfigurationError: ``candidates`` is out of range.
        """
        if candidates < 1:
            raise ConfigurationError(
                f"candidates: expected at least 1 plan, got {candidates}; set curation.enabled "
                "to false for none."
            )
        caps = [c for c in (fallback.max_episodes, data_cfg.max_episodes) if c is not None]
        bounds = DeterministicProposer(
            fallback.seed_dataset,
            fallback.initial_episodes,
            fallback.growth,
            min(caps, default=None),
            fallback.failing_threshold,
            moves=fallback.moves,
        )
        super().__init__(llm, knowledge_root, bounds, bus, run_id, max_prompt_chars, max_tokens)
        self._candidates = candidates

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the refined winner, or the schedule's proposal."""
        source = self._source(cycle, last_report)
        talk = self._talk(cycle)
        try:
            with asking(cycle, "curate_plans"):
                plans = talk.answer(
                    source,
                    f"List {self._candidates} different plans.",
                    _PLAN_SYSTEM,
                    form=_Plans,
                    wanted=f"a JSON array of {self._candidates} plans, each {_PLAN}",
                    read=lambda reply: self._usable(cycle, last_report, reply),
                )
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

    def _usable(self, cycle: int, report: EvalReport | None, reply: str) -> list[Proposal]:
        """Return the usable plans of a reply, or raise `InputError` without one."""
        for document in json_values(reply, "[]"):
            listed = [lenient_proposal(d, self._bounds, cycle, report) for d in document]
            plans = [plan for plan in listed if plan is not None][: self._candidates]
            if plans:
                return plans
        raise InputError("expected plans with a known action, got none")

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
            documents = json_values(talk.ask(prompt, _REFINE_SYSTEM, Plan), "{}")
        except InputError:
            return winner
        refined = (lenient_proposal(one, self._bounds, cycle, report) for one in documents)
        return next(filter(None, refined), winner)


def _best(talk: Talk, plans: list[Proposal], source: PromptSource) -> int:
    """Return the index of the plan with the highest score; the first without scores."""
    listed = json.dumps([plan.model_dump(mode="json") for plan in plans])
    prompt = source.build_about("plans", listed, "Score every plan, numbered from 0.")
    scores = _scores(talk.ask(prompt, _SCORE_SYSTEM, _Scores), len(plans))
    winner = max(scores, key=lambda index: (scores[index], -index)) if scores else 0
    told = [scores.get(i) for i in range(len(plans))]
    talk.emit(_STAGE, "curation_scored", {"winner": winner, "scores": told})
    return winner


def _scores(reply: str, count: int) -> dict[int, float]:
    """Return the usable scores by index: known plans, finite numbers in [0, 10]."""
    try:
        documents = json_values(reply, "[]")
    except InputError:
        return {}
    usable = (_scores_in(document, count) for document in documents)
    return next(filter(None, usable), dict[int, float]())


def _scores_in(document: list[Any], count: int) -> dict[int, float]:
    scores: dict[int, float] = {}
    for entry in document:
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


__all__ = ["CuratedProposer", "DeterministicProposer", "LLMProposer", "Proposer"]
