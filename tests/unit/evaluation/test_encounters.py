"""Golden values of adaptation, by hand."""

import pytest
from pydantic import ValidationError

from cadenza.evaluation.encounters import Encounters, EncounterSeries


def met(metric="return", **changes):
    """Return three series of three encounters, two of seed 0 and one of seed 1."""
    one = {
        "ego": "liam",
        "partner": "mate",
        "seeds": (0, 0, 1),
        "reset": ((1.0, 1.0, 2.0), (3.0, 1.0, 2.0), (5.0, 0.0, 0.0)),
        "kept": ((1.0, 2.0, 4.0), (3.0, 2.0, 5.0), (5.0, 3.0, 3.0)),
        "progress": ((0.0, 1.0), (1.0, 3.0), (2.0, 5.0)),
    }
    series = EncounterSeries(**{**one, **changes})
    return Encounters(task="crossing@v1", metric=metric, times=(5, 10), series=(series,))


def test_scores_by_encounter_weigh_seeds_alike():
    # encounter 3, kept: seed 0 has (4 + 5) / 2, seed 1 has 3, so 3.75
    assert [e.value for e in met().by_encounter("liam", "kept")] == [3.5, 2.5, 3.75]
    assert [e.value for e in met().by_encounter("liam", "reset")] == [3.5, 0.5, 1.0]
    assert [e.value for e in met().by_time("liam")] == [1.25, 3.5]


def test_gain_is_kept_minus_reset_after_the_first_encounter():
    # seed 0: (1 + 2 + 1 + 3) / 4 = 1.75, seed 1: (3 + 3) / 2 = 3, mean 2.375, t(1) = 12.706
    found = met().gain("liam")
    assert (found.value, found.n, found.n_clusters) == (2.375, 6, 2)
    assert found.low == pytest.approx(2.375 - 12.7062 * 0.625, abs=1e-3)
    assert met().gain("liam", ["somebody else"]) is None


def test_ego_without_memory_has_no_gain():
    alone = met(kept=None)
    assert alone.by_encounter("liam", "kept") == []
    assert alone.gain("liam") is None


def test_successes_are_rates():
    wins = ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    found = met("success", reset=wins, kept=None, progress=wins).by_encounter("liam", "reset")
    assert [e.estimator.partition("/")[0] for e in found] == ["rate", "rate"]
    assert found[0].value == pytest.approx(2 / 3)


def test_uneven_tables_are_refused():
    with pytest.raises(ValidationError, match="as many rows as seeds"):
        met(progress=((0.0,), (1.0,)))
