"""Resuming: exactness, damage, refusals, runs that exist already."""

import errno
import json
import os
from pathlib import Path

import pytest

from cadenza.aht.run import RunFiles, load_newest_state
from cadenza.aht.train import train
from cadenza.core.errors import CheckpointError, ConfigurationError, StorageError
from tests.campaigns import size
from tests.unit.aht.parts import (
    HalvingBatchDriver,
    HalvingDriver,
    NoisyPartner,
    NoisyPointEnv,
    PolicyOnlyTrainer,
    TallyTrainer,
    TrainerFactoryOf,
    config_in,
)


class StopError(Exception):
    """Stands for a kill."""


def run(folder: Path, *, stop_at=None, config=None, env=None, partner=None, **options):
    """Train; ``stop_at`` raises `StopError` at the first report at or beyond so many frames."""

    def progress(done, total, last):
        if stop_at is not None and done >= stop_at:
            raise StopError

    config = config or config_in(folder)
    env = env or NoisyPointEnv()
    safety = None
    if config.safety.enabled:
        count = config.env.num_envs
        safety = HalvingDriver(env) if count == 1 else HalvingBatchDriver(env, num_envs=count)
    options.setdefault("trainer_factory", TrainerFactoryOf())
    return train(
        config,
        env=env,
        partner=partner or NoisyPartner(),
        repo_root=folder,
        safety=safety,
        progress=progress,
        **options,
    )


def files_of(folder: Path) -> RunFiles:
    (card,) = (folder / "out" / "artifacts").glob("*.run.json")
    return RunFiles(
        run_id=card.name.split(".")[0],
        artifacts_root=folder / "out",
        log_dir=folder / "out" / "logs",
    )


def events(result) -> list[dict]:
    return [json.loads(line) for line in result.outcome.log_path.read_text().splitlines()]


def essence(lines: list[dict]) -> list[dict]:
    """Events without what a resume adds and without times and folders."""
    hidden = ("wall_time", "path", "origin")
    return [
        {key: value for key, value in line.items() if key not in hidden}
        for line in lines
        if line["event"] not in ("run_resumed", "training_resumed")
    ]


def assert_same_results(one, two):
    """Two results agree in everything but the log."""
    assert one.curve.run_id == two.curve.run_id
    assert one.curve.per_step_ego_rewards == two.curve.per_step_ego_rewards
    assert one.curve.episodes == two.curve.episodes
    assert one.curve.per_episode_ego_rewards == two.curve.per_episode_ego_rewards
    names = [path.name for path in one.curve.checkpoint_paths]
    assert names == [path.name for path in two.curve.checkpoint_paths]
    for first, second in zip(one.curve.checkpoint_paths, two.curve.checkpoint_paths, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert one.outcome.curve_path.read_bytes() == two.outcome.curve_path.read_bytes()
    assert one.trainer.training_state() == two.trainer.training_state()


def assert_same_run(one, two):
    """Two results agree in everything a user keeps."""
    assert_same_results(one, two)
    assert essence(events(one)) == essence(events(two))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An unbroken run; the tests only read it."""
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("stop_at", [16, 33, 40])
@pytest.mark.parametrize("safety", [False, True])
def test_resumed_run_equals_an_unbroken_one(tmp_path, stop_at, safety):
    def config(folder):
        return config_in(folder, safety={"enabled": safety})

    whole = run(tmp_path / "whole", config=config(tmp_path / "whole"))
    broken = tmp_path / "broken"
    with pytest.raises(StopError):
        run(broken, config=config(broken), stop_at=stop_at)
    resumed = run(broken, config=config(broken), resume=True)
    assert resumed.outcome.resumed_from == max(s for s in (16, 32, 40) if s <= stop_at)
    assert_same_run(resumed, whole)


def test_resume_where_a_checkpoint_meets_an_episode_end_begins_the_next_episode(tmp_path):
    def config(folder):
        return config_in(folder, checkpoint_every=7)

    whole = run(tmp_path / "whole", config=config(tmp_path / "whole"))
    with pytest.raises(StopError):
        run(tmp_path, config=config(tmp_path), stop_at=15)
    env = NoisyPointEnv()
    resumed = run(tmp_path, config=config(tmp_path), env=env, resume=True)
    assert resumed.outcome.resumed_from == 14
    assert len(env.actions) == 26  # nothing was replayed
    assert_same_run(resumed, whole)


def test_resume_of_a_finished_run_does_nothing_and_says_so(tmp_path, caplog):
    first = run(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    env, factory = NoisyPointEnv(), TrainerFactoryOf()
    with caplog.at_level("INFO"):
        again = run(tmp_path, env=env, trainer_factory=factory, resume=True)
    assert (again.outcome.status, again.outcome.frames) == ("already_finished", 40)
    assert "finished already (40 frames)" in caplog.text
    assert (env.reset_seeds, factory.loggers) == ([], [None])
    assert again.curve.episodes == first.curve.episodes
    assert again.curve.per_episode_ego_rewards == first.curve.per_episode_ego_rewards
    assert again.trainer.training_state() == first.trainer.training_state()
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    lock = {p for p in before if p.suffix == ".lock"}
    assert {p: t for p, t in after.items() if p not in lock} == {
        p: t for p, t in before.items() if p not in lock
    }


def test_states_kept_are_the_newest(tmp_path):
    run(tmp_path, config=config_in(tmp_path, resume={"keep": 1}))
    assert list(files_of(tmp_path).states()) == [40]
    assert list(files_of(tmp_path).policies()) == [16, 32, 40]


def stopped(tmp_path) -> RunFiles:
    """A run stopped at 35 frames, with states of 16 and 32."""
    with pytest.raises(StopError):
        run(tmp_path, stop_at=33)
    files = files_of(tmp_path)
    assert list(files.states()) == [16, 32]
    return files


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [flip_byte, cut, remove])
@pytest.mark.parametrize("name", ["-state_step32.pt", "-state_step32.pt.json", "_step32.pt"])
def test_damaged_newest_state_falls_back_to_the_one_before_and_heals(tmp_path, whole, damage, name):
    files = stopped(tmp_path)
    damage(files.folder / f"{files.run_id}{name}")
    resumed = run(tmp_path, resume=True)
    if (damage, name) == (remove, "-state_step32.pt"):
        assert resumed.outcome.resumed_from == 16  # a state without payload is no state
    else:
        lines = events(resumed)
        (skipped,) = [line for line in lines if line["event"] == "training_state_skipped"]
        assert "step 32" in skipped["reason"]
        assert skipped["level"] == "warning"
    without = [line for line in events(resumed) if line["event"] != "training_state_skipped"]
    assert essence(without) == essence(events(whole))
    assert resumed.curve.episodes == whole.curve.episodes
    for one, two in zip(resumed.curve.checkpoint_paths, whole.curve.checkpoint_paths, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_damage_to_every_state_is_an_error_that_names_them(tmp_path):
    files = stopped(tmp_path)
    for step in (16, 32):
        flip_byte(files.folder / f"{files.run_id}-state_step{step}.pt")
    with pytest.raises(CheckpointError, match=r"step 32: .*step 16: .*overwrite"):
        run(tmp_path, resume=True)
    assert list(files.policies()) == [16, 32]  # nothing was deleted


@pytest.mark.parametrize(
    ("source", "replaced", "told"),
    [
        ("other_step32", "_step32", "got another checkpoint"),
        ("other-state_step32", "-state_step32", "expected a training state of run {run}"),
        ("-state_step16", "-state_step32", "training state of step 32, got that of step 16"),
    ],
)
def test_file_of_another_run_or_step_is_noticed(tmp_path, source, replaced, told):
    files, other = stopped(tmp_path), tmp_path / "other"
    run(other, config=config_in(other, seed=5))
    taken = files_of(other) if source.startswith("other") else files
    for suffix in (".pt", ".pt.json"):
        content = (
            taken.folder / f"{taken.run_id}{source.removeprefix('other')}{suffix}"
        ).read_bytes()
        (files.folder / f"{files.run_id}{replaced}{suffix}").write_bytes(content)
    stored = load_newest_state(files)
    assert stored.step == 16
    assert told.format(run=files.run_id) in stored.skipped[0]


def test_finished_run_with_a_damaged_last_checkpoint_is_trained_again_from_before(tmp_path, whole):
    first = run(tmp_path)
    flip_byte(first.curve.checkpoint_paths[-1])
    healed = run(tmp_path, resume=True)
    assert (healed.outcome.status, healed.outcome.resumed_from) == ("completed", 32)
    assert healed.curve.checkpoint_paths[-1].read_bytes() == (
        whole.curve.checkpoint_paths[-1].read_bytes()
    )


def test_partner_that_does_not_repeat_is_noticed(tmp_path, monkeypatch):
    reset = NoisyPartner.reset

    def reset_otherwise(self, *, seed=None):
        reset(self, seed=None if seed is None else seed + 1)

    stopped(tmp_path)
    monkeypatch.setattr(NoisyPartner, "reset", reset_otherwise)
    with pytest.raises(CheckpointError, match="replayed episode to end in the stored observation"):
        run(tmp_path, resume=True)


class Forgetting(TallyTrainer):
    """Learner that can go on with new episodes."""

    forgot = 0

    def forget_episodes(self):
        self.forgot += 1


def test_run_that_does_not_repeat_goes_on_with_new_episodes(tmp_path, monkeypatch):
    reset, factory = NoisyPartner.reset, TrainerFactoryOf(Forgetting)
    stopped(tmp_path)

    def reset_otherwise(self, *, seed=None):
        reset(self, seed=None if seed is None else seed + 1)

    monkeypatch.setattr(NoisyPartner, "reset", reset_otherwise)
    with pytest.warns(UserWarning, match=r"new episodes begin, .* end in the stored observation"):
        resumed = run(tmp_path, resume=True, trainer_factory=factory)
    assert resumed.outcome.status == "completed"
    assert factory.built[-1].forgot == 1
    frames = config_in(tmp_path).total_frames
    assert len(resumed.curve.per_step_ego_rewards) == frames
    assert sum(e.length for e in resumed.curve.episodes) < frames  # one episode was left


def test_learner_that_cannot_load_a_state_is_refused(tmp_path):
    stopped(tmp_path)
    with pytest.raises(ConfigurationError, match="got PolicyOnlyTrainer"):
        run(tmp_path, trainer_factory=TrainerFactoryOf(PolicyOnlyTrainer), resume=True)


def test_learner_without_states_is_not_silently_started_anew(tmp_path):
    with pytest.raises(StopError):
        run(tmp_path, trainer_factory=TrainerFactoryOf(PolicyOnlyTrainer), stop_at=33)
    with pytest.raises(ConfigurationError, match="no training state to resume from"):
        run(tmp_path, trainer_factory=TrainerFactoryOf(PolicyOnlyTrainer), resume=True)


# --- runs that exist already


@pytest.mark.parametrize("stop_at", [20, None])
def test_run_again_without_a_word_is_refused_and_changes_nothing(tmp_path, stop_at):
    if stop_at is None:
        run(tmp_path)
    else:
        with pytest.raises(StopError):
            run(tmp_path, stop_at=stop_at)
    files = files_of(tmp_path)
    before = files.log.read_bytes()
    with pytest.raises(ConfigurationError, match=r"pass resume \(--resume\).*--overwrite"):
        run(tmp_path)
    assert files.log.read_bytes() == before


def test_run_again_with_overwrite_deletes_the_results_and_keeps_the_old_log(tmp_path):
    first = run(tmp_path)
    log = first.outcome.log_path.read_bytes()
    stale = first.curve.checkpoint_paths[0].with_name(f"{first.curve.run_id}_step5.pt")
    stale.write_bytes(b"left over")
    again = run(tmp_path, overwrite=True)
    assert again.outcome.resumed_from is None
    assert not stale.exists()
    assert again.outcome.log_path.with_name(again.outcome.log_path.name + ".1").read_bytes() == log
    assert again.curve.episodes == first.curve.episodes


def test_resume_and_overwrite_together_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="expected resume or overwrite, got both"):
        run(tmp_path, resume=True, overwrite=True)


def test_resume_of_a_run_by_other_code_is_refused(tmp_path):
    with pytest.raises(StopError):
        run(tmp_path, stop_at=20)
    old = files_of(tmp_path).run_id
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    with pytest.raises(ConfigurationError, match=f"got only {old} of the same configuration"):
        run(tmp_path, resume=True)
    assert run(tmp_path).curve.run_id != old  # starting anew is allowed and disturbs nothing
    assert RunFiles(run_id=old, artifacts_root=tmp_path / "out", log_dir=tmp_path).states()


# --- writes that fail


class FailingFsync:
    """Stands in for `os.fsync` and fails at one call."""

    def __init__(self, fails_at: int, error: BaseException):
        self.calls = 0
        self._fails_at = fails_at
        self._error = error
        self._fsync = os.fsync

    def __call__(self, descriptor):
        self.calls += 1
        if self.calls == self._fails_at:
            raise self._error
        self._fsync(descriptor)


def count_of_fsyncs(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        counter = FailingFsync(0, OSError())
        patch.setattr(os, "fsync", counter)
        run(folder, config=config_in(folder))
    return counter.calls


def test_every_write_that_fails_or_is_cut_short_leaves_a_run_that_resumes(tmp_path, whole):
    count = count_of_fsyncs(tmp_path / "count")
    assert count > 30
    for fails_at in range(1, count + 1, size(13, 1)):
        for error, raised in [
            (OSError(errno.ENOSPC, "No space left on device"), StorageError),
            (StopError(), StopError),
        ]:
            folder = tmp_path / f"{fails_at}{raised.__name__}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", FailingFsync(fails_at, error))
                with pytest.raises(raised):
                    run(folder, config=config_in(folder))
            resumed = run(folder, config=config_in(folder), resume=True)
            assert_same_results(resumed, whole)
