"""The agent of a training that succeeded most often is kept."""

import numpy as np
import pytest

from cadenza.benchmark.imitation import BestSuccess
from cadenza.benchmark.policies import goal_pull
from cadenza.core.errors import InputError


class Pupil:
    """Goes to its goal at some steps, and nowhere at others."""

    def __init__(self, able_at):
        self.steps, self._able_at, self.saved = 0, able_at, []

    def predict(self, states):
        pull = np.clip(goal_pull(states), -2.0, 2.0)
        return (pull if self.steps in self._able_at else 0.0 * pull).astype(np.float32)

    def save(self, path, *, memory=True):
        self.saved.append((self.steps, memory))
        return path


def judging(pupil, path, **settings):
    return BestSuccess(pupil, path, "crossing", ["crossing_wanderer"], episodes=4, **settings)


def test_first_agent_with_the_most_successes_is_kept_without_its_memory(tmp_path):
    pupil, told = Pupil(able_at=(20, 30)), []
    best = judging(pupil, tmp_path / "best", every=10, report=lambda *at: told.append(at))
    for pupil.steps in range(4, 45, 4):
        best.end_batch()
    best.end_training()
    steps = [at for at, _ in told]
    assert steps == [12, 20, 32, 40, 44]  # the first batch of every ten steps, and the end
    assert best.best_steps == 20
    assert best.best.count == max(won.count for _, won in told) > 0
    assert pupil.saved == [(12, False), (20, False)]


def test_a_law_that_the_agent_corrects_is_judged_in_its_place(tmp_path):
    pupil = Pupil(able_at=())
    law, path = Pupil(able_at=(0,)), tmp_path / "best"
    best = judging(pupil, path, every=10, policy=lambda s: law.predict(s) + pupil.predict(s))
    best.end_training()
    assert best.best.count > 0


def test_broken_training_is_not_judged(tmp_path):
    pupil = Pupil(able_at=())
    best = judging(pupil, tmp_path / "best", every=10)
    best.end_training(RuntimeError("broken"))
    assert best.best is None
    assert pupil.saved == []


def test_judgements_need_a_rhythm(tmp_path):
    with pytest.raises(InputError, match="every: expected an integer >= 1, got 0"):
        judging(Pupil(()), tmp_path, every=0)


def test_best_of_another_training_is_not_replaced(tmp_path):
    (tmp_path / "best").write_text("of another")
    with pytest.raises(InputError, match="got the best of another training"):
        judging(Pupil(able_at=()), tmp_path / "best", every=10)
