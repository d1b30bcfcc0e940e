"""The search below a folder is bounded, follows no link, and tells groups from their parts."""

import json

import pytest

from cadenza.benchmark import finding
from cadenza.benchmark.bundle import BUNDLE_NAME, SPIKE_NAME
from cadenza.benchmark.finding import search
from cadenza.benchmark.zoo.matrix import MATRIX_JSON
from cadenza.core.recordings import JOURNAL_NAME


def made(root, *places):
    for place in places:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text("{}")


def told(found):
    return sorted((one.kind, one.place) for one in found.findings)


def test_parts_and_their_groups_are_found(tmp_path):
    made(
        tmp_path,
        *(f"quick/evaluation/bundles/{name}/{BUNDLE_NAME}" for name in ("a", "b")),
        *(f"quick/training/seed{k}/artifacts/{k}.run.json" for k in (0, 1)),
        f"spike/1b/bundles/zero/{BUNDLE_NAME}",
        f"spike/1b/bundles/zero/{SPIKE_NAME}",
        f"zoo/{MATRIX_JSON}",
        f"draws/{JOURNAL_NAME}",
        "films/one.mp4",
        "alone/artifacts/x.run.json",
    )
    (tmp_path / "s.json").write_text(json.dumps({"producers": [], "replay_ratio": 1.0}))
    found = search(tmp_path)
    assert told(found) == [
        ("bundle", "quick/evaluation/bundles/a"),
        ("bundle", "quick/evaluation/bundles/b"),
        ("bundle", "spike/1b/bundles/zero"),
        ("evaluation", "quick/evaluation"),
        ("film", "films/one.mp4"),
        ("matrix", "zoo"),
        ("recording", "draws"),
        ("seeds", "quick"),
        ("spike", "spike"),
        ("stream", "s.json"),
        ("training", "alone/artifacts/x.run.json"),
        ("training", "quick/training/seed0/artifacts/0.run.json"),
        ("training", "quick/training/seed1/artifacts/1.run.json"),
    ]
    assert not found.is_partial
    [seeds] = found.of("seeds")
    assert [one.place[:20] for one in found.members(seeds)] == [
        "quick/training/seed0",
        "quick/training/seed1",
    ]
    assert [one.kind for one in found.related(seeds)] == ["evaluation"]


def test_the_folder_itself_may_be_an_evaluation(tmp_path):
    made(tmp_path, "bundles/a/bundle.json", "bundles/b/bundle.json", "matrix.json")
    found = search(tmp_path)
    [group] = found.of("evaluation")
    assert (group.place, len(found.members(group))) == (".", 2)
    assert [one.kind for one in found.related(group)] == ["matrix"]


def test_links_hidden_folders_datasets_and_what_lies_in_bundles_are_passed_over(tmp_path):
    made(
        tmp_path,
        "outside/bundle.json",
        "root/.hidden/bundle.json",
        "root/data/data/x/bundle.json",
        "root/data/meta/info.json",
        "root/b/bundle.json",
        "root/b/inner/bundle.json",
    )
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "film.mp4").symlink_to(tmp_path / "outside" / "bundle.json")
    assert told(search(tmp_path / "root")) == [("bundle", "b")]


@pytest.mark.parametrize("bound", [("MAX_ENTRIES", 3), ("MAX_DEPTH", 2), ("MAX_SEARCH_S", 0.0)])
def test_a_search_ends_and_says_so(tmp_path, monkeypatch, bound):
    made(tmp_path, *(f"{k}/{k}/{k}/{k}/bundle.json" for k in range(4)))
    monkeypatch.setattr(finding, *bound)
    found = search(tmp_path)
    assert found.is_partial
    assert len(found.findings) < 4
