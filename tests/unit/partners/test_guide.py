"""The code of `docs/how-to/add-a-partner.md` works as printed."""

import re
import shlex

import numpy as np
import pytest

from cadenza.aht.config import load_config
from cadenza.benchmark.builders import partner_spec
from cadenza.partners import make_phase0_draft_zoo
from cadenza.partners.registry import cards, isolated_registry
from tests.integration.docs.pages import ROOT, execute, text

GUIDE = "how-to/add-a-partner.md"


@pytest.fixture
def guide():
    """What the programs of the guide define."""
    with isolated_registry():
        names = execute(GUIDE)
        assert "wait_distance" in cards()["crossing_polite"].options
        yield names


def obs_with(*rows):
    return {"agent": {"partner": {"state": np.array(rows, dtype=np.float32).squeeze()}}}


def test_partner_of_the_guide_waits_for_a_near_ego_and_drives_past_a_far_one(guide):
    polite = guide["partner"]
    far = [0, 0, 0, 0, 0.4, 0, 2, 0, 0, 0]
    near = [0, 0, 0.2, 0, 0.4, 0, 0.5, 0, 0, 0]
    assert polite.act(obs_with(far)) == pytest.approx([0.2, 0.0])  # 0.5 * 0.4
    assert polite.act(obs_with(near)) == pytest.approx([-0.3, 0.0])  # -1.5 * 0.2
    batch = polite.act(obs_with(far, near))
    assert batch[:, 0] == pytest.approx([0.2, -0.3])


def test_specs_of_the_guide_name_their_weights_and_a_chunk_is_played_in_ticks(guide):
    assert guide["harl"].spec.partner_id == make_phase0_draft_zoo()[2].partner_id
    assert guide["act"].card.summary.startswith("Plays a LeRobot policy")
    obs = {"agent": {"partner": {"state": np.zeros(4)}}}
    # Two ticks per action; nothing is planned for the first tick.
    turns = [float(guide["swerving"].act(obs)[1]) for _ in range(6)]
    assert turns == pytest.approx([0.0, 0.2, 0.2, 0.0, 0.0, -0.2])


def test_train_commands_of_the_guide_leave_no_option_of_another_partner():
    joined = text(GUIDE).replace("\\\n", "")
    lines = re.findall(r"^cadenza train (.*)$", joined, re.MULTILINE)
    met = []
    for line in lines:
        file, *overrides = shlex.split(line)
        met.append(load_config(config_path=ROOT / file, overrides=overrides).trained_with)
    names = [[partner.class_name for partner in partners] for partners in met[:2]]
    assert names == [["crossing_polite"], ["crossing_polite", "crossing_stationary"]]
    (frozen,) = met[2]
    assert frozen.extra == {"uid": "partner"}
    assert partner_spec(frozen).partner_id == make_phase0_draft_zoo()[1].partner_id
