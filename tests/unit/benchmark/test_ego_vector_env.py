"""Options drawn per copy and episode, layouts held out by name."""

import numpy as np
import pytest

from cadenza.benchmark.ego_vector_env import Variation, open_seat
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError

CARRIED = {"bar_mass": (0.1, 2.0), "partner_delay": (0, 20), "guard": ("off", "watch")}
HELD_OUT = {"heavy": {"bar_mass": (1.5, 2.0)}, "late": {"partner_delay": (15, 20)}}


def draws(variation, count=400):
    task = get_task("cocarry_mj")
    return [variation.draw(task, episode, root_seed=3) for episode in range(count)]


def test_every_episode_has_options_of_its_own_that_its_number_repeats():
    first, again = (draws(Variation(ranges=CARRIED)) for _ in range(2))
    assert first == again
    masses = np.array([each["bar_mass"] for each in first])
    assert len(np.unique(masses)) == len(masses)
    assert (masses >= 0.1).all()
    assert (masses <= 2.0).all()
    assert {each["partner_delay"] for each in first} == set(range(21))
    assert {each["guard"] for each in first} == {"off", "watch"}


def test_held_out_layouts_are_never_drawn_and_drawn_alone_by_name():
    trained = draws(Variation(ranges=CARRIED, held_out=HELD_OUT))
    assert max(each["bar_mass"] for each in trained) < 1.5
    assert max(each["partner_delay"] for each in trained) == 14
    heavy = draws(Variation(ranges=CARRIED, held_out=HELD_OUT, layout="heavy"))
    assert min(each["bar_mass"] for each in heavy) >= 1.5
    assert max(each["partner_delay"] for each in heavy) == 20


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"held_out": {"far": {"length": (1, 2)}}}, r"held_out\.far: expected options of"),
        ({"layout": "heavy"}, "layout: expected one of no layouts, got 'heavy'"),
    ],
)
def test_variations_that_name_what_there_is_not_are_refused(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        Variation(ranges=CARRIED, **fields)


def test_layouts_that_fill_the_ranges_are_refused():
    whole = Variation(ranges={"bar_mass": (0.1, 2.0)}, held_out={"all": {"bar_mass": (0.0, 3.0)}})
    with pytest.raises(ConfigurationError, match="ranges that held-out layouts do not fill"):
        draws(whole)


class Passive:
    """Does nothing, and notes what happens."""

    def __init__(self):
        self.begun, self.scores = [], []

    def begin(self, rows, episodes):
        self.begun += zip(rows, episodes, strict=True)

    def act(self, states):
        return np.zeros((len(states), 1), np.float32)

    def end(self, rows, scores):
        self.scores += zip(rows, scores, strict=True)


@pytest.fixture
def foraging():
    pytest.importorskip("lbforaging")
    return open_seat


def test_copies_have_layouts_of_their_own_in_one_rollout(foraging):
    variation = Variation(ranges={"levels": (1, 2), "coop": (0, 1)})
    env, partner = foraging(6, task="foraging", episode_length=5, variation=variation), Passive()
    env.seat_partner(partner)
    env.reset(seed=0)
    copies = env._env._group._envs  # what no agent sees
    begun = [{k: copy.options[k] for k in ("levels", "coop")} for copy in copies]
    assert len({tuple(each.values()) for each in begun}) > 1
    for _ in range(5):
        _, _, ended, cut, info = env.step(np.zeros(6, np.int64))
    assert (ended | cut).all()
    assert info["final_obs"].shape == (6, env.single_observation_space.shape[0])
    assert partner.begun == [(row, row + 6 * round_) for round_ in (0, 1) for row in range(6)]
    assert [row for row, _ in partner.scores] == list(range(6))
    task = get_task("foraging")
    for row, copy in enumerate(copies):
        wanted = variation.draw(task, row + 6, root_seed=0)
        assert {k: copy.options[k] for k in wanted} == wanted


def test_options_that_change_what_is_seen_are_refused(foraging):
    env = foraging(8, task="foraging", variation=Variation(ranges={"foods": (1, 4)}))
    env.seat_partner(Passive())
    with pytest.raises(ConfigurationError, match="leave observations and actions as they are"):
        env.reset(seed=0)


def test_ends_that_the_task_does_not_allow_are_refused(foraging):
    with pytest.raises(ConfigurationError, match=r"env.options\['levels'\]"):
        foraging(2, task="foraging", variation=Variation(ranges={"levels": (1, 3)}))
    with pytest.raises(ConfigurationError, match="no such option"):
        foraging(2, task="foraging", variation=Variation(ranges={"mass": (1, 3)}))
