import re
from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import load_constitution
from cadenza.loop.orchestrator import build_loop
from cadenza.loop.orchestrator.preflight import require_ready
from cadenza.loop.resuming import (
    anchored,
    initial_references,
    placed,
    require_place,
    rules_file,
    rules_of,
    stored_config,
    weights_digest,
)
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


def test_references_are_named_or_what_the_rungs_begin_with(tmp_path):
    def found(reference, init=None):
        ladder = [{"name": "bc", "init": init}]
        made = initial_references(config(reference=reference, policy_ladder=ladder))
        told = [(one.policy_type, one.path, one.cycle, one.blessed, one.sha256) for one in made]
        return told[0] if told else None

    weights, folder = tmp_path / "weights", tmp_path / "folder"
    weights.write_bytes(b"weights")
    folder.mkdir()
    (folder / "model.safetensors").touch()
    first = ("bc", str(weights), -1, True, weights_digest(weights))
    assert found(None, str(weights)) == found(str(weights)) == first
    for text, told in (('{"extra": {"rung": "bc_large"}}', "bc_large"), ("{}", "bc")):
        (tmp_path / "weights.json").write_text(text)
        assert found(str(weights)) == (told, *first[1:])
    assert found(str(folder))[0] == "bc"
    (folder / "config.json").write_text('{"type": "act"}')
    assert found(str(folder))[:2] == ("act", str(folder))
    assert found("owner/policy", str(weights)) == ("bc", "owner/policy", -1, True, None)
    assert found("none", str(weights)) is found(None) is found(None, "owner/policy") is None
    inits = [weights, folder, "owner/policy", tmp_path / "copy"]
    (tmp_path / "copy").write_bytes(b"weights")
    ladder = [{"name": "bc", "init": str(init)} for init in inits]
    played = initial_references(config(policy_ladder=ladder))
    assert [one.path for one in played] == [str(weights), str(folder)]


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


NATIVE = {"run_name": "r", "seed_dataset": "local/d", "data": {"initial_episodes": 2}}
LEROBOT = {
    **NATIVE,
    "backend": "lerobot",
    "policy_ladder": [{"name": "act"}],
    "eval": {"env_type": "pusht"},
}
DEFAULT = "configs/constitution.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Current folder, without any rules."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", [NATIVE, LEROBOT])
@pytest.mark.parametrize("name", [DEFAULT, "mine.yaml"])
def test_named_rules_that_are_not_there_are_an_error_and_never_other_rules(document, name, folder):
    config = LoopConfig(**document, constitution=name)
    told = rf"constitution: expected a file of rules, got none at {re.escape(str(folder / name))}"
    for ask in (rules_of, lambda g: require_ready(g, "run"), lambda g: build_loop(g, "run")):
        for given in (config, anchored(config), config.model_copy(update={"seed": 1})):
            with pytest.raises(ConfigurationError, match=told):
                ask(given)
    assert not list(folder.iterdir())  # neither a store nor a folder of a run


@pytest.mark.parametrize("document", [NATIVE, LEROBOT])
@pytest.mark.usefixtures("folder")
def test_rules_that_nobody_names_are_the_shipped_ones(document):
    config = LoopConfig(**document)
    for given in (config, anchored(config), anchored(anchored(config))):
        assert rules_file(given) is None
        assert rules_of(given).sha256 == load_constitution(None).sha256


def test_leagents_default_holds_unnamed_where_it_lies_and_from_any_folder(folder, monkeypatch):
    (folder / "configs").mkdir()
    (folder / DEFAULT).write_text("max_train_steps: 7\n")
    found = anchored(LoopConfig(**LEROBOT))
    assert rules_file(LoopConfig(**NATIVE)) is None  # LeAgents has no native back end
    monkeypatch.chdir("/")
    assert found.constitution == folder / DEFAULT
    assert rules_of(found).rules.max_train_steps == 7
