"""The guard in front of every route: hosts, the token, forms, sizes, paths."""

import pytest
from starlette.routing import Mount
from starlette.testclient import TestClient

from cadenza.loop.store import JobStore
from cadenza.web import create_app
from cadenza.web.security import SESSION
from tests.dashboards import CANARY, WORD, furnished, token_in
from tests.loop_runs import RUN

FORM = {"reason": "why", "by": "Ada"}


@pytest.fixture
def folders(tmp_path):
    return furnished(tmp_path)


def client_of(folders, **options):
    app = create_app(*folders, **options)
    client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
    client.app = app
    return client


def routes_of(app):
    """Return an address of every route and its methods."""
    values = {"run_id": RUN, "cycle": "1", "stage": "train", "seq": "1", "number": "0"}
    values |= {"action": "stop", "name:path": "tasks/crossing.md", "name": "x"}
    values |= {"result_id": "x"}
    for path, methods in found_in(app.routes):
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", value)
        yield path, methods


def found_in(routes):
    for route in routes:
        if isinstance(route, Mount):
            continue
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is not None and not hasattr(route, "methods"):
            yield from found_in(inner.routes)
        else:
            yield route.path, route.methods


def test_every_route_but_the_login_demands_the_token(folders):
    client = client_of(folders, token=WORD)
    routes = list(routes_of(client.app))
    assert len(routes) > 15
    for path, methods in routes:
        if path == "/login":
            continue
        for method in methods - {"HEAD"}:
            answer = client.request(method, path)
            is_page = method == "GET" and not path.startswith(("/api/", "/live/", "/metrics"))
            assert answer.status_code == (303 if is_page else 401), (method, path)
            if is_page:
                assert answer.headers["location"].startswith("/login?next=")
    assert client.get("/static/style.css").status_code == 200


def test_a_program_sends_the_token_and_a_wrong_one_is_refused_until_it_must_wait(folders):
    client = client_of(folders, token=WORD)
    right, wrong = ({"authorization": f"Bearer {word}"} for word in (WORD, f"{WORD}x"))
    assert client.get("/api/runs", headers=right).status_code == 200
    for _ in range(10):
        assert client.get("/api/runs", headers=wrong).status_code == 401
    refused = client.get("/api/runs", headers=right)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")


def test_the_login_sets_a_cookie_that_no_script_reads_and_leads_to_own_pages_only(folders):
    client = client_of(folders, token=WORD)
    for target, place in (("/knowledge", "/knowledge"), ("//evil.example", "/"), ("/\\evil", "/")):
        client.cookies.clear()
        form = token_in(client.get("/login").text)
        wrong = client.post("/login", data={"form": form, "token": "x", "next": target})
        assert wrong.status_code == 401
        answer = client.post("/login", data={"form": form, "token": WORD, "next": target})
        assert (answer.status_code, answer.headers["location"]) == (303, place)
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert WORD not in cookie
        assert client.get("/api/runs").status_code == 200
    client.post("/logout", data={"form": form})
    assert client.get("/api/runs").status_code == 401


def test_a_session_ends_at_the_logout_even_if_somebody_kept_its_cookie(folders):
    client = client_of(folders, token=WORD)
    form = token_in(client.get("/login").text)
    client.post("/login", data={"form": form, "token": WORD})
    kept = client.cookies[SESSION]
    assert client.get("/api/runs").status_code == 200
    client.post("/logout", data={"form": form})
    client.cookies[SESSION] = kept
    assert client.get("/api/runs").status_code == 401


def test_a_foreign_host_is_refused(folders):
    client = client_of(folders)
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert client.get("/api/runs", headers={"host": host}).status_code == 421
    assert client.get("/api/runs", headers={"host": "localhost:8321"}).status_code == 200
    named = client_of(folders, names=("lab.example",))
    assert named.get("/api/runs", headers={"host": "lab.example"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "changed", "status"),
    [
        ({}, {}, 303),
        ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"}, {}, 303),
        ({"sec-fetch-site": "cross-site"}, {}, 403),
        ({"sec-fetch-site": "same-site"}, {}, 403),
        ({"origin": "http://evil.example"}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"origin": "http://127.0.0.1:9999"}, {}, 403),
        ({}, {"form": "0" * 64}, 403),
        ({}, {"form": "é"}, 403),
        ({"content-type": "text/plain"}, {}, 415),
        ({"content-type": "application/json"}, {}, 415),
    ],
)
def test_a_button_works_only_from_this_servers_page(folders, headers, changed, status):
    client = client_of(folders)
    form = {"form": token_in(client.get(f"/runs/{RUN}").text), **FORM, **changed}
    assert client.post(f"/runs/{RUN}/stop", data=form, headers=headers).status_code == status
    with JobStore(folders[0] / "cadenza.db") as store:
        assert store.stop_requested(RUN) is (status == 303)


def test_a_form_is_refused_without_the_cookie_of_its_visitor(folders):
    client = client_of(folders)
    form = {"form": token_in(client.get(f"/runs/{RUN}").text), **FORM}
    other = client_of(folders)
    assert other.post(f"/runs/{RUN}/stop", data=form).status_code == 403
    client.cookies.clear()
    assert client.post(f"/runs/{RUN}/stop", data=form).status_code == 403


def test_a_program_with_the_token_needs_no_form(folders):
    client = client_of(folders, token=WORD)
    answer = client.post(
        f"/runs/{RUN}/stop", data=FORM, headers={"authorization": f"Bearer {WORD}"}
    )
    assert answer.status_code == 303


def test_a_large_body_and_many_fields_are_refused(folders):
    client = client_of(folders)
    assert client.post(f"/runs/{RUN}/stop", data={"reason": "x" * 70_000}).status_code == 413
    many = {f"f{number}": "1" for number in range(40)}
    assert client.post(f"/runs/{RUN}/stop", data=many).status_code == 400


def test_looking_changes_nothing(folders):
    client = client_of(folders)
    for action in ("approve", "reject", "stop", "resume"):
        assert client.get(f"/runs/{RUN}/{action}").status_code in (404, 405)
    with JobStore(folders[0] / "cadenza.db") as store:
        assert not store.stop_requested(RUN)


@pytest.mark.parametrize(
    "path",
    [
        "/api/video?path=runs/link.mp4",
        "/api/video?path=runs/linked/secret.mp4",
        "/api/video?path=runs/cadenza.db.mp4",
        "/api/video?path=../secret/secret.mp4",
        "/api/video?path=runs/../secret/secret.mp4",
        "/api/video?path=/etc/passwd",
        "/api/video?path=%00.mp4",
        "/knowledge/link.md",
        "/knowledge/../secret/secret.md",
        "/knowledge/%2e%2e/secret/secret.md",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        f"/runs/{RUN}/cycles/1/log/..%2f..%2fsecret",
        f"/live/runs/{RUN}/log?name=../secret/secret.log",
    ],
)
def test_no_path_leads_out_of_the_folders(folders, path):
    answer = client_of(folders).get(path)
    assert answer.status_code in (307, 404)
    assert CANARY not in answer.text


def test_a_log_that_is_a_link_out_of_the_folder_is_not_shown(folders):
    answer = client_of(folders).get(f"/runs/{RUN}/cycles/0/log/eval_candidate_0")
    assert answer.status_code == 200
    assert CANARY not in answer.text
    assert CANARY not in client_of(folders).get("/api/knowledge").text
    assert CANARY not in client_of(folders).get("/knowledge").text


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://ada:hush-hush@127.0.0.1:1/x?sslpassword=hush-hush",
        "postgresql+psycopg://ada:hush-hush@127.0.0.1:1/x?nonsense=1",
        "postgresql://ada:hush-hush@[/x",
        "mysql://ada:hush-hush@db/x",
    ],
)
def test_a_store_that_does_not_answer_tells_no_password(folders, store, caplog):
    client = client_of(folders, store=store)
    for path in (
        "/",
        f"/runs/{RUN}",
        f"/runs/{RUN}/events",
        "/api/runs",
        "/metrics",
        "/compare?run=a&run=b",
    ):
        answer = client.get(path)
        assert answer.status_code in (409, 503)
        assert "hush-hush" not in answer.text
        assert "Traceback" not in answer.text
    assert "hush-hush" not in caplog.text
