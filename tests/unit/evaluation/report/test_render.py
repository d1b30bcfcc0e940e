import base64
import csv
import hashlib
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cadenza.core.errors import InputError
from cadenza.evaluation.report.render import episodes_csv, render_report
from cadenza.evaluation.report.view import Check
from cadenza.evaluation.results import EpisodeResult
from tests.unit.evaluation.report.sample_view import hostile_view, sample_view
from tests.unit.evaluation.report.svg_tree import parse_svg

#: Elements without an end tag.
VOID = {"meta", "input", "br", "img", "link"}

#: Attributes whose value a browser may fetch.
FETCHED = {"src", "href", "data", "poster", "action", "formaction", "srcset", "background"}


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script: list[str] = []
        self.style: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        place = self.open[-1] if self.open else ""
        {"script": self.script, "style": self.style}.get(place, self.words).append(data)

    def all(self, tag) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def source() -> str:
    return render_report(sample_view(seeds=3, episodes=4))


@pytest.fixture(scope="module")
def page(source) -> Page:
    return Page(source)


def test_report_has_equal_bytes_in_another_process(source):
    root = Path(__file__).resolve().parents[4]
    program = (
        "import sys, hashlib\n"
        "from tests.unit.evaluation.report.sample_view import sample_view\n"
        "from cadenza.evaluation.report.render import render_report\n"
        "text = render_report(sample_view(seeds=3, episodes=4))\n"
        "sys.stdout.write(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env={"PYTHONHASHSEED": "123", "PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == hashlib.sha256(source.encode()).hexdigest()


def test_report_fetches_nothing(source, page):
    targets = [a[name] or "" for _, a in page.tags for name in FETCHED & set(a)]
    assert targets
    assert all(target.startswith(("#", "data:text/csv")) for target in targets)
    assert not re.search(r"@import|url\(", "".join(page.style))
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket", "".join(page.script))
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "img", "form"}


def test_report_policy_allows_exactly_its_own_style_and_script(page):
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv"))

    def digest(text):
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert "default-src 'none'" in policy
    assert f"style-src 'sha256-{digest(''.join(page.style))}'" in policy
    assert f"script-src 'sha256-{digest(page.script[-1])}'" in policy
    assert all("style" not in a for _, a in page.tags)  # the policy would block them
    assert not any(name.startswith("on") for _, a in page.tags for name in a)


def test_report_ids_are_unique_and_links_lead_somewhere(page):
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    links = {a["href"][1:] for a in page.all("a") if (a["href"] or "").startswith("#")}
    assert links <= set(ids)
    labels = {i for _, a in page.tags for i in (a.get("aria-labelledby") or "").split()}
    assert labels <= set(ids)


def test_report_drawings_are_well_formed_and_named(source):
    drawings = re.findall(r'<svg class="chart.*?</svg>', source, flags=re.DOTALL)
    assert len(drawings) == 12
    for drawing in drawings:
        root = parse_svg(drawing)
        assert root.find("title").text
        assert len(root.find("desc").text) > 20
        assert root.attrib["role"] == "img"


def test_report_escapes_every_text():
    text = render_report(hostile_view())
    page = Page(text)
    scripts = page.all("script")
    assert [s.get("type") for s in scripts] == ["application/json", None]
    assert page.all("img") == []
    assert "alert(1)" not in page.script[-1]
    assert json.loads(page.script[0])["partners"]
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    assert page.text.count(attack) >= 12  # shown as text wherever it was put


@pytest.mark.parametrize(
    ("checks", "badge"),
    [
        ((), "Not verified"),
        ((Check(name="a", ok=True), Check(name="b", ok=False)), "Verification failed: 1 of 2"),
    ],
)
def test_report_badge_tells_the_state_of_verification(checks, badge):
    view = replace(sample_view(seeds=2, episodes=2, rollouts=False), verification=checks)
    assert badge.replace("\u00a0", " ") in Page(render_report(view)).text.replace("\u00a0", " ")


def test_report_says_how_recordings_were_chosen_and_offers_each_kind(source, page):
    assert "Typical The start of median length among those that end alike." in page.text
    assert "Telling Chosen for a contact without the filter where there is one." in page.text
    picks = [a["data-pick"] for a in page.all("button") if "data-pick" in a]
    assert picks == ["typical", "telling"]
    assert "The typical recordings at a glance" in page.text
    runs = json.loads(page.script[0])["runs"]
    assert {(r["p"], r["pick"]) for r in runs} == {
        (a["data-partner"], pick)
        for a in page.all("button")
        if "data-partner" in a
        for pick in picks
    }


def test_report_badge_of_a_hunter_stands_beside_what_happened(page):
    view = sample_view(seeds=3, episodes=4)
    met = [e for e in view.episodes if (e.partner, e.condition) == ("chaser", "filter_on")]
    solved = sum(e.success for e in met)
    assert 0 < solved < 12
    assert f"never met may block the way {solved} of 12 solved with filter" in page.text


def test_report_folds_the_checks_that_passed_and_shows_the_others():
    checks = (Check(name="good", ok=True), Check(name="broken", ok=False, detail="size 3"))
    text = render_report(replace(sample_view(seeds=2, episodes=2), verification=checks))
    shown, folded = text.split("<summary>The checks that passed</summary>")
    folded = folded.split("</details>")[0]
    assert "<code>broken</code>" in shown
    assert "<code>broken</code>" not in folded
    assert "<code>good</code>" in folded
    assert "<code>good</code>" not in shown


def test_report_embeds_all_episodes_as_csv(page):
    view = sample_view(seeds=3, episodes=4)
    uri = next(a["href"] for a in page.all("a") if a.get("download") == "episodes.csv")
    text = base64.b64decode(uri.split("base64,")[1]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(view.episodes) == 120
    for row, episode in zip(rows, view.episodes, strict=True):
        assert (row["partner"], row["condition"]) == (episode.partner, episode.condition)
        assert float(row["min_distance_m"]) == episode.min_distance_m
        assert int(row["success"]) == episode.success
    assert rows[1]["interventions"] == ""  # without the filter nothing was recorded


def test_report_embeds_estimates_that_match_the_episodes(page):
    view = sample_view(seeds=3, episodes=4)
    uri = next(a["href"] for a in page.all("a") if a.get("download") == "estimates.csv")
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(uri.split("base64,")[1]).decode())))
    wanted = [
        r for r in rows
        if (r["row"], r["condition"], r["statistic"]) == ("Wanderer", "filter_off", "contact")
    ]  # fmt: skip
    played = [e for e in view.episodes if (e.partner, e.condition) == ("wanderer", "filter_off")]
    assert float(wanted[0]["value"]) == sum(e.contact for e in played) / len(played)
    assert int(wanted[0]["n"]) == len(played)


def test_csv_disarms_text_that_a_spreadsheet_would_run():
    episode = EpisodeResult(
        seed=-1, episode_idx=0, initial_state_seed=0, success=True, partner="=1+1", condition="@x"
    )
    row = next(csv.DictReader(io.StringIO(episodes_csv([episode]))))
    assert (row["partner"], row["condition"], row["seed"]) == ("'=1+1", "'@x", "-1")


def test_report_without_rollouts_has_no_script():
    page = Page(render_report(sample_view(seeds=2, episodes=2, rollouts=False)))
    assert page.all("script") == []
    assert page.all("canvas") == []


def test_report_offers_the_player_for_recorded_partners_only():
    view = sample_view(seeds=2, episodes=2)
    few = replace(view, rollouts=tuple(r for r in view.rollouts if r.partner_id == "chaser"))
    chips = [a for a in Page(render_report(few)).all("button") if "data-partner" in a]
    assert [a["data-partner"] for a in chips] == ["chaser"]


def test_report_of_a_task_without_success_shows_returns():
    view = replace(sample_view(seeds=2, episodes=2), has_success=False, contact_distance_m=None)
    page = Page(render_report(view))
    assert "Return by partner" in page.text
    assert "Success by partner" not in page.text


def test_report_of_one_condition_leaves_the_comparison_out():
    view = sample_view(seeds=2, episodes=2)
    one = replace(
        view,
        conditions=view.conditions[:1],
        episodes=tuple(e for e in view.episodes if e.condition == "filter_on"),
        rollouts=tuple(r for r in view.rollouts if r.condition_id == "filter_on"),
    )
    page = Page(render_report(one))
    assert "Success by partner" in page.text
    assert "What the filter changes: success" not in page.text
    assert len(page.all("canvas")) == 1


def test_report_of_no_episodes_says_so_instead_of_failing():
    view = replace(sample_view(seeds=1, episodes=1), episodes=())
    page = Page(render_report(view))
    assert "Success by partner" in page.text
    assert "How close the robots came" not in page.text


def test_report_with_duplicate_episodes_is_refused():
    view = sample_view(seeds=1, episodes=1)
    with pytest.raises(InputError, match="expected one episode per key"):
        render_report(replace(view, episodes=view.episodes * 2))
