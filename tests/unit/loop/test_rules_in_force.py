import re

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import load_constitution
from cadenza.loop.dry_run import missing_data
from cadenza.loop.orchestrator import build_loop
from cadenza.loop.resuming import anchored, rules_file, rules_of

NATIVE = {"run_name": "r", "seed_dataset": "local/d", "data": {"initial_episodes": 2}}
LEROBOT = {
    **NATIVE,
    "backend": "lerobot",
    "policy_ladder": [{"name": "act"}],
    "eval": {"env_type": "pusht"},
}
DEFAULT = "configs/constitution.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Current folder, without any rules."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", [NATIVE, LEROBOT])
@pytest.mark.parametrize("name", [DEFAULT, "mine.yaml"])
def test_named_rules_that_are_not_there_are_an_error_and_never_other_rules(document, name, folder):
    config = LoopConfig(**document, constitution=name)
    told = rf"constitution: expected a file of rules, got none at {re.escape(str(folder / name))}"
    for ask in (rules_of, missing_data, lambda given: build_loop(given, "run")):
        for given in (config, anchored(config), config.model_copy(update={"seed": 1})):
            with pytest.raises(ConfigurationError, match=told):
                ask(given)
    assert not list(folder.iterdir())  # neither a store nor a folder of a run


@pytest.mark.parametrize("document", [NATIVE, LEROBOT])
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
