"""From sealed bundles to one view, and from there to tables in every format."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from cadenza.benchmark.bundle import build_bundle_files, write_bundle_dir
from cadenza.benchmark.reporting import find_bundles, load_run, report_view, task_views
from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.evaluation.best_responses import BestResponses
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.render import FORMATS, ReportRecord, render_leaderboards
from cadenza.evaluation.report.view import RECORDINGS_NAME
from tests.dashboards import recorded
from tests.e2e.in_process import here
from tests.unit.benchmark.samples import make_cell_episodes, make_plan, make_request

#: Seeds of the evaluation: enough for every statistic.
PLAN = make_plan(seeds=(0, 5, 6), episodes_per_seed=4, block_size=4)


def seal(folder, policy="ego", plan=PLAN, solve=lambda e: e.success, **changes):
    """Write the bundle of a policy that solves what ``solve`` says."""
    episodes = [
        episode.model_copy(update={"success": solve(episode)})
        for cell in plan.cells.values()
        if cell.policy == policy
        for episode in make_cell_episodes(plan, cell)
    ]
    request = make_request(plan, policy=policy, episodes=episodes, **changes)
    write_bundle_dir(folder, build_bundle_files(request))
    return folder


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """An evaluation's folder: ``ego`` solves some episodes, ``zero`` none."""
    folder = tmp_path_factory.mktemp("evaluation")
    seal(folder / "bundles" / "ego")
    seal(folder / "bundles" / "zero", "zero", solve=lambda _: False)
    return folder


def runs_of(folder):
    return [load_run(found) for found in find_bundles([folder])]


def test_bundles_are_found_in_every_kind_of_folder(evaluation, tmp_path):
    assert [p.name for p in find_bundles([evaluation])] == ["ego", "zero"]
    with pytest.raises(ConfigurationError, match="ego: expected every bundle once, got it twice"):
        find_bundles([evaluation, evaluation / "bundles" / "ego"])
    seal(tmp_path / "evaluation" / "bundles" / "mine")  # as a quickstart leaves it
    assert [p.name for p in find_bundles([tmp_path])] == ["mine"]
    with pytest.raises(ConfigurationError, match=r"got no bundle\.json in it"):
        find_bundles([tmp_path / "evaluation" / "bundles"])


def test_one_method_is_shown_under_its_conditions_and_several_under_their_headline(evaluation):
    runs = runs_of(evaluation)
    single = report_view(runs[:1])
    assert (single.treatment.condition_id, single.baseline.condition_id) == (
        "filter_on",
        "filter_off",
    )
    assert single.episodes == runs[0].episodes
    (ranked,) = task_views(runs[:1])
    assert [c.label for c in ranked.conditions] == ["ego"]
    both = report_view(runs)
    assert [(c.label, c.row_id) for c in both.conditions] == [
        ("ego", ""),
        ("zero", "B-STAT"),
    ]  # best first
    assert both.treatment is None
    assert len(both.episodes) == 2 * 2 * 3 * 4  # methods, partners, seeds, starts; filter on
    assert {e.condition for e in both.episodes} == {"ego", "zero"}
    assert both.statements[0].text.startswith("Shown: condition filter_on, 48 of 96 episodes: ")
    text = FORMATS["markdown"](both)
    assert "| Partner | Method |" in text
    assert "Smallest difference, points" in text
    assert "Caution: zero: every episode failed" in text
    assert "| Partner | Condition |" in FORMATS["markdown"](single)


def test_report_of_results_without_a_filter_speaks_of_none(tmp_path):
    bare = PLAN.conditions[1].model_copy(update={"name": "plain"})
    plan = make_plan(seeds=(0, 5, 6), episodes_per_seed=4, block_size=4, conditions=(bare,))
    view = report_view([load_run(seal(tmp_path / "bare", plan=plan))])
    page = FORMATS["html"](view).partition("<main>")[2].partition("</main>")[0]
    assert "episodes in plain play" in page.replace("\u00a0", " ")
    assert not re.search("filter|certificate|brak|step lasts", page, re.I)


def test_partners_are_marked_as_seen_only_where_a_training_marked_them(evaluation, tmp_path):
    ego, zero = runs_of(evaluation)
    assert [p.seen for p in report_view([ego]).partners] == [True, False]
    strangers = tuple(p.model_copy(update={"seen": False}) for p in PLAN.partners)
    unmarked = make_plan(seeds=(0, 5, 6), partners=strangers)
    for unknown in (zero, load_run(seal(tmp_path / "unmarked", plan=unmarked))):
        view = report_view([unknown])
        assert [p.seen for p in view.partners] == [None, None]
        assert not re.search("never met|trained with|unseen", FORMATS["html"](view), re.I)


def test_training_seeds_of_a_method_are_its_clusters(evaluation):
    run = runs_of(evaluation)[0]
    trained = [
        replace(
            run,
            bundle=run.bundle.model_copy(
                update={
                    "metadata": {**run.bundle.metadata, "method": "ours", "training_seed": seed}
                }
            ),
        )
        for seed in (7, 8)
    ]
    view = report_view(trained)
    assert (view.title, view.seed_kind) == ("ours", "training seed")
    numbers = analyse(view)
    assert numbers.overall.cells[0].success.n_clusters == 2
    assert numbers.overall.cells[0].n == 2 * 2 * 3 * 4
    with pytest.raises(InputError, match="expected one bundle per training seed"):
        report_view(trained[:1] * 2)
    baseline = runs_of(evaluation)[1]  # without a training: its evaluation seeds are its clusters
    methods = analyse(report_view([*trained, baseline])).methods
    assert [row.score.n_clusters for row in methods.rows] == [2, 3]
    assert not methods.paired


def test_results_of_other_rules_are_not_compared_but_ranked_apart(evaluation, tmp_path):
    shorter = make_plan(seeds=(0, 5, 6), env=PLAN.env.model_copy(update={"episode_length": 6}))
    other = load_run(seal(tmp_path / "other", "zero", plan=shorter))
    ours = runs_of(evaluation)[0]
    with pytest.raises(InputError, match="expected the task of ego, got another"):
        report_view([ours, other])
    assert len(task_views([ours, other])) == 2


def test_damaged_results_are_refused_and_uncommitted_ones_reported_but_not_ranked(tmp_path):
    provenance = make_request().provenance
    dirty = seal(tmp_path / "dirty", provenance={**provenance, "dirty": True})
    view = report_view([load_run(dirty)])
    assert "Verification failed: 1 of" in FORMATS["html"](view)
    with pytest.raises(IntegrityError, match="bundle:eligibility"):
        load_run(dirty, strict=True)
    (dirty / "plan.json").write_bytes((dirty / "plan.json").read_bytes() + b" ")
    with pytest.raises(IntegrityError, match=r"sha256sums:plan\.json"):
        load_run(dirty)


def test_every_format_says_the_same(evaluation):
    view = report_view(runs_of(evaluation))
    record = ReportRecord.model_validate_json(FORMATS["json"](view))
    found = {m.method: m for m in record.methods}
    assert (found["zero"].ranks, found["ego"].ranks) == ((2, 2), (1, 1))
    score = found["ego"].estimates["score"]
    # four starts of which one fails, beside both partners, in every seed
    assert score.value == 0.75
    assert score.confidence == pytest.approx(0.975)  # Bonferroni over two methods
    shown = f"75.0 % [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    plain = {form: FORMATS[form](view).replace("\u00a0", " ") for form in ("html", "markdown")}
    assert shown in plain["html"]
    assert shown.replace("[", r"\[").replace("]", r"\]") in plain["markdown"]
    latex = FORMATS["latex"](view)
    assert shown.replace(" %", r"~\%") in latex
    assert latex.startswith(r"% needs \usepackage{booktabs} and \usepackage{graphicx}")
    labels = re.findall(r"\\label\{tab:[a-z0-9-]+\}", latex)
    assert len(set(labels)) == latex.count(r"\begin{table}") > 1
    assert latex.count(r"\end{tabular}}") == latex.count(r"\resizebox{\linewidth}{!}{%") > 0
    assert r"\par\medskip{\footnotesize Mean over all episodes" in latex
    assert re.search(r"& -\d", latex) is None  # a hyphen is no minus
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end", latex, re.S):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert all(len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1 for row in rows)


def test_leaderboard_command_finds_drift_and_shows_proximity(evaluation, tmp_path):
    values = {"seeker": 1.0, "chaser": 0.5}
    partners = {name: {"value": value, "trained": "SAC"} for name, value in values.items()}
    best = {"task": "crossing@v1", "metric": "success", "partners": partners}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(best))
    words = ("eval", "leaderboard", evaluation, "--best-responses", "best.yaml", "--out", "b.md")
    assert here(*words, cwd=tmp_path).code == 0
    text = (tmp_path / "b.md").read_text()
    assert re.search(r"\| zero \| 2 \| B-STAT \| 0\.0", text)
    assert "bound not reached" in text
    assert here(*words, "--check", cwd=tmp_path).code == 0
    (tmp_path / "b.md").write_text(text.replace("zero", "hero"))
    assert here(*words, "--check", cwd=tmp_path).code == 1
    assert (tmp_path / "b.md").read_text() != text  # a check writes nothing
    assert here(*words[:3], "--check", cwd=tmp_path).code == 2
    by_ending = (*words[:3], "--out", "b.tex")
    assert (
        here(*by_ending, cwd=tmp_path).code == here(*by_ending, "--check", cwd=tmp_path).code == 0
    )
    assert (tmp_path / "b.tex").read_text().startswith("% ")
    for command in (("report",), words[:2]):
        refused = here(*command, evaluation, "--out", "b.pdf", cwd=tmp_path)
        assert refused.code == 2
        assert "expected an ending of .html, .md, .tex, .json, got b.pdf" in refused.err
    done = here(
        "report", evaluation, "--out", "r.json", "--best-responses", "best.yaml", cwd=tmp_path
    )
    assert done.code == 0, done.err
    methods = json.loads((tmp_path / "r.json").read_text())["methods"]
    assert [m["estimates"]["proximity: mean over partners"]["value"] for m in methods] == [
        0.75,
        0.0,
    ]


def test_a_report_plays_the_recorded_episodes_beside_its_bundles(tmp_path):
    seal(tmp_path / "evaluation" / "bundles" / "ego")
    path, page = tmp_path / RECORDINGS_NAME, tmp_path / "r.html"
    for policy, plays in (("ego", True), ("another", False)):
        path.write_text(recorded(policy, partner="chaser").model_dump_json())
        assert here("report", ".", "--out", "r.html", cwd=tmp_path).code == 0
        assert ('id="rollouts"' in page.read_text()) is plays
    path.write_text('{"policy_id": 3}')
    refused = here("report", ".", "--out", "r.html", cwd=tmp_path)
    assert refused.code != 0
    assert "recordings.json: expected recorded episodes: policy_id: Input should be" in refused.err


def test_one_page_holds_one_task(evaluation):
    views = [report_view(runs_of(evaluation))]
    assert render_leaderboards(views, "html").startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match="expected one task in a page, got 2"):
        render_leaderboards(views * 2, "html")


@pytest.mark.parametrize(
    ("task", "partner", "told"),
    [
        ("push@v1", "seeker", r"expected some on crossing@v1, got some on push"),
        ("crossing@v1", "sucker", "expected some to seeker, chaser, got some to sucker"),
    ],
)
def test_best_responses_about_something_else_are_refused(evaluation, task, partner, told):
    best = BestResponses.model_validate(
        {"task": task, "partners": {partner: {"value": 1.0, "trained": "SAC"}}}
    )
    with pytest.raises(ConfigurationError, match=told):
        report_view(runs_of(evaluation), best_responses=best)


def test_proximity_says_over_how_many_partners_it_is(evaluation):
    partners = {name: {"value": 1.0, "trained": "SAC"} for name in ("seeker", "absent")}
    best = {"task": "crossing@v1", "metric": "success", "partners": partners}
    view = report_view(runs_of(evaluation), best_responses=BestResponses.model_validate(best))
    text = FORMATS["markdown"](view)
    assert "over 1 of 2 partners" in render_leaderboards([view], "markdown").split("##")[1]
    assert "| Mean over 1 of 2 partners |" in text
    assert "Without a best response: chaser. In the file, but not played here: absent." in text
