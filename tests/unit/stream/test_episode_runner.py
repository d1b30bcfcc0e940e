"""Environments played into a store, in this process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scipy.stats import chisquare

from cadenza.core.errors import InputError, OnlineDataWorkerError
from cadenza.stream.back_pressure import fills_asked, may_publish, request_fill
from cadenza.stream.bridges.episodes import Episode, EpisodeReader
from cadenza.stream.config import FlowRules, OnlineDataEngineCfg
from cadenza.stream.counters import ProducerRow
from cadenza.stream.environment import Worlds, make_worlds, space_fields
from cadenza.stream.layout import BOOKKEEPING, StoreLayout
from cadenza.stream.policies import DemonstrationPolicy, StreamPolicy
from cadenza.stream.producer import EpisodeRunner
from cadenza.stream.slots import ProducerState, SlotStore
from tests.stream_worlds import CountingEnv, HalfPolicy, counting

#: Steps of short and of long episodes, and the share of long ones.
SHORT, LONG, LONG_SHARE = 2, 30, 0.18


class NumberingPolicy(HalfPolicy):
    """Does in every environment what tells it from the others."""

    def act(self, observations: Any) -> Any:
        return np.arange(self.count)[:, None] / 8


def filled_by_two(lengths: Sequence[int], fills: int) -> list[list[Episode]]:
    """Return the episodes of each fill of 16, from two producers of which one is much faster.

    Environment e of producer p begins with length 400 * (2 p + e).
    """
    makers = [lambda own=400 * i: CountingEnv(own, lengths) for i in range(4)]
    envs = [
        SyncVectorEnv(two, autoreset_mode=AutoresetMode.SAME_STEP)
        for two in (makers[:2], makers[2:])
    ]
    layout = StoreLayout(
        slots=20, steps=LONG, producers=2, fields=(*space_fields(envs[0]), *BOOKKEEPING)
    )
    store, rules = SlotStore.create(layout), FlowRules.of(OnlineDataEngineCfg(buffer_size=16))
    store.producers["state"][:] = ProducerState.RUNNING
    runners = [
        EpisodeRunner(
            store,
            number,
            Worlds(env),
            NumberingPolicy(env, seed=0),
            counters=ProducerRow(store, number),
            may_publish=lambda count, before, number=number: may_publish(
                store, rules, count, None if before is None else (number, before)
            ),
            reuse="oldest",
            max_attempts=3,
        )
        for number, env in enumerate(envs)
    ]
    for runner in runners:
        runner.begin_all(0)
    reader, made = EpisodeReader(store), list[list[Episode]]()
    for _ in range(fills):
        request_fill(store, rules)
        while store.published() < fills_asked(store).to_fill:
            for runner, speed in zip(runners, (9, 1), strict=True):
                for _ in range(speed):
                    if runner.publish():
                        runner.step()
        made.append(reader.take())
    return made


@pytest.mark.parametrize("can_hold", [True, False])
def test_fills_take_episodes_of_every_length_environment_and_producer(
    monkeypatch, can_hold: bool
) -> None:
    if not can_hold:  # as if it were a vector environment that steps all or none
        monkeypatch.setattr(Worlds, "can_hold", False)
    rng = np.random.default_rng(5)
    lengths = np.where(rng.random(1600) < LONG_SHARE, LONG, SHORT).tolist()
    fills = filled_by_two(lengths, 40)
    for fill in fills:  # producers take turns, and so do the environments of each
        own = [(e.number % 2, float(e.steps["actions"][0, 0])) for e in fill]
        assert [own.count((p, a)) for p in (0, 1) for a in (0.0, 0.125)] == [4] * 4
    long = sum(episode.length == LONG for fill in fills for episode in fill)
    share = np.array([LONG_SHARE, 1 - LONG_SHARE])
    assert chisquare([long, 640 - long], 640 * share).pvalue > 1e-3
    for producer, row in ((p, e) for p in (0, 1) for e in (0, 1) if can_hold):
        mine = [
            e.length
            for fill in fills
            for e in fill
            if (e.number % 2, float(e.steps["actions"][0, 0])) == (producer, row / 8)
        ]
        begin = 400 * (2 * producer + row)
        assert mine == lengths[begin : begin + 160]  # nothing is left out


class WordyPolicy(HalfPolicy):
    """Uses everything that a policy may have."""

    def __init__(self, env: Any, seed: int = 0) -> None:
        super().__init__(env, seed)
        self.begun: list[list[int]] = []
        self.t = 0

    def reset(self, rows: Any) -> None:
        self.begun.append(rows.tolist())

    def act(self, observations: Any) -> Any:
        self.t += 1
        return super().act(observations)

    def segment_ids(self) -> Any:
        return np.full(self.count, self.t // 3)

    def success(self, infos: Any) -> Any:
        return [False, True]


def runner_over(
    policy: type[Any] = HalfPolicy,
    *,
    slots: int = 8,
    lengths: tuple[int, ...] = (4,),
    reuse: Any = "oldest",
    allowed: Sequence[int] = (10**9,),
    mode: str = "SAME_STEP",
    **worlds: Any,
) -> tuple[EpisodeRunner, SlotStore, StreamPolicy]:
    """Return a runner of two environments whose episodes have the given lengths."""
    env = counting(2, lengths, mode, **worlds)
    layout = StoreLayout(
        slots=slots, steps=6, producers=1, fields=(*space_fields(env), *BOOKKEEPING)
    )
    store = SlotStore.create(layout)
    made = policy(env) if policy is DemonstrationPolicy else policy(env, seed=0)
    runner = EpisodeRunner(
        store,
        0,
        Worlds(env),
        made,
        counters=ProducerRow(store, 0),
        may_publish=lambda published, before: published < allowed[0],
        reuse=reuse,
        max_attempts=3,
    )
    return runner, store, made


@pytest.mark.parametrize(
    ("method", "answer", "told"),
    [
        ("act", np.zeros((1, 1)), r"WordyPolicy.act\(.*each of 2 env.*got shape \(1, 1\)"),
        ("act", None, r"WordyPolicy.act\(observations\): .*each of 2 env.*got NoneType"),
        ("segment_ids", np.zeros(1), r"WordyPolicy.segment_ids\(.*each of 2 env.*got shape \(1,\)"),
    ],
)
def test_policies_must_answer_for_every_environment(monkeypatch, method, answer, told) -> None:
    monkeypatch.setattr(WordyPolicy, method, lambda *_: answer)
    runner, _, _ = runner_over(WordyPolicy)
    runner.begin_all(0)
    with pytest.raises(InputError, match=told):
        runner.step()


def test_policy_names_parts_and_judges_episodes() -> None:
    runner, store, policy = runner_over(WordyPolicy)
    runner.begin_all(0)
    for _ in range(4):
        runner.step()
    assert store.success[:2].tolist() == [0, 1]
    # Answers 1 ... 4 belong to parts 0, 0, 1, 1.
    assert store.entries("segment_id", 0)[:4].tolist() == [0, 0, 1, 1]
    assert store.segment_bounds[0, :2].tolist() == [[0, 2], [2, 4]]
    assert isinstance(policy, WordyPolicy)
    assert policy.begun == [[0, 1], [0, 1]]
    assert store.producers["episodes"][0] == 2
    assert store.producers["frames"][0] == 8


def test_episode_that_may_not_be_published_waits_and_nothing_is_lost() -> None:
    limit = [1]
    runner, store, _ = runner_over(allowed=limit)
    runner.begin_all(0)
    for _ in range(4):
        runner.step()
    assert np.count_nonzero(store.length) == 1
    assert not runner.publish()  # so nothing may be stepped
    assert np.count_nonzero(store.lease) == 2
    limit[0] = 3
    assert runner.publish()
    assert np.count_nonzero(store.length) == np.count_nonzero(store.lease) == 2
    for _ in range(4):
        runner.step()
    assert store.published() == 3


def test_every_step_notes_the_policy_that_chose_its_action() -> None:
    runner, store, _ = runner_over(lengths=(4, 4))
    runner.begin_all(0)
    for version in (0, 0, 5, 6):
        runner.policy_version = version
        runner.step()
    slot = int(np.flatnonzero(store.length == 4)[0])
    assert store.entries("policy_version", slot)[:4].tolist() == [0, 0, 5, 6]
    assert store.policy_version[slot] == 0


@pytest.mark.parametrize(("reuse", "replaced"), [("oldest", 0), ("most_drawn", 1)])
def test_setting_says_which_episode_goes(reuse, replaced) -> None:
    runner, store, _ = runner_over(slots=5, reuse=reuse, lengths=(1,))
    runner.begin_all(0)
    runner.step()  # publishes slots 0 and 1 and begins in 2 and 3
    store.draws[:2] = (1, 9)
    runner.step()  # publishes 2 and 3; 4 is empty, one more has to be replaced
    assert np.flatnonzero(store.lease).tolist() == [replaced, 4]


def test_dropped_slots_are_given_back() -> None:
    runner, store, _ = runner_over()
    runner.begin_all(0)
    runner.step()
    runner.drop_all()
    assert not store.lease.any()
    assert not store.length.any()


def test_attempts_in_a_row_are_counted_anew_after_a_success() -> None:
    settings: dict[str, Any] = {"lengths": (4, 4), "mode": "NEXT_STEP"}
    runner, store, _ = runner_over(DemonstrationPolicy, success_every=3, **settings)
    for _ in range(6):
        runner.begin_all(0)
        for _ in range(4):
            runner.step()
    # Episodes 0, 1, 3, 4 of both environments failed: never more than four in a row.
    assert store.producers["dropped"][0] == 8
    assert store.producers["episodes"][0] == 4
    always, dropping, _ = runner_over(DemonstrationPolicy, success_every=99, **settings)

    def play() -> None:
        for _ in range(3):
            always.begin_all(0)
            for _ in range(4):
                always.step()

    with pytest.raises(OnlineDataWorkerError, match="of the last one, it did not succeed"):
        play()
    assert dropping.producers["dropped"][0] == 6  # three for each of two environments


def test_settings_of_the_simulator_and_the_action_reach_the_environment() -> None:
    gym = {"factory": "tests.stream_worlds:remembered", "num_envs": 2, "headless": False}
    env: Any = make_worlds({**gym, "kwargs": {"a": 1}}, {"b": 2}, 5)
    assert env.given == {"headless": False, "a": 1, "b": 2}
