import pytest

from cadenza.benchmark.output_folder import (
    claim,
    open_job_folder,
    open_output_folder,
    set_aside_other_run,
)
from cadenza.core.errors import ConfigurationError, IntegrityError, NotReadyError, StorageError


def test_new_folder_is_created_and_can_be_resumed(tmp_path):
    folder = tmp_path / "a" / "b"
    with open_output_folder(folder, mode="resume"):  # begins it
        (folder / "result").write_text("x")
    with open_output_folder(folder, mode="resume"):
        assert (folder / "result").read_text() == "x"
    with pytest.raises(ConfigurationError, match="pass --resume"):
        open_output_folder(folder, mode="new").__enter__()


def test_overwrite_empties_our_own_folder(tmp_path):
    with open_output_folder(tmp_path, mode="new"):
        (tmp_path / "result").write_text("x")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "y").write_text("y")
    with open_output_folder(tmp_path, mode="overwrite"):
        assert not (tmp_path / "result").exists()
        assert not (tmp_path / "sub").exists()


def test_second_run_in_the_folder_is_refused_while_the_first_works(tmp_path):
    with (
        open_output_folder(tmp_path, mode="new"),
        pytest.raises(NotReadyError, match="got a running one"),
        open_output_folder(tmp_path, mode="resume"),
    ):
        pass
    with open_output_folder(tmp_path, mode="resume"):
        pass


def test_results_of_other_runs_move_next_to_the_folder_and_none_is_lost(tmp_path):
    folder = tmp_path / "run"
    for name in ("first", "second", "third"):
        with open_output_folder(folder, mode="resume"):
            set_aside_other_run(folder, name)
            (folder / "result").write_text(name)
    kept = {path.parent.name: path.read_text() for path in tmp_path.glob("*/result")}
    assert kept == {"run": "third", "run.1": "first", "run.2": "second"}
    with open_output_folder(tmp_path / "run.1", mode="resume"):  # still recognised as ours
        set_aside_other_run(tmp_path / "run.1", "first")
    assert (tmp_path / "run.1" / "result").read_text() == "first"


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
@pytest.mark.parametrize(
    ("there", "below", "error", "told"),
    [
        ("thesis.tex", "", ConfigurationError, "got a folder with"),
        ("file", "file", ConfigurationError, "expected a folder, got a file"),
        ("file", "file/below", (StorageError, ConfigurationError), "expected"),
        (".lock/", "", StorageError, "expected a folder to write to, got 'Is a directory'"),
    ],
)
def test_place_of_others_is_refused_and_never_touched(tmp_path, mode, there, below, error, told):
    if there.endswith("/"):
        (tmp_path / there).mkdir()
    else:
        (tmp_path / there).write_text("years of work")
    with pytest.raises(error, match=told):
        open_output_folder(tmp_path / below, mode=mode).__enter__()
    left = {path.name for path in tmp_path.iterdir()} - {".cadenza-output"}
    assert left == {there.strip("/")}


def refuse(folder, written=()):
    for name in written:
        (folder / name).write_text("finished")
    raise ConfigurationError("no such partner")


def test_refused_work_leaves_no_new_folder_and_no_finished_work_is_removed(tmp_path):
    job, begun = tmp_path / "job", tmp_path / "begun"
    with pytest.raises(ConfigurationError), open_output_folder(job, mode="new"):
        refuse(job, ["plan.json"])
    with pytest.raises(ConfigurationError), open_job_folder(job, "train", {}, code_sha256="0"):
        refuse(job)
    assert not job.exists()
    with pytest.raises(ConfigurationError), open_output_folder(begun, mode="new"):
        refuse(begun, ["cell"])
    assert (begun / "cell").read_text() == "finished"


ASKED = {"config": {"algo": "ppo", "partners": [{"name": "a"}, {"name": "b"}]}, "seeds": [0, 1]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"config": {**ASKED["config"], "algo": "sac"}}, "config.algo = 'ppo', got 'sac'"),
        ({"config": {"algo": "ppo", "partners": [{"name": "a"}, {"name": "c"}]}},
         "config.partners.1.name = 'b', got 'c'"),
        ({"config": {**ASKED["config"], "lr": 0.5}}, "config.lr = None, got 0.5"),
        ({"config": {"partners": ASKED["config"]["partners"]}}, "config.algo = 'ppo', got None"),
        ({"seeds": [0]}, r"seeds = \[0, 1\], got \[0\]"),
        ({"code_sha256": "f"}, "code_sha256 = None, got 'f'"),
    ],
)  # fmt: skip
def test_other_request_is_refused_by_the_setting_that_differs(tmp_path, changes, told):
    path = tmp_path / "request.json"
    claim(path, ASKED, kind="test", notes=lambda: {"commit": "1"}, growing="seeds")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=f"{told}; use another folder, or empty it"):
        claim(path, ASKED | changes, kind="test", growing="seeds")
    assert path.read_bytes() == before


def test_same_request_keeps_its_notes_and_a_list_may_grow(tmp_path):
    path = tmp_path / "request.json"
    claim(path, ASKED, kind="test", notes=lambda: {"commit": "1"})
    claim(path, ASKED | {"seeds": [0, 1, 2]}, kind="test", growing="seeds")
    again = claim(path, ASKED | {"seeds": [0, 1, 2]}, kind="test", notes=lambda: {"commit": "2"})
    assert again == ASKED | {"seeds": [0, 1, 2], "commit": "1"}
    path.write_bytes(path.read_bytes().replace(b"commit", b"commas"))
    with pytest.raises(IntegrityError):
        claim(path, ASKED, kind="test")


@pytest.mark.parametrize(
    ("there", "asked", "kind"),
    [
        ("request.json", "request.json", "zoo request"),
        ("sweep.json", "suite.json", "seeds"),
        ("plan.json", "request.json", "seeds"),
    ],
)
def test_folder_of_another_kind_of_work_is_refused_and_left_as_it_was(tmp_path, there, asked, kind):
    claim(tmp_path / there, ASKED, kind="seeds")
    before = (tmp_path / there).read_bytes()
    got = "seeds" if there == asked else there
    with pytest.raises(ConfigurationError, match=f"this kind of work, got one with '{got}'; use"):
        claim(tmp_path / asked, ASKED, kind=kind)
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_bytes() == before
