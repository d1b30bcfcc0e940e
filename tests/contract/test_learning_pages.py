"""The pages of the learning algorithms say what the code does today."""

import inspect
import re
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import cadenza
from cadenza.learn.agents.agent import Agent
from cadenza.learn.settings import Width
from tests.e2e.commands import REPOSITORY
from tools import learning_pages

PAGES = sorted((REPOSITORY / learning_pages.PAGES).glob("*.md"))


@pytest.fixture(autouse=True)
def _repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_says_what_the_code_knows(page):
    text = page.read_text("utf-8")
    assert learning_pages.written(text) == text, "run `make pages`"


def test_every_algorithm_has_a_page_with_all_blocks_in_the_navigation():
    kinds = {name: getattr(cadenza, name) for name in dir(cadenza)}
    public = {
        name for name, kind in kinds.items() if inspect.isclass(kind) and issubclass(kind, Agent)
    }
    assert public == set(learning_pages.ALGORITHMS)
    navigation = (REPOSITORY / "mkdocs.yml").read_text("utf-8")
    for name in public:
        page = f"reference/learning/{name.lower()}.md"
        assert f"- {name}: {page}\n" in navigation
        text = (REPOSITORY / "docs" / page).read_text("utf-8")
        found = re.findall(r"<!-- learning: (\w+ \w+) -->", text)
        assert found == [f"{block} {name}" for block in ("takes", "settings", "scores")]


def test_index_explains_every_keyword_beside_the_settings():
    explained = (learning_pages.PAGES / "index.md").read_text("utf-8")
    for name in learning_pages.ALGORITHMS:
        algorithm = getattr(cadenza, name)
        for keyword in inspect.signature(algorithm).parameters:
            if keyword not in {"others", *algorithm.Config.model_fields}:
                assert f"| `{keyword}` | " in explained, f"{name}'s keyword"


def test_commands_of_the_scores_name_files_that_exist():
    told = [row[-1].strip("`").split() for row in learning_pages.scores()]
    assert len(told) > 20
    assert all((REPOSITORY / words[1]).is_file() for words in told)
    assert {words[0] for words in told} == {"python", "pytest"}


def test_algorithm_without_a_score_says_so(monkeypatch):
    monkeypatch.setattr(learning_pages, "scores", lambda: iter([["td3", "Pendulum-v1"]]))
    assert learning_pages.scores_table("SAC") == "Not measured."


def test_score_is_told_with_its_command():
    row = next(row for row in learning_pages.scores() if "pendulum_sac" in row[-1])
    assert row[1:] == [
        *("Pendulum-v1", "SAC", "20 000 steps", "5", "−145.7 (−164.4 … −127.0)"),
        "`python perf/scores.py pendulum_sac --seeds 5`",
    ]


class Base(BaseModel):
    """A base.

    Attributes:
        rate: A rate, in (0, 1].
        widths: Widths,
            of all layers.
    """

    rate: float = Field(default=0.5, gt=0.0, le=1.0)
    widths: tuple[Width, ...] = (64, 64)


class Derived(Base):
    """One that says more.

    Attributes:
        count: How many, >= 2; None for all.
        mode: Which.
        base: Another, or a number.
    """

    count: Annotated[int, Field(ge=2)] | None = None
    base: float | Base = 0.0
    mode: Literal["a", "b"] = "a"
    rate: float = Field(default=0.1, gt=0.0, le=1.0)


def test_settings_are_told_by_the_nearest_class_that_documents_them():
    fields = Derived.model_fields
    assert [learning_pages.kind_of(fields[name])[0] for name in ("rate", "widths")] == [
        *("float in (0, 1]", "ints >= 1"),
    ]
    assert learning_pages.kind_of(fields["count"]) == ("int >= 2, or None", ">= 2")
    assert learning_pages.kind_of(fields["base"])[0] == "float or base"
    assert learning_pages.kind_of(fields["mode"])[0] == '`"a"` or `"b"`'
    assert learning_pages.meaning_of(Derived, "widths") == "Widths, of all layers."
    assert learning_pages.meaning_of(Derived, "rate") == "A rate, in (0, 1]."


def test_setting_without_a_meaning_is_named():
    class Silent(BaseModel):
        """Says nothing."""

        speed: float = 1.0

    with pytest.raises(KeyError, match="Silent: expected 'speed' among the Attributes"):
        learning_pages.meaning_of(Silent, "speed")


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("SAC", ("continuous with bounds",)),
        ("PPO", ("continuous", "discrete", "several choices")),
        ("HAPPO", ("continuous",)),
    ],
)
def test_kinds_of_actions_are_found_by_trying(name, actions):
    assert learning_pages.actions_of(name) == actions
