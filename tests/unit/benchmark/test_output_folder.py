import pytest

from cadenza.benchmark.output_folder import open_output_folder, set_aside_other_run
from cadenza.core.errors import ConfigurationError, NotReadyError, StorageError


def test_new_folder_is_created_and_can_be_resumed(tmp_path):
    folder = tmp_path / "a" / "b"
    with open_output_folder(folder, mode="new"):
        (folder / "result").write_text("x")
    with open_output_folder(folder, mode="resume"):
        assert (folder / "result").read_text() == "x"


def test_resume_of_a_folder_that_does_not_exist_begins_it(tmp_path):
    with open_output_folder(tmp_path / "x", mode="resume"):
        assert (tmp_path / "x").is_dir()


def test_folder_with_results_is_refused_as_new(tmp_path):
    with open_output_folder(tmp_path, mode="new"):
        (tmp_path / "result").write_text("x")
    with (
        pytest.raises(ConfigurationError, match="pass --resume"),
        open_output_folder(tmp_path, mode="new"),
    ):
        pass


def test_overwrite_empties_our_own_folder(tmp_path):
    with open_output_folder(tmp_path, mode="new"):
        (tmp_path / "result").write_text("x")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "y").write_text("y")
    with open_output_folder(tmp_path, mode="overwrite"):
        assert not (tmp_path / "result").exists()
        assert not (tmp_path / "sub").exists()


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_foreign_folder_is_never_touched(tmp_path, mode):
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(ConfigurationError, match="got a folder with"),
        open_output_folder(tmp_path, mode=mode),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with (
        pytest.raises(ConfigurationError, match="expected a folder, got a file"),
        open_output_folder(tmp_path / "x", mode="new"),
    ):
        pass


def test_second_run_in_the_folder_is_refused_while_the_first_works(tmp_path):
    with (
        open_output_folder(tmp_path, mode="new"),
        pytest.raises(NotReadyError, match="got one at work"),
        open_output_folder(tmp_path, mode="resume"),
    ):
        pass
    with open_output_folder(tmp_path, mode="resume"):
        pass


def test_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    parent = tmp_path / "file"
    parent.write_text("")
    with (
        pytest.raises((StorageError, ConfigurationError), match="expected"),
        open_output_folder(parent / "below", mode="new"),
    ):
        pass


def test_folder_whose_lock_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / ".lock").mkdir()
    with (
        pytest.raises(StorageError, match="expected a folder to write to, got 'Is a directory'"),
        open_output_folder(tmp_path, mode="new"),
    ):
        pass


def test_results_of_the_same_run_stay_where_they_are(tmp_path):
    folder = tmp_path / "run"
    for _ in range(2):
        with open_output_folder(folder, mode="resume"):
            assert set_aside_other_run(folder, "same") is None
            (folder / "result").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_results_of_other_runs_move_next_to_the_folder_and_none_is_lost(tmp_path):
    folder = tmp_path / "run"
    for name in ("first", "second", "third"):
        with open_output_folder(folder, mode="resume"):
            set_aside_other_run(folder, name)
            (folder / "result").write_text(name)
    kept = {path.parent.name: path.read_text() for path in tmp_path.glob("*/result")}
    assert kept == {"run": "third", "run.1": "first", "run.2": "second"}
    with open_output_folder(tmp_path / "run.1", mode="resume"):  # still recognised as ours
        assert set_aside_other_run(tmp_path / "run.1", "first") is None
