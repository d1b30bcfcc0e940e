import pytest

from cadenza.loop.jobs.host import Silence


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("begun\n")
    return path


def watch(log, limit_s=None):
    silence = Silence(log, log.with_suffix(""), limit_s=limit_s)
    silence.look(0.0)
    return silence


def wait(silence, begin, end):
    for moment in range(begin + 1, end + 1):
        silence.look(float(moment))
    return silence.seconds


def test_new_or_growing_files_end_it_too(log):
    folder = log.with_suffix("")
    silence = watch(log)
    assert wait(silence, 0, 40) == 40.0  # nothing there yet
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a").write_text("x")
    assert wait(silence, 40, 70) == 10.0  # looked through at 30 s and 60 s
    (folder / "data" / "a").write_text("xy")
    assert wait(silence, 70, 120) == 30.0
    assert wait(silence, 120, 320) == 230.0


def test_too_long_is_what_the_limit_says(log):
    silence = watch(log, limit_s=20.0)
    wait(silence, 0, 19)
    assert not silence.too_long
    wait(silence, 19, 20)
    assert silence.too_long
    unlimited = watch(log)
    assert wait(unlimited, 0, 5000) == 5000.0
    assert not unlimited.too_long


def test_time_that_this_process_slept_through_does_not_count(log):
    silence = watch(log)
    silence.look(3600.0)
    assert silence.seconds == 5.0
