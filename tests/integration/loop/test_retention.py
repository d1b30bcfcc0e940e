"""What is removed of ended cycles, and what never is."""

import json

import pytest

from cadenza.loop.config import RetentionConfig
from cadenza.loop.retention import leftovers, remove, removed, select_leftovers, size_of
from cadenza.loop.store import JobStore
from tests.integration.loop.loop_harness import Loop, outcome_of
from tests.loop_fakes import FakeStack

IMPROVE = {"enabled": True, "episodes": 4, "adapt_steps": 3}
RATES = (0.3, 0.6, 0.9, 0.1, 0.9)


def run_in(folder, **rules):
    with JobStore(folder / "cadenza.db") as store:
        budgets = {"max_cycles": len(RATES)}
        loop = Loop(
            store, folder, FakeStack(RATES), improve=IMPROVE, budgets=budgets, retention=rules
        )
        loop.run()
        left = outcome_of(loop, folder)
    del left["files"]
    return left


def cycle_of(one):
    return int(one.path.parts[0].removeprefix("cycle_"))


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_does_not_miss_what_is_removed_between_its_cycles(tmp_path):
    kept, tidied = run_in(tmp_path / "kept"), run_in(tmp_path / "tidied", keep_cycles=0)
    for outcome in (kept, tidied):
        for row in outcome["table runs"]:
            del row["config_json"]
    assert tidied == kept
    before, after = files(tmp_path / "kept" / "run"), files(tmp_path / "tidied" / "run")
    gone = {"/".join(path.split("/")[:2]) for path in before - after}
    assert {"cycle_0/data", "cycle_0/train", "cycle_0/harvest", "cycle_1/merge"} <= gone
    assert {path for path in before if path.endswith((".log", ".jsonl"))} <= after
    assert gone <= removed(tmp_path / "tidied" / "run")
    assert removed(tmp_path / "kept" / "run") == set()


@pytest.fixture
def ended(tmp_path):
    """An ended run, with its open store."""
    run_in(tmp_path)
    with JobStore(tmp_path / "cadenza.db") as store:
        yield store, tmp_path


def test_age_number_and_size_choose_the_oldest_first(ended):
    store, folder = ended
    found = leftovers(store, folder, ["run"])
    total, last = size_of(folder / "run"), max(one.ended_at for one in found)

    def cycles(now=last, **rules):
        going = select_leftovers(RetentionConfig(**rules), found, total=total, now=now)
        return [cycle_of(one) for one in going], going

    assert cycles()[0] == []
    assert set(cycles(keep_cycles=2)[0]) == {0, 1, 2}
    assert cycles(keep_cycles=5)[0] == []
    assert cycles(older_than="1d")[0] == []
    everything = cycles(older_than="1d", now=last + 86_401)[0]
    assert everything == sorted(everything)
    assert len(everything) == len(found)
    assert set(cycles(older_than="1d", keep_cycles=3, now=last + 86_401)[0]) == {0, 1}
    assert cycles(max_size="1GB")[0] == []
    assert cycles(max_size="0kB")[0] == everything
    half = (total - sum(one.bytes for one in found[:3])) // 1000 + 1
    some, going = cycles(max_size=f"{half}kB")
    assert some == everything[: len(some)]
    assert total - sum(one.bytes for one in going) <= half * 1000
    assert total - sum(one.bytes for one in going[:-1]) > half * 1000


def test_what_any_run_of_the_store_needs_stays(ended):
    store, folder = ended
    state, _ = store.load_state("run")
    needed = {state.blessed.path, state.mix.root}
    candidate = str(folder / "run" / "cycle_3" / "train" / "policy")
    before = {str(one.path) for one in leftovers(store, folder, ["run"])}
    assert "cycle_3/train" in before
    for path in needed:
        assert not [one for one in before if path.startswith(str(folder / "run" / one))]
    document = {"reference": candidate, "workdir": str(folder)}
    store.create_run("other", json.dumps(document))
    assert "cycle_3/train" not in {str(one.path) for one in leftovers(store, folder, ["run"])}


def test_of_a_checkpoint_in_use_only_training_state_and_older_ones_go(ended):
    store, folder = ended
    train = folder / "run" / "cycle_1" / "train"
    for step in ("10", "20"):
        for name in ("pretrained_model", "training_state"):
            (train / "checkpoints" / step / name).mkdir(parents=True)
            (train / "checkpoints" / step / name / "file").write_text("x")
    (train / "checkpoints" / "last").symlink_to("20")
    (train / "work").mkdir()
    path = str(train / "checkpoints" / "last" / "pretrained_model")
    number = store.add_checkpoint("run", 1, "act", path)
    store.bless("run", number)
    found = {str(one.path) for one in leftovers(store, folder, ["run"]) if cycle_of(one) == 1}
    inside = "cycle_1/train"
    assert {one for one in found if one.startswith(inside)} == {
        *(f"{inside}/work", f"{inside}/checkpoints/10"),
        f"{inside}/checkpoints/20/training_state",
    }


def test_links_are_neither_followed_nor_removed(ended):
    store, folder = ended
    outside = folder / "precious"
    (outside / "data").mkdir(parents=True)
    (outside / "data" / "file").write_text("x")
    run = folder / "run"
    (run / "cycle_2" / "linked").symlink_to(outside)
    found = leftovers(store, folder, ["run"])
    assert "cycle_2/linked" not in {str(one.path) for one in found}
    (run / "cycle_1").rename(folder / "aside")
    (run / "cycle_1").symlink_to(outside)  # after it was looked at
    with pytest.raises(OSError, match="cycle_1"):
        remove([one for one in found if cycle_of(one) == 1])
    assert (outside / "data" / "file").read_text() == "x"
    assert [one for one in leftovers(store, folder, ["run"]) if cycle_of(one) == 1] == []
    run.rename(folder / "moved")
    run.symlink_to(folder / "moved")
    assert leftovers(store, folder, ["run"]) == []
    with pytest.raises(OSError, match="run"):
        remove([one for one in found if cycle_of(one) == 0])
    assert (folder / "moved" / "cycle_0" / "data").is_dir()


def test_a_torn_line_among_the_incidents_is_passed_over(ended):
    _, folder = ended
    line = json.dumps({"kind": "pruned", "message": "", "paths": ["cycle_0/gone"]})
    with (folder / "run" / "incidents.jsonl").open("a") as file:
        file.write(f'{{"kind": "pruned", "pa{line}\n{line}\n[1]\n')
    assert removed(folder / "run") == {"cycle_0/gone"}


def test_what_is_refused_is_an_incident_and_the_run_goes_on(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "no")

    monkeypatch.setattr("cadenza.loop.retention.shutil.rmtree", refuse)
    assert len(run_in(tmp_path, keep_cycles=1)["table cycles"]) == len(RATES)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run/incidents.jsonl").open()]
    assert {"pruned", "prune_failed"} <= set(kinds)
