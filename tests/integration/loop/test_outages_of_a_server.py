"""A PostgreSQL server that lets nobody in for a moment, as while it restarts."""

import json
import threading

import pytest

from cadenza.loop.orchestrator.loop import Outages
from cadenza.loop.store import JobStore
from tests.integration.loop.loop_harness import Loop, outcome_of
from tests.loop_fakes import FakeStack

#: Seconds that the server is away once the loop has met it so.
AWAY_S = 0.3


class Unreliable(FakeStack):
    """A stack during whose jobs the server goes away."""

    def __init__(self, server, name, at=(), rates=(0.5, 0.8)):
        super().__init__(rates)
        self._server = server
        self._name = name
        self._at = at
        self.returns = []

    def __call__(self, cmd, log_path):
        result = super().__call__(cmd, log_path)
        if len(self.commands) in self._at:
            self._server.close_database(self._name)
        return result

    def come_back(self):
        """Let the server come back after a while."""
        back = threading.Timer(AWAY_S, self._server.open_database, [self._name])
        back.start()
        self.returns.append(back)


@pytest.fixture
def run(postgres_server, tmp_path, monkeypatch):
    """Call it with the numbers of the jobs during which the server goes away."""
    outlast = Outages.outlast

    def run(folder, at=()):
        name = postgres_server.new_database()
        with JobStore(postgres_server.url(name)) as store:
            stack = Unreliable(postgres_server, name, at)

            def met(outages, error):
                stack.come_back()
                outlast(outages, error)

            monkeypatch.setattr(Outages, "outlast", met)
            loop = Loop(store, tmp_path / folder, stack, budgets={"max_cycles": 2})
            loop.run()
            left = outcome_of(loop, tmp_path / folder, postgres_server.url(name))
        for back in stack.returns:
            back.join()
        postgres_server.drop_database(name)
        return left, loop.folder / "incidents.jsonl"

    return run


def test_a_server_that_is_away_for_a_moment_ends_no_run(run):
    undisturbed, _ = run("undisturbed")
    disturbed, incidents = run("disturbed", at=(1, 3, 4))
    assert disturbed == undisturbed
    kinds = [json.loads(line)["kind"] for line in incidents.read_text().splitlines()]
    assert kinds.count("store_away") == 3
