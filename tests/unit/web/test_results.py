"""Pages of results: found, shown, verified anew; malformed files give a sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from cadenza.benchmark.bundle import build_bundle_files, write_bundle_dir
from cadenza.benchmark.finding import search
from cadenza.benchmark.registration import registered_block
from cadenza.benchmark.verify import sign_verified
from cadenza.core.errors import NotReadyError
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.evaluation.prereg import locked_registration
from cadenza.evaluation.report.view import RECORDINGS_NAME
from cadenza.web import create_app
from cadenza.web.findings import Findings
from tests.dashboards import CANARY, compared, evaluated, recorded, streamed, token_in, trained
from tests.unit.benchmark.samples import make_key, make_request


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return evaluated(tmp_path_factory.mktemp("original") / "out")


@pytest.fixture
def workdir(original, tmp_path):
    shutil.copytree(original, tmp_path / "runs" / "one" / "evaluation")
    (tmp_path / "runs" / "one" / RECORDINGS_NAME).write_text(recorded("goal_pd").model_dump_json())
    return tmp_path / "runs"


@pytest.fixture
def client(workdir):
    app = create_app(workdir, workdir / "knowledge")
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


def address(workdir, kind, place):
    [found] = [one for one in search(workdir).of(kind) if one.place == place]
    return f"/results/{found.identity}"


GOAL = "one/evaluation/bundles/goal_pd"


def test_the_overview_lists_results_by_digest_and_no_path_leads_anywhere(client, workdir):
    text = client.get("/results").text
    for kind, place in (("evaluation", "one/evaluation"), ("bundle", GOAL)):
        assert f'href="{address(workdir, kind, place)}">{place}</a>' in text
    for guess in ("0" * 16, "..%2f..%2fetc", GOAL, "x"):
        assert client.get(f"/results/{guess}").status_code == 404


def test_a_bundle_shows_badge_success_by_partner_and_safety(client, workdir):
    text = client.get(address(workdir, "bundle", GOAL)).text
    assert re.search(r'class="badge good"[^>]*>Sealed and verified[^<]*<span>not signed<', text)
    for part in ("Success by partner", "chaser", "goal seeker", "Safety table", "95 % interval"):
        assert part in text
    assert "Damaged" not in text


def test_recorded_episodes_are_played_on_the_page_of_their_policy_only(client, workdir):
    text = client.get(address(workdir, "bundle", GOAL)).text
    assert 'aria-label="Rollout player"' in text
    data = json.loads(re.search(r'id="rollouts">(.*?)</script>', text)[1])
    assert data["runs"][0]["robots"][0]["path"] == [0, 0, 100, 0, 200, 0, 300, 0]  # mm
    other = client.get(address(workdir, "bundle", "one/evaluation/bundles/zero")).text
    assert "Rollout player" not in other


def test_a_page_without_recorded_episodes_says_where_some_are_and_what_records_them(
    client, workdir
):
    zero = address(workdir, "bundle", "one/evaluation/bundles/zero")
    text = client.get(zero).text
    assert "No recorded episodes here" in text
    assert f'<a href="{address(workdir, "bundle", GOAL)}">{GOAL}</a> has some' in text
    assert "cadenza quickstart" in text
    assert "No recorded episodes" not in client.get(address(workdir, "bundle", GOAL)).text
    (workdir / "one" / RECORDINGS_NAME).unlink()
    assert "has some" not in client.get(zero).text


def row_of(text, where):
    return re.search(f'<tr><th[^>]*><a href="{where}".*?</tr>', text)[0]


def test_the_overview_tells_task_and_policy_and_figures_once_they_were_computed(client, workdir):
    where = address(workdir, "bundle", GOAL)
    damaged = "one/evaluation/bundles/zero"
    (workdir / damaged / "bundle.json").write_bytes(b"[1")
    row = row_of(client.get("/results").text, where)
    assert "<td>crossing</td><td>goal_pd</td>" in row
    assert "badge" not in row
    client.get(where)
    row = row_of(client.get("/results").text, where)
    assert re.search(r'<td class="n">[\d.]+\s%\s\[[\d., \s]+\]</td>', row)
    assert ">verified</span>" in row
    row = row_of(client.get("/results").text, address(workdir, "bundle", damaged))
    assert "<td></td><td></td>" in row


def test_several_policies_are_shown_together_with_every_partner(client, workdir):
    text = client.get(address(workdir, "evaluation", "one/evaluation")).text
    assert text.count('class="badge good"') == 2
    assert "cannot be played" not in text
    assert "Every method with every partner" in text


def pressed_verify(client, where):
    number = token_in(client.get(where).text.partition("/verify")[2])
    answer = client.post(f"{where}/verify", data={"form": number})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{where}#verification")
    return client.get(where).text


def test_verify_reads_every_byte_anew_even_if_no_file_looks_changed(client, workdir):
    where = address(workdir, "bundle", GOAL)
    assert "Read anew and verified" in pressed_verify(client, where)
    journal = workdir / GOAL / "episodes_seed3.jsonl"
    before = journal.stat()
    data = bytearray(journal.read_bytes())
    data[100] ^= 1
    journal.write_bytes(data)
    os.utime(journal, ns=(before.st_atime_ns, before.st_mtime_ns))
    text = pressed_verify(client, where)
    assert 'class="badge bad"' in text
    assert "episodes_seed3.jsonl</code> <span" in text


def test_a_damaged_byte_is_told_in_plain_words(client, workdir):
    journal = workdir / GOAL / "episodes_seed3.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"success":', b'"succezs":', 1))
    text = client.get(address(workdir, "bundle", GOAL)).text
    assert "line 1: not an episode: succ" in text
    for inside in ("validation error", "IntegrityError", "[type=", "input_value", "pydantic"):
        assert inside not in text


def test_a_form_of_elsewhere_verifies_nothing(client, workdir):
    where = address(workdir, "bundle", GOAL)
    assert client.post(f"{where}/verify", data={"form": "0" * 64}).status_code == 403


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bundle.json", b"{"),
        ("bundle.json", b"[" * 100_000),
        ("bundle.json", b'{"schema_version": 1e999}'),
        ("plan.json", b"\xff\xfe"),
        ("episodes_seed3.jsonl", b""),
        ("SHA256SUMS.txt", b"<img src=x onerror=alert(1)>"),
    ],
)
def test_a_damaged_bundle_gives_its_failed_checks_and_no_numbers(client, workdir, name, content):
    (workdir / GOAL / name).write_bytes(content)
    answer = client.get(address(workdir, "bundle", GOAL))
    assert answer.status_code == 200
    assert 'class="badge bad"' in answer.text
    assert "Success by partner" not in answer.text
    assert "<img src" not in answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"rollouts": []},
        {"schema_version": 2},
        {"rollouts": [{}]},
        {"picks": {}},
    ],
)
def test_malformed_recordings_are_not_played(client, workdir, change):
    path = workdir / "one" / RECORDINGS_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    answer = client.get(address(workdir, "bundle", GOAL))
    assert answer.status_code == 200
    assert "Rollout player" not in answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"frames": []},
        {"frames": [{"ego": [0, 0]}]},
        {"radii": {"ego": -1.0, "partner": 0.2}},
        {"partner_id": "nobody"},
        {"contact_index": 99},
        {"frames": [{"ego": [1e999, 0], "partner": [0, 0]}]},
        {"goals": {"ego": [1e306, 0]}},
    ],
)
def test_an_incomplete_recorded_episode_gives_a_sentence(client, workdir, change):
    path = workdir / "one" / RECORDINGS_NAME
    content = json.loads(path.read_text())
    content["rollouts"][0] |= change
    path.write_text(json.dumps(content))
    answer = client.get(address(workdir, "bundle", GOAL))
    assert answer.status_code == 200
    assert 'class="message bad"' in answer.text
    assert "Rollout player" not in answer.text
    assert "Success by partner" in answer.text


def test_links_are_neither_listed_nor_followed(client, workdir, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("film.mp4", "bundle.json"):
        (secret / name).write_text(CANARY)
    (workdir / "linked").symlink_to(secret)
    (workdir / "film.mp4").symlink_to(secret / "film.mp4")
    assert "linked" not in client.get("/results").text
    where = address(workdir, "bundle", GOAL)
    shutil.rmtree(workdir / GOAL)  # after it was found, before it is read
    (workdir / GOAL).symlink_to(secret)
    assert client.get(where).status_code == 404
    (workdir / "one" / RECORDINGS_NAME).unlink()
    (workdir / "one" / RECORDINGS_NAME).symlink_to(secret / "bundle.json")
    text = client.get(address(workdir, "bundle", "one/evaluation/bundles/zero")).text
    assert CANARY not in text


def page_of(client, workdir, kind, place):
    answer = client.get(address(workdir, kind, place))
    assert answer.status_code == 200
    for mark in ("http://", "https://", " style=", "<style", "<script>"):
        assert mark not in answer.text.replace("http://www.w3.org/2000/svg", "")
    return answer.text.replace("\u00a0", " ")


def test_the_leaderboard_ranks_the_newest_of_each_method_and_says_what_it_leaves_out(
    client, workdir
):
    shutil.copytree(workdir / "one", workdir / "two")
    (workdir / "two" / "evaluation" / "bundles" / "zero" / "plan.json").write_bytes(b"")
    text = client.get("/results/leaderboard").text
    assert "2 methods on crossing" in text
    assert "Left out" in text
    assert "there is a newer result of this method" in text
    assert "expected a bundle that verifies" in text


def test_a_page_says_how_many_results_it_leaves_out(client, workdir, monkeypatch):
    pages = "/results/leaderboard", address(workdir, "evaluation", "one/evaluation")
    assert not [page for page in pages if "than a page shows" in client.get(page).text]
    monkeypatch.setattr("cadenza.web.result_pages.MAX_BUNDLES", 1)
    for page in pages:
        assert "1 more result than a page shows" in client.get(page).text


def test_a_training_shows_its_returns_and_evaluations_also_while_it_runs(client, workdir):
    places = [trained(workdir / f"{done}", 7, finished=done) for done in (True, False)]
    for place, state in zip(places, ("finished", "running"), strict=True):
        text = page_of(client, workdir, "training", place)
        assert "3 of 4 solved" in text
        assert f"{state}: ego_aht_happo on push, 400 steps" in text
        assert f'<h1>ego_aht_happo on push, seed 7</h1><p class="soft">{place}</p>' in text
    assert "1 training episode;" in text


def test_trainings_with_several_seeds_show_their_mean(client, workdir):
    for seed in (0, 2):
        trained(workdir / "many" / "training" / f"seed{seed}", seed)
    text = page_of(client, workdir, "seeds", "many")
    assert "<h1>ego_aht_happo on push, seed 0, seed 2</h1>" in text
    assert "seed 2, 400 steps: 4.5" in text  # (3 + 4 + 5 + 6) / 4; of seed 0 it is 2.5
    assert "2 seeds, 400 steps; mean at the last common step 3.50" in text
    assert "2 seeds, 400 steps; mean at the last common step 0.75" in text


def test_a_matrix_shows_every_cell_with_its_interval_and_how_families_differ(client, workdir):
    compared(workdir / "zoo")
    text = page_of(client, workdir, "matrix", "zoo")
    cells = re.findall(r"(\d+\.0) %</text><text[^>]*>\[10\.0, 90\.0\]", text)
    assert cells == ["75.0", "25.0", "100.0", "50.0"]
    assert "0.100 [0.050, 0.200]" in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    ("kind", "place", "name", "content"),
    [
        ("matrix", "x", "matrix.json", b"{}"),
        ("matrix", "x", "matrix.json", b'{"cells": [[1]], "partners": 3}'),
        ("matrix", "x", "matrix.json", b" " * (1 << 20) + b"{}"),
        ("training", "x/a.run.json", "a.run.json", b"[]"),
        ("training", "x/a.run.json", "a.run.json", b'{"config": {"seed": "<img src=x>"}}'),
        ("recording", "x", "draws.jsonl", b"\x00\n"),
        ("stream", "x/s.json", "s.json", b'{"producers": 1, "replay_ratio": []}'),
        ("stream", "x/s.json", "s.json", b'{"producers" "replay_ratio"' + b"[" * 9_999),
    ],
)
def test_a_foreign_file_gives_a_sentence(client, workdir, kind, place, name, content):
    (workdir / "x").mkdir()
    (workdir / "x" / name).write_bytes(content)
    text = page_of(client, workdir, kind, place)
    assert 'class="message bad"' in text
    assert "<img" not in text


def test_a_stream_shows_its_counters_and_its_producers(client, workdir):
    streamed(workdir / "status.json")
    text = page_of(client, workdir, "stream", "status.json")
    assert "Stream of process 7: STOPPED" in text
    assert "7 episodes, 7 steps, 0 steps/s, 7 dropped" in text
    assert re.search(r'<td class="n">41</td><td class="n">6</td><td class="n">60</td>', text)
    assert "producer 0: &lt;b&gt;x" in text
    assert f'data-live="/live{address(workdir, "stream", "status.json")}"' in text


def test_a_film_is_served_by_its_digest_and_other_files_are_not(client, workdir):
    (workdir / "one" / "film.mp4").write_bytes(b"film")
    (workdir / "one" / "film.gif").write_bytes(b"gif")
    for name, kind, content in (("mp4", "video/mp4", b"film"), ("gif", "image/gif", b"gif")):
        where = address(workdir, "film", f"one/film.{name}")
        answer = client.get(f"{where}/film")
        assert (answer.headers["content-type"], answer.content) == (kind, content)
        assert f'src="{where}/film"' in page_of(client, workdir, "bundle", GOAL)
    assert client.get(f"{address(workdir, 'bundle', GOAL)}/film").status_code == 404


def test_the_overview_is_narrowed_to_places(client, workdir):
    trained(workdir / "crossing-1", 1)
    text = client.get("/results", params={"text": "Crossing-1/"}).text
    assert "crossing-1/artifacts" in text
    assert "bundles" not in text
    assert "No place fits" in client.get("/results", params={"text": "<b>"}).text


def test_a_page_that_would_wait_long_says_so_and_is_computed_once(workdir, monkeypatch):
    monkeypatch.setattr("cadenza.web.findings.WAIT_S", 0.01)
    findings, go_on, computed = Findings(workdir), threading.Event(), []

    def slow():
        computed.append(1)
        assert go_on.wait(30.0)
        return "done"

    for _ in range(2):
        with pytest.raises(NotReadyError, match="still being computed"):
            findings.computed("page", "state", slow)
    go_on.set()
    monkeypatch.setattr("cadenza.web.findings.WAIT_S", 30.0)
    assert findings.computed("page", "state", slow) == "done"
    assert computed == [1]


def test_a_page_that_gives_way_to_others_before_its_turn_says_so(workdir, monkeypatch):
    monkeypatch.setattr("cadenza.web.findings.WAIT_S", 0.01)
    findings, go_on = Findings(workdir), threading.Event()
    for page in ("first", "second"):  # as many as are computed at once
        with pytest.raises(NotReadyError):
            findings.computed(page, "state", lambda: go_on.wait(30.0))
    monkeypatch.setattr("cadenza.web.findings._KEPT", 0)
    with pytest.raises(NotReadyError):
        findings.computed("third", "state", lambda: "done")
    go_on.set()


def test_a_page_that_waits_loads_itself_again_and_leads_back(client, monkeypatch):
    monkeypatch.setattr("cadenza.web.findings.WAIT_S", 0.0)
    answer = client.get("/results/leaderboard")
    assert (answer.status_code, answer.headers["refresh"]) == (503, "5; url=/results/leaderboard")
    assert '<a href="/results">All results</a>' in answer.text


def test_the_badge_names_who_signed_by_the_keys_that_the_repository_trusts(
    client, workdir, tmp_path, monkeypatch
):
    line = make_key(tmp_path / "key")
    (tmp_path / "allowed_signers").write_text(f"ada@example.org {line}")
    sign_verified(workdir / GOAL, tmp_path / "key")
    where = address(workdir, "bundle", GOAL)
    assert "signed with key SHA256:" in client.get(where).text
    monkeypatch.chdir(tmp_path)
    assert "<span>signed by ada@example.org</span>" in pressed_verify(client, where)
    (tmp_path / "allowed_signers").write_text("")
    text = pressed_verify(client, where)
    assert "is not among the allowed signers" in text
    assert 'class="badge bad"' in text


@pytest.fixture
def registered(tmp_path):
    """A repository whose tag locks what a bundle below ``runs`` was registered with."""
    repo = tmp_path / "repo"
    repo.mkdir()
    request = make_request()
    document = {
        "task_id": "crossing",
        "git_tag": "prereg-x",
        "parameters": {"evaluation": registered_block(request.plan, request.settings)},
        "decision_rules": "fewer contacts",
    }
    (repo / "p.yaml").write_text(yaml.safe_dump(document))
    for arguments in (
        ["init", "--quiet"],
        ["add", "."],
        ["commit", "--quiet", "--message", "x"],
        ["tag", "prereg-x"],
    ):
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
        subprocess.run(git, cwd=repo, check=True, capture_output=True)
    copy = locked_registration("prereg-x", Path("p.yaml"), repo_path=repo)
    folder = tmp_path / "runs" / "mine"
    write_bundle_dir(folder, build_bundle_files(make_request(prereg=copy)))
    return repo, tmp_path / "runs"


def test_a_registration_is_checked_in_the_repository_around_the_bundle_or_the_named_one(
    registered, tmp_path
):
    repo, runs = registered
    shutil.copytree(runs, repo / "runs")
    away = {"repo_root": repo}, {}
    for workdir, options in ((runs, away[0]), (repo / "runs", away[1])):
        client = TestClient(create_app(workdir, tmp_path, **options), base_url="http://127.0.0.1")
        text = client.get(address(workdir, "bundle", "mine")).text
        assert 'class="badge good"' in text
        assert "Registered before it was run, under the tag prereg-x" in text
        assert "Left out" not in client.get("/results/leaderboard").text


def test_where_no_repository_holds_the_tag_figures_are_shown_and_the_badge_says_so(
    registered, tmp_path
):
    _, runs = registered
    client = TestClient(create_app(runs, tmp_path), base_url="http://127.0.0.1")
    text = client.get(address(runs, "bundle", "mine")).text
    assert re.search('class="badge warn"[^>]*>Registration not checked here: no repository', text)
    assert "Success by partner" in text
    assert "Registered before it was run" not in text
    board = client.get("/results/leaderboard").text
    assert "no repository to find prereg-x in; name it with --repo-root" in board


def test_a_named_repository_without_the_tag_does_not_verify(registered, tmp_path):
    repo, runs = registered
    subprocess.run(["git", "tag", "-d", "prereg-x"], cwd=repo, check=True)  # noqa: S607
    client = TestClient(create_app(runs, tmp_path, repo_root=repo), base_url="http://127.0.0.1")
    assert 'class="badge bad"' in client.get(address(runs, "bundle", "mine")).text


def test_keys_that_lie_around_a_bundle_are_not_trusted_but_named_ones_are(
    client, workdir, tmp_path
):
    line = make_key(tmp_path / "key")
    (workdir / "allowed_signers").write_text(f"ada@example.org {line}")
    sign_verified(workdir / GOAL, tmp_path / "key")
    where = address(workdir, "bundle", GOAL)
    assert "signed by ada" not in client.get(where).text
    app = create_app(workdir, workdir, allowed_signers=workdir / "allowed_signers")
    named = TestClient(app, base_url="http://127.0.0.1")
    assert "signed by ada@example.org" in named.get(where).text


def test_a_recording_shows_what_its_sealed_journal_holds(client, workdir):
    bodies = [{"kind": "stream", "format": 1, "byteorder": sys.byteorder}]
    bodies += [{"kind": "episode"}, {"kind": "draw"}, {"kind": "draw"}, {"kind": "end"}]
    seal, lines = "", b""
    for body in bodies:
        seal = sha256_bytes(seal.encode() + canonical_json(body))
        lines += canonical_json({"body": body, "sha256": seal}) + b"\n"
    for name, written in (("whole", lines), ("cut", lines[:-9])):
        (workdir / name).mkdir()
        (workdir / name / "draws.jsonl").write_bytes(written)
    text = page_of(client, workdir, "recording", "whole")
    assert "whole: every line fits" in text
    assert "<dt>episodes</dt><dd>1</dd><dt>draws</dt><dd>2</dd>" in text
    assert "not ended" in page_of(client, workdir, "recording", "cut")
