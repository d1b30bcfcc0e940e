"""Progress where stderr is no terminal."""

import re
import threading

import pytest

from cadenza.core import progress
from cadenza.core.progress import progress_bar


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)


def test_without_terminal_the_last_report_is_a_plain_line_again_and_again(capsys):
    shown = ""
    with progress_bar("training") as report:
        report(7, 9, "return 1.5")
        while shown.count("training: 7 of 9, return 1.5 (") < 2:  # though it is reported once
            shown += capsys.readouterr().err
    shown += capsys.readouterr().err
    assert re.fullmatch(r"((started|training: 7 of 9, return 1\.5) \(\d+ s\)\n)+", shown)
    assert not [thread for thread in threading.enumerate() if thread.name == "cadenza-progress"]


def test_quiet_shows_nothing(capsys):
    with progress_bar("training", quiet=True) as report:
        report(3, 9, "")
        assert not [thread for thread in threading.enumerate() if thread.name == "cadenza-progress"]
    assert capsys.readouterr().err == ""
