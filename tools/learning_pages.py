"""Write what the code knows of the learning algorithms into `docs/reference/learning`.

    python -m tools.learning_pages

What an algorithm takes is found by making agents; its settings stand in its configuration class,
its scores in the README of `cadenza.learn.agents`. A page holds what is written between
``<!-- learning: BLOCK NAME -->`` and ``<!-- learning: end -->``. A test compares pages and code.
Run from the repository root.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import atomic_write_text
from cadenza.learn.agents.team import TeamAgent

README = Path("src/cadenza/learn/agents/README.md")
PAGES = Path("docs/reference/learning")
#: Every algorithm, and its section of README.
ALGORITHMS = {
    "SAC": "soft-actor-critic",
    "TD3": "td3",
    "HLGauss": "hl-gauss",
    "MBPO": "model-based-learning",
    "DQN": "deep-q-learning",
    "PPO": "ppo",
    "GRPO": "grpo",
    "LIAM": "liam",
    "E3T": "e3t",
    "UPD": "upd",
    "CEC": "cec",
    "MAPPO": "mappo",
    "HAPPO": "happo-for-a-team",
    "HATD3": "hatd3",
    "DAgger": "dagger",
    "BC": "behaviour-cloning",
}
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
GOALS = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), VECTOR))
CONTINUOUS, DISCRETE = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)
#: Kinds of actions, wider ones below, each with an example that an algorithm takes or refuses.
ACTIONS = (
    {
        "continuous with bounds": CONTINUOUS,
        "continuous": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    },
    {"discrete": DISCRETE},
    {
        "several choices (at most 4 096)": spaces.MultiDiscrete([2, 3]),
        "several choices": spaces.MultiDiscrete([11] * 6),
    },
)
#: What an algorithm may have: where it is told, and the settings that switch it on.
ABILITIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Recurrent": ("memory", {"memory": "gru"}),
    "Masks": ("choices-and-masks", {"action_masks": True}),
    "Goals": ("goals", {"hindsight": 4}),
    "Scaling": ("scales", {"normalize_observations": True, "normalize_rewards": True}),
    "Replay": ("replay", {"n_step": 3, "priority_exponent": 0.6}),
}
#: What one agent sees, and what a team sees.
OBSERVATIONS = (
    "arrays, images, choices, and dicts and tuples of these",
    "flattened: arrays, choices, and dicts and tuples of these",
)
HOW_TO = "../../how-to"
#: Kinds of actions in the narrow column of the index, which explains these words.
BRIEFLY = {
    "continuous with bounds": "bounded",
    "several choices (at most 4 096)": "some choices",
    "several choices": "choices",
}
_BLOCK = re.compile(
    r"(<!-- learning: (?!end)(\w+)(?: (\w+))? -->\n).*?(<!-- learning: end -->)", re.DOTALL
)
_LIMITS = (("gt", "ge", "> ", ">= "), ("lt", "le", "< ", "<= "))


class _Seat(gymnasium.Env[Any, Any]):
    """An environment of these spaces, whose episodes never end, beside a partner like itself."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions
        self.partner_observation_space, self.partner_action_space = VECTOR, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        return self.observation_space.sample(), 0.0, False, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> float:
        del achieved_goal, desired_goal, info
        return 0.0


class _Seats:
    """Two robots of such an environment, as PettingZoo has them."""

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self.possible_agents = self.agents = ["one", "two"]
        self.observation_space, self.action_space = lambda _: VECTOR, lambda _: actions

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        del seed, options
        return {uid: VECTOR.sample() for uid in self.agents}, {uid: {} for uid in self.agents}

    def step(self, actions: Any) -> Any:
        raise AssertionError(actions)  # agents are made here, not trained


def takes(name: str, actions: spaces.Space[Any], seen: Any = VECTOR, **settings: Any) -> bool:
    """Return whether an agent of the algorithm ``name`` can be made for such an environment."""
    algorithm = getattr(cadenza, name)
    team = issubclass(algorithm, TeamAgent)
    count = getattr(algorithm.Config(), "group_size", 1)
    try:
        algorithm(
            (lambda: _Seats(actions)) if team else (lambda: _Seat(seen, actions)),
            num_envs=count,
            **settings,
        )
    except ConfigurationError:
        return False
    return True


@cache
def switches(name: str, ability: str) -> list[str]:
    """Return the settings by which ``name`` has an ability, as they are written."""
    found = []
    for setting, value in ABILITIES[ability][1].items():
        actions = DISCRETE if ability == "Masks" or name == "DQN" else CONTINUOUS
        seen = GOALS if ability == "Goals" else VECTOR
        known = setting in getattr(cadenza, name).Config.model_fields
        if known and takes(name, actions, seen, **{setting: value}):
            found.append(f"`{setting}`")
    return found


@cache
def actions_of(name: str) -> tuple[str, ...]:
    """Return which kinds of actions an algorithm takes."""
    widest = (
        [kind for kind, example in kinds.items() if takes(name, example)][-1:] for kinds in ACTIONS
    )
    return tuple(kind for found in widest for kind in found)


def _team(name: str) -> bool:
    return issubclass(getattr(cadenza, name), TeamAgent)


def _teachers(name: str) -> list[str]:
    known = inspect.signature(getattr(cadenza, name)).parameters
    return [f"`{word}`" for word in ("demonstrations", "expert") if word in known]


def _has(name: str, ability: str, *, briefly: bool = False) -> str:
    """Return by which settings an algorithm has an ability, or whether it has it anyway."""
    if ability == "Scaling" and name in ("BC", "DAgger"):
        return "always" if briefly else "always, by the moments of the data"
    found = switches(name, ability)
    if not briefly:
        return ", ".join(found) or "no"
    if len(found) == len(ABILITIES[ability][1]):
        return "yes"
    return "partly" if found else "–"


def takes_table(name: str) -> str:
    """Return what an algorithm takes, as a table of its page."""
    guide, team = f"{HOW_TO}/train-an-agent.md", _team(name)
    algorithm = getattr(cadenza, name)
    steps_them = "num_envs" in inspect.signature(algorithm).parameters
    at_once = f"`num_envs`, {algorithm.default_envs} by default" if steps_them else "none"
    teacher = {"BC": "learn-from-demonstrations.md", "DAgger": "imitate-an-expert.md"}.get(
        name, "learn-from-demonstrations.md#learn-on-from-them"
    )
    rows = [
        ("Actions", ", ".join(actions_of(name))),
        (f"[Observations]({guide}#{'teams' if team else 'environments'})", OBSERVATIONS[team]),
        ("Learns", "all robots of a team" if team else "one agent"),
        ("Environments at once", at_once),
        (f"[Demonstrations]({HOW_TO}/{teacher})", ", ".join(_teachers(name)) or "no"),
        *(
            (f"[{ability}]({guide}#{place})", _has(name, ability))
            for ability, (place, _) in ABILITIES.items()
        ),
    ]
    return _table(("", ""), rows)


def index_table(_: str) -> str:
    """Return all algorithms with what they take."""
    columns = ("Algorithm", "Actions", "Observations", "Learns", "Demonstrations", *ABILITIES)
    rows = [
        (
            f"[{name}]({name.lower()}.md)",
            ", ".join(BRIEFLY.get(kind, kind) for kind in actions_of(name)),
            "flat" if _team(name) else "all",
            "team" if _team(name) else "one",
            "yes" if _teachers(name) else "–",
            *(_has(name, ability, briefly=True) for ability in ABILITIES),
        )
        for name in ALGORITHMS
    ]
    return _table(columns, rows)


def settings_table(name: str) -> str:
    """Return the settings of an algorithm, its own first, and the keywords beside them."""
    algorithm = getattr(cadenza, name)
    config = algorithm.Config
    refused = {
        setting
        for ability, (_, values) in ABILITIES.items()
        for setting in values
        if f"`{setting}`" not in switches(name, ability)
    }
    rows = []
    for setting in _own_first(config):
        field = config.model_fields[setting]
        kind, span = kind_of(field)
        meaning = meaning_of(config, setting)
        if span:  # said once
            meaning = meaning.replace(f", {span}", "", 1)
        if setting in refused:
            meaning += f" {name} refuses other values."
        kind = kind.replace("schedule", f"[schedule]({HOW_TO}/train-an-agent.md#schedules)")
        rows.append((f"`{setting}`", kind, _value(field), meaning))
    keywords = [
        str(parameter.replace(annotation=parameter.empty))
        for parameter in inspect.signature(algorithm).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in config.model_fields
    ]
    beside = ", ".join(f"`{keyword}`" for keyword in keywords)
    return (
        _table(("Setting", "Type and range", "Default", "Meaning"), rows)
        + f"\n\nBeside the settings: {beside} ([meaning](index.md#keywords))."
    )


def _own_first(config: type[Any]) -> list[str]:
    """Return the settings of a class, in the order of the classes that document them."""
    classes = [each for each in config.__mro__ if hasattr(each, "model_fields")]
    order = [name for each in classes for name in documented(each) if name in config.model_fields]
    return [*dict.fromkeys([*order, *config.model_fields])]


def documented(config: type[Any]) -> dict[str, str]:
    """Return what the ``Attributes`` of a class's docstring say."""
    text = inspect.cleandoc(config.__doc__ or "").partition("\nAttributes:\n")[2]
    entries = re.split(r"^(\w+): ", textwrap.dedent(text), flags=re.MULTILINE)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return {name: " ".join(told.split()).replace("``", "`") for name, told in pairs}


def meaning_of(config: type[Any], setting: str) -> str:
    """Return what a setting means: what the nearest class says that documents it."""
    told = (documented(each).get(setting) for each in config.__mro__ if each is not object)
    try:
        return next(text for text in told if text)
    except StopIteration:
        raise KeyError(
            f"{config.__name__}: expected {setting!r} among the Attributes of its docstring, or of "
            "a base's, got none; document it there."
        ) from None


def kind_of(field: FieldInfo) -> tuple[str, str]:
    """Return type and range of a setting in words, and the range alone."""
    words, inner = _words(field.annotation)
    span = _span([*inner, *field.metadata])
    optional = "None" in words
    *first, last = (word for word in words if word != "None")
    said = f"{', '.join(first)} or {last}" if first else last
    return f"{said} {span}".strip() + ", or None" * optional, span


def _words(kind: Any) -> tuple[list[str], list[Any]]:
    """Return the names of the types that a setting may have, and the constraints inside them."""
    if get_origin(kind) is Annotated:
        first, *rest = get_args(kind)
        words, inner = _words(first)
        return words, [
            *inner,
            *rest,
            *(each for one in rest for each in getattr(one, "metadata", ())),
        ]
    if get_origin(kind) in (Union, UnionType):
        parts = [_words(part) for part in get_args(kind)]
        words = [word for names, _ in parts for word in names]
        return [*dict.fromkeys(words)], [each for _, inner in parts for each in inner]
    if get_origin(kind) is Literal:
        return [f'`"{value}"`' for value in get_args(kind)], []
    if get_origin(kind) in (tuple, list):
        words, inner = _words(get_args(kind)[0])
        return [f"{word}s" for word in words], inner
    if isinstance(kind, type) and issubclass(kind, BaseModel):  # what a mapping is in files
        return [kind.__name__.removesuffix("Config").lower()], []
    return ["None" if kind is NoneType else getattr(kind, "__name__", str(kind))], []


def _span(metadata: Sequence[Any]) -> str:
    """Return the range that constraints leave, as the docstrings write it."""
    ends: list[tuple[float, bool, str] | None] = [None, None]
    for limit in metadata:
        for side, (opened, closed, strict, loose) in enumerate(_LIMITS):
            for word, sign in ((opened, strict), (closed, loose)):
                if getattr(limit, word, None) is not None:
                    ends[side] = (getattr(limit, word), word == closed, sign)
    low, high = ends
    if low and high:
        return f"in {'[' if low[1] else '('}{low[0]:g}, {high[0]:g}{']' if high[1] else ')'}"
    return "".join(f"{end[2]}{end[0]:g}" for end in ends if end)


def _value(field: FieldInfo) -> str:
    """Return a default as one writes it."""
    value = field.get_default(call_default_factory=True, validated_data={})
    return f"`{value:_}`" if type(value) is int else f"`{value!r}`".replace("'", '"')


def scores_table(name: str) -> str:
    """Return the measured scores of an algorithm with the commands that repeat them."""
    columns = ("Task", "Variant", "Per seed", "Seeds", "Score and 95 % interval", "Command")
    rows = [row for anchor, *row in scores() if anchor == ALGORITHMS[name]]
    return _table(columns, rows) if rows else "Not measured."


def scores() -> Iterator[list[str]]:
    """Yield the rows of README's table of scores, each after its section."""
    table = README.read_text("utf-8").partition("\n## Scores\n")[2].partition("\n\n- ")[0]
    script = ""
    for line in table.strip().splitlines()[2:]:
        task, variant, budget, seeds, score, told = (cell.strip() for cell in line.split(" | "))
        script = script if told.startswith("the same") else told.strip("`| ")
        found = re.fullmatch(r"\[(.*)\]\(#(.*)\)", variant)
        if found is None:
            raise ValueError(f"{README}: expected a link to a section, got {variant!r}.")
        yield [found[2], task.strip("| "), found[1], budget, seeds, score, _command(script, seeds)]


def _command(script: str, seeds: str) -> str:
    if script.startswith("pytest"):
        return f"`{script}`"
    folder = "perf" if script.startswith("scores.py") else "examples"
    return f"`python {folder}/{script} --seeds {seeds}`"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


#: What is written into a block, by its name.
BLOCKS = {
    "index": index_table,
    "takes": takes_table,
    "settings": settings_table,
    "scores": scores_table,
}


def written(text: str) -> str:
    """Return a page's text with every block written anew."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}{BLOCKS[found[2]](found[3])}\n{found[4]}"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Write every page anew."""
    for page in sorted(PAGES.glob("*.md")):
        atomic_write_text(page, written(page.read_text("utf-8")))


if __name__ == "__main__":
    main()
