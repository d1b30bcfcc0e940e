"""A job's folder is its own: other requests, foreign files and other processes are refused."""

import pytest

from cadenza.benchmark import output_folder
from cadenza.benchmark.output_folder import Blocks, open_job_folder
from cadenza.core.errors import ConfigurationError, NotReadyError, StorageError
from cadenza.core.strict_json import read_sealed_json


def test_same_request_finds_its_folder_again(tmp_path):
    for _ in range(2):
        with open_job_folder(tmp_path / "job", "train", {"steps": 3}) as folder:
            folder.write_result(tmp_path / "result.json", {"loss": 0.5})
    result = read_sealed_json(tmp_path / "result.json", kind="cadenza-job-result")
    assert result["request"] == {"steps": 3}
    assert result["loss"] == 0.5


@pytest.mark.parametrize(
    ("job", "asked", "told"),
    [
        ("train", {"steps": 4, "seed": 1}, r"another request \(different: steps\)"),
        ("merge", {"steps": 3, "seed": 1}, r"another request \(different: job\)"),
    ],
)
def test_other_request_is_refused_and_named(tmp_path, job, asked, told):
    with open_job_folder(tmp_path, "train", {"steps": 3, "seed": 1}):
        pass
    with pytest.raises(ConfigurationError, match=told):
        open_job_folder(tmp_path, job, asked).__enter__()
    claim = tmp_path / "job.json"
    claim.write_text(claim.read_text().replace("3", "4"))
    with pytest.raises(ConfigurationError, match=r"got a damaged job\.json"):
        open_job_folder(tmp_path, "train", {"steps": 4, "seed": 1}).__enter__()


def test_place_of_others_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigurationError, match=r"got 'thesis\.tex' in it"):
        open_job_folder(tmp_path, "train", {}).__enter__()
    with pytest.raises(StorageError, match="expected a folder to write to"):
        open_job_folder(tmp_path / "thesis.tex", "train", {}).__enter__()
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_changed_code_starts_over(tmp_path, monkeypatch):
    with open_job_folder(tmp_path, "train", {}) as folder:
        folder.work.mkdir()
        (folder.work / "state").write_text("old")
        (folder.root / "policy.pt").write_text("old")
    monkeypatch.setattr(output_folder, "source_digest", lambda: "other code")
    with open_job_folder(tmp_path, "train", {}) as folder:
        assert not folder.work.exists()
        assert not (folder.root / "policy.pt").exists()
    with open_job_folder(tmp_path, "train", {}) as folder:  # the claim names the new code now
        (folder.root / "policy.pt").write_text("new")
    with open_job_folder(tmp_path, "train", {}) as folder:
        assert (folder.root / "policy.pt").read_text() == "new"


def test_second_process_is_refused_and_let_in_afterwards(tmp_path):
    with (
        open_job_folder(tmp_path, "train", {}),
        pytest.raises(NotReadyError, match="expected no other process in this folder"),
        open_job_folder(tmp_path, "train", {}),
    ):
        pytest.fail("opened")
    with open_job_folder(tmp_path, "train", {}):
        pass


def test_publishing_over_a_product_is_refused(tmp_path):
    with open_job_folder(tmp_path, "merge", {}) as folder:
        for place in (folder.new_draft("dataset"), folder.root / "dataset"):
            place.mkdir(parents=True)
            (place / "file").write_text("x")
        with pytest.raises(StorageError, match="expected to move the finished dataset here"):
            folder.publish(folder.work / "dataset", "dataset")


def test_draft_of_a_killed_process_is_removed(tmp_path):
    with open_job_folder(tmp_path, "merge", {}) as folder:
        draft = folder.new_draft("dataset")
        draft.mkdir(parents=True)
        (draft / "half").write_text("x")
        assert not folder.new_draft("dataset").exists()


def test_block_is_taken_only_whole_and_for_its_own_request(tmp_path, caplog):
    blocks = Blocks(folder=tmp_path, request_sha256="a")
    assert blocks.read(0) is None
    blocks.write(0, {"episodes": [1, 2]})
    assert blocks.read(0) == {"episodes": [1, 2]}
    assert Blocks(folder=tmp_path, request_sha256="b").read(0) is None
    assert "belongs to another job" in caplog.text
    path = tmp_path / "00000.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert blocks.read(0) is None
    assert "doing part 0 again" in caplog.text
    path.rename(tmp_path / "00001.json")
    assert blocks.read(1) is None
