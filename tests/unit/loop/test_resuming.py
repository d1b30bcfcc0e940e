from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.config import LoopConfig
from cadenza.loop.resuming import anchored, placed, require_place, stored_config, weights_digest
from cadenza.loop.store import JobStore


def config(**changes):
    return LoopConfig(**({"run_name": "r", "seed_dataset": "local/d"} | changes))


def test_a_stored_configuration_is_the_one_that_was_given(tmp_path):
    given = config(constitution=tmp_path / "rules.yaml")
    with JobStore(tmp_path / "cadenza.db") as store:
        store.create_run("one", given.model_dump_json())
        assert stored_config(store, "one") == given
        store.create_run("old", '{"run_name": "r", "songs": 3}')
        with pytest.raises(ConfigurationError, match="configuration of run 'old'"):
            stored_config(store, "old")


def test_a_run_finds_its_files_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").touch()
    (tmp_path / "weights").touch()
    ladder = [{"name": "bc", "init": "weights"}, {"name": "bc", "init": "owner/weights"}]
    given = config(
        constitution="rules.yaml", seed_root="data", policy_ladder=ladder, workdir="runs"
    )
    found = anchored(given)
    assert found.constitution == tmp_path / "rules.yaml"
    assert found.seed_root == tmp_path / "data"
    assert found.knowledge.root == tmp_path / "knowledge"
    inits = [rung.init for rung in found.policy_ladder]
    assert inits == [str(tmp_path / "weights"), "owner/weights"]
    assert found.workdir == Path("runs")
    assert anchored(found) == found


def test_an_earlier_run_as_reference_means_the_policy_that_it_blessed(tmp_path):
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(b"weights")
    given = config(reference="earlier", workdir=tmp_path)
    assert anchored(given).reference == "earlier"  # there is no store
    with JobStore(tmp_path / "cadenza.db") as store:
        store.create_run("earlier", "{}")
        with pytest.raises(ConfigurationError, match="'earlier', which blessed none"):
            anchored(given)
        store.add_checkpoint("earlier", 0, "bc", str(policy), sha256=weights_digest(policy))
        store.bless("earlier", 1)
    assert anchored(given).reference == str(policy)
    assert anchored(anchored(given)) == anchored(given)
    assert anchored(config(reference="other", workdir=tmp_path)).reference == "other"
    policy.write_bytes(b"others")
    with pytest.raises(IntegrityError, match="so they were changed"):
        anchored(given)


def test_the_place_of_a_run_is_stored_and_may_be_written_in_any_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = placed(config(workdir="runs"), Path("runs/one")).model_dump(mode="json")
    assert stored["workdir"] == str(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    for place in ("runs", tmp_path / "runs", "link"):
        require_place("one", stored, Path(place) / "one")
    with pytest.raises(ConfigurationError, match=f"in {tmp_path}/runs, .* got {tmp_path}/moved;"):
        require_place("one", stored, Path("moved/one"))
    require_place("one", {"workdir": "runs"}, Path("moved/one"))  # stored by an older version
