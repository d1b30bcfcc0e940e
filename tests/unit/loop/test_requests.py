"""Requests to a run from outside, in every order with a controller that takes it."""

import pytest

from cadenza.loop.requests import stop_run
from tests.loop_runs import RUN, begun_run


@pytest.fixture
def store(tmp_path):
    with begun_run(tmp_path) as opened:
        yield opened


def test_a_controller_that_takes_the_run_meanwhile_hears_the_request(store, tmp_path, monkeypatch):
    acquire = store.leases.acquire

    def too_late(*arguments, **options):
        acquire(RUN, "a controller", ttl_s=60.0, to_work=True)
        return acquire(*arguments, **options, gone=lambda _: False)

    monkeypatch.setattr(store.leases, "acquire", too_late)
    outcome = stop_run(store, RUN, workdir=tmp_path)
    assert outcome.controller == "a controller"
    assert store.stop_requested(RUN)
