"""The seven addresses of LeAgents' dashboard, with the JSON that its page reads."""

import inspect
import json

import pytest
from starlette.testclient import TestClient

from cadenza.loop.store import JobStore
from cadenza.web import create_app
from tests.dashboards import furnished
from tests.loop_runs import RUN

ROW = {"id", "created_at", "status", "stop_reason", "config_json"}
CYCLE = {"run_id", "idx", "stage", "decision", "started_at", "finished_at"}
CHECKPOINT = {"id", "run_id", "cycle_idx", "policy_type", "path", "blessed"}


@pytest.fixture
def client(tmp_path):
    workdir, knowledge = furnished(tmp_path)
    raw = {
        "overall": {"video_paths": ["runs/film.mp4", "runs/b.mp4"]},
        "per_task": [{"metrics": {"video_paths": ["runs/b.mp4", "runs/c.mp4"]}}, {"metrics": {}}],
    }
    with JobStore(workdir / "cadenza.db") as store:
        number = store.add_checkpoint(RUN, 1, "bc", "/p")
        store.attach_eval(number, {"success_rate": 0.25, "raw": raw})
    return TestClient(create_app(workdir, knowledge), base_url="http://127.0.0.1")


def test_create_app_takes_the_two_folders_by_leagents_names():
    parameters = list(inspect.signature(create_app).parameters)
    assert parameters[:2] == ["workdir", "knowledge_root"]


def test_the_page_is_html(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert RUN in page.text


def test_runs_come_with_cycles_and_the_blessed_policy(client):
    [run] = client.get("/api/runs").json()
    assert set(run) >= ROW
    assert [cycle["idx"] for cycle in run["cycles"]] == [0, 1]
    assert set(run["cycles"][0]) >= CYCLE
    assert run["blessed"].keys() >= CHECKPOINT | {"eval_json"}
    assert json.loads(run["blessed"]["eval_json"]) == {"success_rate": 0.6}


def test_a_run_tells_its_configuration_policies_and_seconds(client):
    run = client.get(f"/api/runs/{RUN}").json()
    assert set(run) >= ROW | {"config", "cycles", "checkpoints", "blessed", "gpu_seconds"}
    assert run["config"]["budgets"]["max_cycles"] == 4
    first, second = run["checkpoints"]
    assert set(first) >= CHECKPOINT | {"success_rate"}
    assert "eval_json" not in first
    assert (first["success_rate"], second["success_rate"]) == (0.6, 0.25)
    assert run["gpu_seconds"] == 100.0 + 26.0 + 30.0  # all jobs, the running one's too
    assert client.get("/api/runs/unknown").status_code == 404


def test_films_are_named_by_cycle_once_and_in_order(client):
    assert client.get(f"/api/runs/{RUN}/videos").json() == [
        {"cycle": 0, "videos": []},
        {"cycle": 1, "videos": ["runs/film.mp4", "runs/b.mp4", "runs/c.mp4"]},
    ]


def test_a_film_is_found_beside_the_folder_of_runs_and_by_its_whole_path(client, tmp_path):
    for path in ("runs/film.mp4", str(tmp_path / "runs" / "film.mp4")):
        answer = client.get("/api/video", params={"path": path})
        assert (answer.status_code, answer.content) == (200, b"film")
        assert answer.headers["content-type"] == "video/mp4"
    for path in ("film.mp4", "runs/absent.mp4", "runs/cadenza.db", "secret/secret.mp4"):
        assert client.get("/api/video", params={"path": path}).status_code == 404


def test_events_are_read_by_the_number_of_their_line(client):
    told = client.get(f"/api/runs/{RUN}/events", params={"after": 0, "limit": 1}).json()
    [event] = told["events"]
    assert told["next"] == 1
    assert set(event) >= {"run_id", "stage", "kind", "cycle", "payload", "ts"}
    assert event["payload"]["decision"] == "promote"
    told = client.get(f"/api/runs/{RUN}/events", params={"after": 1}).json()
    assert ([one["seq"] for one in told["events"]], told["next"]) == ([2], 2)
    assert client.get("/api/runs/unknown/events?after=7").json() == {"events": [], "next": 7}


def test_knowledge_is_all_pages_in_order(client):
    [page] = client.get("/api/knowledge").json()
    assert page["path"] == "tasks/crossing.md"
    assert page["content"].startswith("---\nname: crossing")


def test_without_a_store_there_is_nothing_and_nothing_is_made(tmp_path):
    client = TestClient(create_app(tmp_path / "w", tmp_path / "k"), base_url="http://127.0.0.1")
    assert client.get("/api/runs").json() == client.get("/api/knowledge").json() == []
    assert client.get(f"/api/runs/{RUN}").status_code == 404
    assert client.get("/").status_code == 200
    assert list(tmp_path.iterdir()) == []
