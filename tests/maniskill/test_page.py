"""The programs on the page about these tasks, as printed."""

import pytest

from tests.integration.docs.pages import execute

pytestmark = pytest.mark.usefixtures("without_renderer")


def test_programs_of_the_page_run_and_print_what_it_says(capsys):
    names = execute("how-to/maniskill.md")
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == ["(53,)", "True", "torch.Size([1, 42])"]
    assert printed[3] == "{'panda_wristcam': 18, 'fetch': 30, 'allegro_hand_right': 67}"
    assert min(names["gaps"]) > 0.0
    assert names["jacobian"].shape == (1000, 6, 7)
