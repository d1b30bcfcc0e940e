"""Results that some tool has written, as rows: one episode each, whoever counted it.

Recognized by content:
    LeRobot       ``eval_info.json`` with ``per_task`` or, from one environment, ``per_episode``
    robo-evals    JSON with ``schema: robo-evals/report/1``
    robostats     JSON Lines of ``policy_id, task_id, scenario_id, success``
    fieldtrial    CSV of ``fieldtrial export``
    orbit-eval    CSV of ``orbit log``
    any CSV       columns named as the fields of `Row`, or mapped to them
Starts:   only where the file proves them: a seed, a scenario, a condition and its replicate.
          LeRobot writes none with ``per_task``.
Checked:  counts and percentages beside episodes must be theirs.
Refused:  `ConfigurationError`, one sentence with file and place; nothing is dropped unsaid.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.strict_json import parse_json_object

#: Largest file that is read, bytes.
MAX_BYTES: Final = 512 << 20
#: Status of an episode that was played to its end.
COMPLETED: Final = "completed"
#: Words for it, and for an episode without outcome.
_STATUSES: Final = {
    COMPLETED: (COMPLETED, "complete", "done", "finished"),
    "abandoned": ("abandoned", "aborted", "invalid", "skipped", "void", "voided"),
}
#: What `Row.training_seed` may hold.
TRAINING_SEED: Final = "training seed"
EVALUATION_SEED: Final = "evaluation seed"
_LEROBOT_FILE: Final = "eval_info.json"
_BUNDLE_FILE: Final = "bundle.json"
#: Largest difference of a stated percentage from that of the episodes, points.
_PERCENT_TOLERANCE: Final = 0.1
#: Most characters of a wrong value that a message repeats.
_SHOWN: Final = 200
#: Two characters that stand for an arm while a fieldtrial study is blinded.
_BLIND_CODE: Final = re.compile(r"[ACDEFHJKMNPRTUVWXY][3479]")
_OUTCOMES: Final = {"true": True, "1": True, "false": False, "0": False}


class Row(NamedTuple):
    """One episode.

    Attributes:
        arm: Policy that played, as the file calls it.
        task: Task.
        start: Initial state; equal starts of a task are one state. None without proof.
        training_seed: Training run, block of trials (robot, day) or evaluation seed: what
            episodes share luck in.
        success: Outcome; None if not completed, or not kept.
        score: Number in place of an outcome.
        status: `COMPLETED` or abandoned: there is no outcome.
        source: File.
        line: Place in the file, for people.
    """

    arm: str = "all"
    task: str = "all"
    start: str | None = None
    training_seed: str | None = None
    success: bool | None = None
    score: float | None = None
    status: str = COMPLETED
    source: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Rows of one file or folder.

    Attributes:
        kind: Format; starts of two formats are never the same state.
        rows: Episodes, in order.
        facts: What it states about environment, limits and versions; None is not stated.
        drawn_starts: Whether initial states were drawn, not chosen by hand.
        shared_starts: Whether equal starts of different tasks are one state.
        score: What `Row.score` holds.
        clusters: What `Row.training_seed` holds.
        headline: Condition of the overall verdict, "headline / ..." among tasks; None for all.
    """

    kind: str
    rows: Sequence[Row]
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    drawn_starts: bool = False
    shared_starts: bool = False
    score: str = "score"
    clusters: str = TRAINING_SEED
    headline: str | None = None


#: Columns by field of `Row`; several are joined.
_Layout: TypeAlias = Mapping[str, tuple[str, ...]]


def _layout(text: str) -> _Layout:
    pairs = (pair.split("=") for pair in text.split())
    return {name: tuple(columns.split("+")) for name, columns in pairs}


_LEROBOT: Final = _layout("task=task start=seed success=success score=max_reward")
_ROBO_EVALS: Final = _layout("task=task start=seed success=success")
_ROBOSTATS: Final = _layout("arm=policy_id task=task_id start=scenario_id success=success")
_FIELDTRIAL: Final = _layout("arm=arm start=condition+replicate success=success status=status")
_ORBIT: Final = _layout("arm=version task=skill training_seed=block success=success")
_MAPPED: Final = Row._fields[:-2]
#: An object of a JSON file, and its place.
_Placed: TypeAlias = tuple[str, dict[str, Any]]


def read_results(path: Path, columns: Mapping[str, str] | None = None) -> Results:
    """Return the rows of ``path``; ``columns`` maps fields of `Row` to columns of a CSV.

    Raises:
        ConfigurationError: The file is missing, too large, of no known format, or something in it
            makes no sense.
    """
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise refusal(source, f"at most {MAX_BYTES >> 20} MB", "more")
        text = data.decode("utf-8-sig")
        is_json = text.lstrip()[:1] in ("{", "[")
        results = _json(text, source) if is_json else _csv(text, source, columns or {})
    except OSError as error:
        raise refusal(source, "results", f"'{error.strerror}'; check the path") from error
    except UnicodeDecodeError as error:
        raise refusal(source, "UTF-8 text", f"byte {error.start} that is none") from error
    except IntegrityError as error:
        raise ConfigurationError(" ".join(str(error).split())) from error
    if not results.rows:
        raise refusal(source, "at least one episode", "none")
    return results


def refusal(where: str, expected: str, got: str) -> ConfigurationError:
    """Return the one sentence that says what is wrong with ``where``."""
    shown = got.rstrip(".") if len(got) <= _SHOWN else f"{got[:_SHOWN]} and so on"
    return ConfigurationError(f"{where}: expected {expected}, got {shown}.")


def load_arm(
    text: str, columns: Mapping[str, str], read_bundle: Callable[[Path], Results]
) -> list[Results]:
    """Return what ``text`` names: one `Results`, or one per training seed.

    It is a file, a bundle, a folder with ``eval_info.json``, or one with such folders ``seed_0``,
    ``seed_1`` and so on. ``FILE#ARM`` is one of the arms of a file.

    Raises:
        ConfigurationError: There is no such arm, or more than one.
    """
    name, _, wanted = (
        (text, "", "") if "#" not in text or Path(text).exists() else (text.rpartition("#"))
    )
    folders = sorted(Path(name).glob("seed_*"))
    parts: list[Results] = []
    for path in folders or [Path(name)]:
        file = path / _LEROBOT_FILE if path.is_dir() else path
        if (path / _BUNDLE_FILE).exists():
            found = read_bundle(path)
        elif path.is_dir() and not file.exists():
            raise _no_results(path)
        else:
            found = read_results(file, columns)
        arms = list(dict.fromkeys(row.arm for row in found.rows))
        if wanted not in arms if wanted else len(arms) > 1:
            raise refusal(text, f"one arm of {path}, named as {name}#{arms[0]}", ", ".join(arms))
        rows = [row for row in found.rows if row.arm == wanted or not wanted]
        if folders:
            rows = [row._replace(training_seed=path.name) for row in rows]
            found = replace(found, clusters=TRAINING_SEED)
        parts.append(replace(found, rows=rows))
    return parts


def _no_results(folder: Path) -> ConfigurationError:
    """Return what is wrong with a folder without results, and where below it some are."""
    places = [f"{up}/{file}" for up in ("*", "*/*") for file in (_BUNDLE_FILE, _LEROBOT_FILE)]
    inside = sorted({f"{path.parent}" for place in places for path in folder.glob(place)})
    wanted = f"{_BUNDLE_FILE}, {_LEROBOT_FILE} or folders seed_0/ seed_1/ .. with one"
    got = f"none; name one of {', '.join(inside)}" if inside else "none"
    return refusal(f"{folder}", wanted, got)


def _json(text: str, source: str) -> Results:
    first, _, rest = text.partition("\n")
    if '"policy_id"' in first and rest.lstrip()[:1] in ("", "{"):
        return _json_lines(text, source)
    document = parse_json_object(text.encode(), source=source, finite=False)
    if document.get("schema") == "robo-evals/report/1":
        return _robo_evals(document, source)
    if "per_task" in document:
        return _lerobot(document, source)
    if "per_episode" in document:
        return _lerobot_single(document, source)
    known = "per_task or per_episode, a robo-evals report or lines with policy_id"
    raise refusal(source, known, f"an object with {', '.join(sorted(document))}")


def _json_lines(text: str, source: str) -> Results:
    numbered = enumerate(text.encode().split(b"\n"), start=1)
    records = [
        (f"line {number}", parse_json_object(line, source=f"{source} line {number}"))
        for number, line in numbered
        if line.strip()
    ]
    facts = {"scenarios": records[0][1].get("scenario_spec")}  # what makes two of them the same
    return replace(_objects("robostats JSONL", _ROBOSTATS, records, source), facts=facts)


def _csv(text: str, source: str, mapping: Mapping[str, str]) -> Results:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    records: list[list[str]] = []
    places: list[str] = []
    try:
        header = next(reader, list[str]())
        for record in filter(None, reader):
            places.append(f"line {reader.line_num}")
            if len(record) != len(header):
                got = f"{len(record)}; the file may be truncated"
                raise refusal(f"{source} {places[-1]}", f"{len(header)} columns", got)
            records.append(record)
    except csv.Error as error:
        raise refusal(f"{source} line {reader.line_num}", "CSV", str(error)) from error
    if len(set(header)) != len(header) or not header:
        raise refusal(
            f"{source} line 1", "names of columns, each once", ", ".join(header) or "none"
        )
    kind, layout = "CSV", _own_layout(header, mapping, source)
    if not mapping and {"trial_id", "status", *_columns(_FIELDTRIAL)} <= set(header):
        kind, layout = "fieldtrial CSV", _FIELDTRIAL
    elif not mapping and {"episode", *_columns(_ORBIT)} <= set(header):
        kind, layout = "orbit CSV", _ORBIT
    if not {"success", "score"} & layout.keys():
        wanted = "a column success or score; name yours with --map success=COLUMN"
        raise refusal(f"{source} line 1", wanted, ", ".join(header))
    columns: dict[str, list[Any]] = {
        name: [record[i] for record in records] for i, name in enumerate(header)
    }
    codes = sorted(set(columns["arm"])) if layout is _FIELDTRIAL else []
    if codes and all(map(_BLIND_CODE.fullmatch, codes)):
        raise refusal(
            source, "arms", f"blind codes {', '.join(codes)}; run `fieldtrial unblind` first"
        )
    for name in layout.get("success", ()):
        columns[name] = [_OUTCOMES.get(x.strip().lower(), x) for x in columns[name]]
    return _table(kind, layout, columns, places, source)


def _columns(layout: _Layout) -> set[str]:
    return {name for names in layout.values() for name in names}


def _own_layout(header: Sequence[str], mapping: Mapping[str, str], source: str) -> _Layout:
    """Return the columns that are named as fields, or mapped to them."""
    for name, column in mapping.items():
        if name not in _MAPPED or column not in header:
            wanted = f"one of {', '.join(_MAPPED)} = a column of {', '.join(header)}"
            raise refusal(f"{source} --map", wanted, f"{name}={column}")
    named = {name: mapping.get(name, name) for name in _MAPPED}
    return {name: (column,) for name, column in named.items() if column in header}


def _objects(kind: str, layout: _Layout, records: Sequence[_Placed], source: str) -> Results:
    columns = {name: [entry.get(name) for _, entry in records] for name in _columns(layout)}
    return _table(kind, layout, columns, [place for place, _ in records], source)


def _table(
    kind: str,
    layout: _Layout,
    columns: Mapping[str, Sequence[Any]],
    places: Sequence[str],
    source: str,
) -> Results:
    """Return the rows of a table, column by column."""

    def texts(name: str) -> Sequence[str | None]:
        default = Row._field_defaults[name]
        used = [["" if x is None else str(x) for x in columns[c]] for c in layout.get(name, ())]
        empty = None if default is None else ""
        joined = ["/".join(parts) or empty for parts in zip(*used, strict=True)]
        return joined if used else [default] * len(places)

    statuses = [
        _status(word, f"{source} {place}")
        for word, place in zip(texts("status"), places, strict=True)
    ]

    def parsed(name: str, parse: Callable[[object, str], Any]) -> Sequence[Any]:
        if name not in layout:
            return [None] * len(places)
        return [
            parse(value, f"{source} {place}") if status == COMPLETED else None
            for value, status, place in zip(columns[layout[name][0]], statuses, places, strict=True)
        ]

    parsers = {"success": _outcome, "score": _score}
    fields = [parsed(n, parsers[n]) if n in parsers else texts(n) for n in _MAPPED[:-1]]
    rows = map(Row._make, zip(*fields, statuses, [source] * len(places), places, strict=True))
    return Results(
        kind=kind,
        rows=[*rows],
        drawn_starts=layout in (_LEROBOT, _ROBO_EVALS),  # simulators draw them
        score="".join(layout.get("score", ())),
        clusters="block" if layout is _ORBIT else TRAINING_SEED,
    )


def _status(word: str | None, where: str) -> str:
    for status, words in _STATUSES.items():
        if f"{word}".strip().lower() in words:
            return status
    wanted = " or ".join(f"{status} ({', '.join(words)})" for status, words in _STATUSES.items())
    raise refusal(where, f"status {wanted}", json.dumps(word or ""))


def _outcome(value: object, where: str) -> bool:
    if value == "":
        wanted = "success true, false, 1 or 0; no outcome is a column status with abandoned"
        raise refusal(where, wanted, "a blank")
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise refusal(where, "success true, false, 1 or 0", json.dumps(value))
    return bool(value)


def _number(value: object, where: str, *, finite: bool = True) -> float:
    """Return a number, also from text."""
    try:
        number = math.nan if isinstance(value, bool) else float(cast("str", value))
    except (TypeError, ValueError, OverflowError):
        finite, number = True, math.nan
    if finite and not math.isfinite(number):
        raise refusal(where, "a finite number", json.dumps(value))
    return number


def _score(value: object, where: str) -> float | None:
    """Return a score, None for none; whether it is finite matters where it is judged."""
    return None if value in (None, "") else _number(value, where, finite=False)


def _member(value: object, key: str, kind: type, where: str) -> Any:
    """Return ``value[key]``, which must be of ``kind`` itself: a flag is no whole number."""
    found = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    if type(found) is not kind:
        raise refusal(where, f"{key} of type {kind.__name__}", json.dumps(found))
    return found


def _optional(value: Mapping[str, Any], key: str, where: str, kind: type = dict) -> Any:
    return _member(value, key, kind, where) if key in value else kind()


def _entries(value: object, key: str, where: str, at: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of the list ``value[key]``, each with its place."""
    found = [(f"{at}{key}[{i}]", e) for i, e in enumerate(_member(value, key, list, where))]
    for place, entry in found:
        if not isinstance(entry, dict):
            raise refusal(f"{where} {place}", "an object", json.dumps(entry))
    return found


def _lerobot(document: Mapping[str, Any], source: str) -> Results:
    records: dict[str, list[_Placed]] = {}
    groups: dict[str, list[bool]] = {}
    for at, entry in _entries(document, "per_task", source):
        where = f"{source} {at}"
        group = _member(entry, "task_group", str, where)
        task = f"{group}_{_member(entry, 'task_id', int, where)}"
        if task in records:
            raise refusal(where, "every task once", task)
        metrics = _member(entry, "metrics", dict, where)
        given = _member(metrics, "successes", list, where)
        scores: list[Any] = _optional(metrics, "max_rewards", where, list) or [None] * len(given)
        if len(scores) != len(given):
            raise refusal(where, f"{len(given)} max_rewards", f"{len(scores)}")
        outcomes = [_outcome(x, f"{where}.successes[{i}]") for i, x in enumerate(given)]
        groups.setdefault(group, []).extend(outcomes)
        _check_counts(entry, outcomes, where)
        _check_counts(metrics, outcomes, where)
        records[task] = [
            (f"{at}.successes[{i}]", {"task": task, "success": success, "max_reward": score})
            for i, (success, score) in enumerate(zip(outcomes, scores, strict=True))
        ]
    stated = _optional(document, "per_group", source)
    for group in stated:
        where = f"{source} per_group.{group}"
        _check_counts(_member(stated, group, dict, where), groups.get(group, []), where)
    every = [outcome for outcomes in groups.values() for outcome in outcomes]
    _check_counts(_optional(document, "overall", source), every, f"{source} overall")
    return _objects("LeRobot", _LEROBOT, [one for task in records.values() for one in task], source)


def _lerobot_single(document: Mapping[str, Any], source: str) -> Results:
    records = _entries(document, "per_episode", source)
    results = _objects("LeRobot", _LEROBOT, records, source)
    outcomes = [row.success is True for row in results.rows]
    _check_counts(_optional(document, "aggregated", source), outcomes, f"{source} aggregated")
    return results


def _robo_evals(document: Mapping[str, Any], source: str) -> Results:
    records: list[_Placed] = []
    for place, entry in _entries(document, "tasks", source):
        where = f"{source} {place}"
        episodes = _entries(entry, "episode_results", source, f"{place}.")
        outcomes = [_outcome(one.get("success"), f"{source} {at}") for at, one in episodes]
        _check_counts(entry, outcomes, where, ("episodes", "successes"))
        records += episodes
    config, versions = (_optional(document, key, source) for key in ("config", "environment"))
    facts = {key: config.get(key) for key in ("max_steps", "randomization", "image_obs")}
    facts |= {key: versions.get(key) for key in ("robo_evals", "mujoco")}
    return replace(_objects("robo-evals", _ROBO_EVALS, records, source), facts=facts)


def _check_counts(
    stated: Mapping[str, Any],
    outcomes: Sequence[bool],
    where: str,
    keys: tuple[str, str] = ("n_episodes", "n_success"),
) -> None:
    """Refuse counts or a percentage that are not those of the episodes."""
    for key, count in zip(keys, (len(outcomes), sum(outcomes)), strict=True):
        if stated.get(key, count) != count:
            raise refusal(where, f"{key} {count}, as its episodes", json.dumps(stated[key]))
    percent = 100.0 * sum(outcomes) / max(len(outcomes), 1)
    shown = _number(stated.get("pc_success", percent), f"{where}.pc_success")
    if abs(shown - percent) > _PERCENT_TOLERANCE:
        raise refusal(where, f"pc_success {percent:.1f}, as its episodes", f"{shown}")
