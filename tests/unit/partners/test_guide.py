"""The code of `docs/how-to/add-a-partner.md` works as printed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from cadenza.aht.config import load_config
from cadenza.partners.registry import cards, isolated_registry

REPOSITORY = Path(__file__).parents[3]
GUIDE = REPOSITORY / "docs" / "how-to" / "add-a-partner.md"


@pytest.fixture
def polite():
    """The partner the guide ends up with."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names = {"__name__": "guide"}
    with isolated_registry():
        for block in blocks:
            exec(compile(block, str(GUIDE), "exec"), names)  # noqa: S102 - our own text
        assert "wait_distance" in cards()["crossing_polite"].options
        yield names["partner"]


def obs_with(*rows):
    return {"agent": {"partner": {"state": np.array(rows, dtype=np.float32).squeeze()}}}


def test_partner_of_the_guide_waits_for_a_near_ego_and_drives_past_a_far_one(polite):
    far = [0, 0, 0, 0, 0.4, 0, 2, 0, 0, 0]
    near = [0, 0, 0.2, 0, 0.4, 0, 0.5, 0, 0, 0]
    assert polite.act(obs_with(far)) == pytest.approx([0.2, 0.0])  # 0.5 * 0.4
    assert polite.act(obs_with(near)) == pytest.approx([-0.3, 0.0])  # -1.5 * 0.2
    batch = polite.act(obs_with(far, near))
    assert batch[:, 0] == pytest.approx([0.2, -0.3])


def test_train_command_of_the_guide_leaves_no_option_of_another_partner():
    (line,) = re.findall(r"^cadenza train (.*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    file, *overrides = shlex.split(line)
    partner = load_config(config_path=REPOSITORY / file, overrides=overrides).partner
    assert partner.class_name == "crossing_polite"
    assert partner.extra == {"uid": "partner"}
