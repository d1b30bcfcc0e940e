"""What keeps the server's connections from being held up, and whom it believes about addresses."""

import http.client
import os
import socket
import time
from pathlib import Path

import pytest

from cadenza.web import server
from tests.dashboards import WORD, furnished, serving


@pytest.fixture
def folders(tmp_path):
    return furnished(tmp_path)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nform=",
        b"GET /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "half a head", "half a form", "a body that never comes"],
)
def test_half_a_request_is_not_waited_for(folders, monkeypatch, begun):
    monkeypatch.setattr(server, "REQUEST_S", 0.5)
    with serving(*folders) as address, socket.create_connection(address, timeout=30.0) as visitor:
        visitor.sendall(begun)
        try:
            while visitor.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass


def test_a_request_that_comes_in_pieces_is_answered(folders, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_S", 30.0)
    with serving(*folders) as address, socket.create_connection(address, timeout=30.0) as visitor:
        for piece in (b"GET /login HTTP/1.1\r\nHo", b"st: localhost\r\nConnection: ", b"close\r\n"):
            visitor.sendall(piece)
        visitor.sendall(b"\r\n")
        assert visitor.recv(1 << 16).startswith(b"HTTP/1.1 200")


def is_open(film):
    links = (one for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return any(os.path.realpath(one) == str(film) for one in links)


def wait_until(condition):
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_takes_nothing_of_an_answer_is_cut_off(folders, monkeypatch):
    monkeypatch.setattr(server, "TAKING_S", 0.5)
    film = folders[0] / "film.mp4"
    with film.open("wb") as file:
        file.truncate(1 << 28)
    with serving(*folders) as address, socket.create_connection(address, timeout=30.0) as visitor:
        visitor.sendall(b"GET /api/video?path=runs/film.mp4 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: is_open(film))
        wait_until(lambda: not is_open(film))


def status_of(address, word, forwarded):
    connection = http.client.HTTPConnection(*address, timeout=30.0)
    headers = {"authorization": f"Bearer {word}", "x-forwarded-for": forwarded}
    connection.request("GET", "/api/runs", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_behind_a_proxy_that_is_named_nobody_locks_others_out(folders):
    with serving(*folders, token=WORD, proxies=("127.0.0.0/8",)) as address:
        for _ in range(10):
            assert status_of(address, "wrong", "10.0.0.1") == 401
        assert status_of(address, WORD, "10.0.0.1") == 429
        assert status_of(address, WORD, "10.0.0.2") == 200
        assert status_of(address, WORD, "10.0.0.2, 10.0.0.1") == 429  # the proxy saw the last one


def test_what_others_forward_is_not_believed(folders):
    with serving(*folders, token=WORD) as address:
        for number in range(10):
            assert status_of(address, "wrong", f"10.0.0.{number}") == 401
        assert status_of(address, WORD, "10.0.0.99") == 429
