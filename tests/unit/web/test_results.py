"""Pages of results: found, shown, verified anew; malformed files give a sentence."""

import json
import os
import re
import shutil

import pytest
from starlette.testclient import TestClient

from cadenza.evaluation.report.view import RECORDINGS_NAME
from cadenza.web import create_app
from cadenza.web.findings import search
from tests.dashboards import CANARY, evaluated, recorded, token_in


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
