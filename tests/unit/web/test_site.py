"""Files below the folders of the dashboard, while somebody moves them about."""

import pytest
from starlette.testclient import TestClient

from cadenza.core.errors import StorageError
from cadenza.web.api import film
from cadenza.web.security import Access
from cadenza.web.site import Site, open_inside
from tests.dashboards import CANARY, furnished


def test_a_film_stays_the_file_that_was_looked_at(tmp_path):
    workdir, knowledge = furnished(tmp_path)
    site = Site(workdir, knowledge, access=Access())
    answer = film(site, "runs/film.mp4")
    (workdir / "link.mp4").replace(workdir / "film.mp4")
    assert TestClient(answer).get("/").text == "film"
    assert answer._file.closed


def test_a_folder_that_became_a_link_after_the_check_leads_nowhere(tmp_path, monkeypatch):
    workdir, _ = furnished(tmp_path)
    with open_inside(workdir, "crossing-1/cycle_1/train.log") as file:
        assert file.read() == b"step 1\n"
    monkeypatch.setattr("cadenza.web.site.confined_path", lambda root, relative: root / relative)
    assert (workdir / "linked" / "secret.log").read_text() == CANARY
    with pytest.raises(StorageError, match="something else"):
        open_inside(workdir, "linked/secret.log")
