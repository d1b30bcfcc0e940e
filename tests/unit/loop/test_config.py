import re
from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.config import LoopConfig, PolicyRung
from cadenza.loop.validation import dotted_keys

NATIVE = {"run_name": "r", "seed_dataset": "local/x"}
LEROBOT = {"run_name": "r", "seed_dataset": "HuggingFaceVLA/libero", "backend": "lerobot"}
#: Thresholds in units of a score that lies around -20.
OF_SCORES = {
    "promote_delta": 2.0,
    "regression_delta": 2.5,
    "plateau_epsilon": 1.5,
    "escalate_floor": -30.0,
    "min_promote": -25.0,
}


def load(document):
    return LoopConfig.from_document(document, source="loop.yaml")


#: Promised defaults of the LeRobot back end, and those that the native one has of its own.
LEROBOT_DEFAULTS = {
    "": {"workdir": Path("runs"), "llm": None, "constitution": Path("configs/constitution.yaml")},
    "knowledge": {"enabled": True, "root": Path("knowledge")},
    "data": {"initial_episodes": None, "growth": 2.0, "max_episodes": None, "task_filter": None},
    "budgets": {"max_cycles": 3, "max_gpu_hours": 24.0},
    "thresholds": {"promote_delta": 0.05, "regression_delta": 0.05, "plateau_epsilon": 0.01,
                   "plateau_cycles": 2, "escalate_floor": 0.05},
    "train": {"steps": 20_000, "batch_size": 64, "continue_from_blessed": True, "extra_args": ()},
    "eval": {"env_type": "libero", "task_suite": "libero_spatial", "n_episodes": 10,
             "batch_size": 10, "extra_args": ()},
    "improve": {"enabled": False, "episodes": 20, "adapt_steps": 0, "device": "cuda",
                "task_text": None, "extra_args": ()},
    "curation": {"enabled": False, "candidates": 3, "max_tokens": 8192},
}  # fmt: skip
NATIVE_DEFAULTS = {
    "": {"backend": "native", "constitution": None, "seed_root": None,
         "policy_ladder": (PolicyRung(name="bc"), PolicyRung(name="bc_large"))},
    "eval": {"env_type": "crossing", "task_suite": "default", "n_episodes": 50,
             "max_episodes": 480},
    "train": {"steps": 2000, "batch_size": 256},
    "improve": {"device": "cpu", "episodes": 20},
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "defaults"), [(LEROBOT, LEROBOT_DEFAULTS), (NATIVE, NATIVE_DEFAULTS)]
)
def test_back_end_has_the_promised_defaults(document, defaults):
    config = load(document)
    for section, values in defaults.items():
        found = getattr(config, section) if section else config
        assert {key: getattr(found, key) for key in values} == values
    if document is LEROBOT:
        inits = [(rung.name, rung.init) for rung in config.policy_ladder]
        assert inits == [("smolvla", "lerobot/smolvla_base"), ("pi05", "lerobot/pi05_base")]


def test_defaults_of_the_backend_fill_only_what_is_not_said():
    config = load({**NATIVE, "train": {"steps": 7}, "eval": {"n_episodes": 600}})
    assert (config.train.steps, config.train.batch_size) == (7, 256)
    assert (config.eval.n_episodes, config.eval.max_episodes) == (600, 600)
    assert load({**NATIVE, "eval": {"max_episodes": None}}).eval.max_episodes is None
    assert load({**LEROBOT, "constitution": "mine.yaml"}).constitution == Path("mine.yaml")


def test_thresholds_of_scores_are_named_in_units_of_the_score():
    document = {**NATIVE, "eval": {"metric": "score", "score_range": [-100.0, 0.0]}}
    config = load({**document, "thresholds": OF_SCORES})
    assert config.thresholds.model_dump(include=OF_SCORES.keys()) == OF_SCORES
    assert load(config.model_dump(mode="json")) == config
    for given in ({}, {"thresholds": {"min_promote": -25.0}}):
        with pytest.raises(ConfigurationError, match="metric: score, got none") as caught:
            load({**document, **given})
        told = {line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]}
        named = given.get("thresholds", {})
        assert told == {f"thresholds.{name}" for name in OF_SCORES if name not in named}


@pytest.mark.parametrize("document", [NATIVE, LEROBOT])
def test_configuration_survives_its_json(document):
    config = load({**document, "train": {"steps": 9, "max_epochs": 3}})
    assert LoopConfig.model_validate_json(config.model_dump_json()) == config
    assert load(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("name", "backend", "env_type"),
    [("native_crossing", "native", "crossing"), ("lerobot_pusht", "lerobot", "pusht")],
)
def test_shipped_sample_loads(name, backend, env_type):
    config = LoopConfig.from_yaml(shipped_config(f"loop/{name}.yaml"))
    assert None not in (config.jobs.time_limit_s, config.jobs.silent_limit_s)  # no job hangs
    assert (config.backend, config.eval.env_type) == (backend, env_type)
    assert config.improve.enabled
    assert config.improve.adapt_steps > 0  # or nothing would be trained on the harvest
    assert (config.seed_root is not None) == (backend == "lerobot")


def test_leagents_file_loads_once_it_names_its_backend(tmp_path):
    path = tmp_path / "m0.yaml"
    path.write_text(
        "run_name: m0\nseed_dataset: HuggingFaceVLA/libero\nllm: null\n"
        "policy_ladder:\n- {name: smolvla, init: lerobot/smolvla_base}\n"
        "eval: {env_type: libero, task_suite: libero_spatial, n_episodes: 10}\n"
        "train: {steps: 20000, extra_args: ['--policy.device=cuda', '--num_workers=8']}\n"
    )
    with pytest.raises(ConfigurationError, match="set backend: lerobot") as caught:
        LoopConfig.from_yaml(path)
    assert str(caught.value).count("\n") == 3  # rung, environment and dataset
    path.write_text(f"backend: lerobot\n{path.read_text()}")
    config = LoopConfig.from_yaml(path)
    assert config.train.extra_args == ("--policy.device=cuda", "--num_workers=8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_name": "a b"}, r"run_name: expected a text like .*, got 'a b'\."),
        (
            {"improve": {"device": "gpu"}},
            "expected 'auto', 'cpu', 'mps', 'cuda' or 'cuda:<index>',",
        ),
        ({"seed": True}, r"seed: expected a whole number, got True\."),
        ({"seed": "1"}, r"seed: expected a whole number, got '1'; write 1 without quotes\."),
        ({"seed": -1}, r"seed: expected greater than or equal to 0, got -1\."),
        ({"backend": "Lerobot"}, "backend: expected 'native' or 'lerobot', got 'Lerobot'"),
        ({"evall": {}}, r"evall: expected a known key, got 'evall'; did you mean 'eval'\?"),
        ({"steps": 1}, r"steps: expected a known key, .* did you mean 'train\.steps'\?$"),
        ({"extra_args": []}, "did you mean 'train.extra_args' or 'eval.extra_args' or 'improve.ex"),
        ({"a\nb": 1}, r"'a\\nb': expected a known key, got 'a\\nb'; known keys are approval"),
        ({7: 1}, r"the file: expected texts as keys, got 7; remove it\."),
        ({"train": {"seed": 1}}, r"train\.seed: .*; did you mean 'seed' at the top\?"),
        ({"train": {"step": 1}}, r"train\.step: .*; did you mean 'steps'\?"),
        ({"train": {"STEPS ": 1}}, r"train\..*, got 'STEPS '; did you mean 'steps'\?"),
        ({"policy_ladder": [{"name": "BC"}]}, r"got 'BC'; did you mean 'bc'\?"),
        ({"train": None}, "train: expected a mapping of keys to values, got None"),
        ({"policy_ladder": [{}]}, r"policy_ladder\[0\]\.name: expected a value, got none; add"),
        ({"policy_ladder": [{"name": "bc"}] * 2}, "policy_ladder: expected different rungs"),
        ({"policy_ladder": [{"name": "bc_lrage"}]}, r"policy_ladder: .* mean 'bc_large'\?$"),
        ({"data": {"initial_episodes": 9, "max_episodes": 8}}, "data.initial_episodes: .* = 8, go"),
        ({"eval": {"n_episodes": 9, "max_episodes": 8}}, "eval.max_episodes: expected at least n_"),
        ({"eval": {"env_type": "pusht"}}, r"eval\.env_type: .* got 'pusht'; set backend: lerobot"),
        ({"seed_dataset": "lerobot/pusht"}, "seed_dataset: .* set backend: lerobot, or ba"),
        ({"improve": {"adapt_steps": 5}}, r"improve\.enabled: expected .* beside improve\.adapt"),
        ({"improve": {"device": "cuda"}}, r"improve\.device: expected cpu with .* got 'cuda'; rem"),
        ({"improve": {"task_text": "x"}}, r"improve\.task_text: expected nothing with .* got 'x'"),
        ({"data": {"instructions": "a.json"}}, r"data\.instructions: expected nothing with .*json"),
        ({"curation": {"enabled": True}}, r"curation\.enabled: expected false without a lang.*llm"),
        ({"llm": "gpt-5"}, "llm: expected provider:model with a provider of anthropic, gemini, op"),
        ({"llm_calls": {"retries": 5}}, "llm_calls.retries: expected nothing without a language m"),
        ({"llm_calls": {"usd_per_million_input": 3}}, "llm_calls.usd_per_million_output: expected"),
        ({"llm_calls": {"max_cost_usd": 5.0}}, "llm_calls.max_cost_usd: .*, got 5.0 without pri"),
        ({"jobs": {"ray_address": "auto"}}, "jobs.ray_address: expected null with runner 'local'"),
        ({"approval": {"gates": ["merge"]}}, r"approval\.gates\[0\]: expected 'promote' or 'esc"),
        ({"approval": {"timeout_s": 60.0}}, "approval.timeout_s: expected null where no decision"),
        ({"approval": {"gates": ["promote"], "on_timeout": "approve"}}, "approval.on_timeout: exp"),
        ({"thresholds": {"plateau_epsilon": 0.2}}, r"plateau_epsilon: .* got 0\.2 > 0\.05\."),
        ({"thresholds": {"promote_delta": 1.5}}, "promote_delta: expected a share of episodes in"),
        ({"thresholds": {"min_promote": 1.01}}, "min_promote: expected a share of episodes in"),
    ],
)
def test_problem_is_told_with_key_expectation_and_value(change, message):
    with pytest.raises(ConfigurationError, match=rf"^loop\.yaml: expected a .*\n  .*{message}"):
        load({**NATIVE, **change})


def test_every_problem_gets_a_line_of_its_own():
    document = {"seed_dataset": "local/x", "seed": -1, "jobs": {"grace_s": "1"}, "x": 1}
    with pytest.raises(ConfigurationError) as caught:
        load(document)
    told = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert told == ["run_name", "seed", "jobs.grace_s", "x"]
    assert "pydantic" not in str(caught.value)


#: The message where LIBERO would ignore its seeds.
LIBERO = (
    "--env.init_states=false or nothing with libero, got --.*"
    "whatever the seed, so that tests repeat and the harvest trains on the states"
)


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ("eval", "env_args", ["--env.init_states=true"]),
        ("eval", "extra_args", ["--env.init-states=True"]),
        ("improve", "extra_args", ["--env.init_states"]),
        ("train", "extra_args", ["--env.type=libero", "--env.init_states=true"]),
    ],
)
def test_flag_that_makes_an_environment_ignore_its_seeds_is_refused(section, key, words):
    with pytest.raises(ConfigurationError, match=rf"{section}\.{key}: expected {LIBERO}"):
        load({**LEROBOT, section: {key: words}})


def test_what_all_commands_share_is_said_once():
    shared = {"env_args": ["--env.episode_length=60"]}
    extra = {"extra_args": ["--env.episode-length=9"]}
    with pytest.raises(ConfigurationError, match=r"improve\.extra_args: expected nothing"):
        load({**LEROBOT, "eval": shared, "improve": extra})
    assert load({**LEROBOT, "eval": shared, "improve": {"extra_args": ["--keep-failures"]}})


def test_init_states_may_be_false_with_libero_and_anything_elsewhere():
    assert load({**LEROBOT, "eval": {"env_args": ["--env.init_states=false"]}})
    elsewhere = {"env_type": "pusht", "extra_args": ["--env.init_states=true"]}
    assert load({**LEROBOT, "eval": elsewhere})


BASE = "run_name: r\nseed_dataset: local/x\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a configuration of the loop, got an empty file; `cadenza configs"),
        ("- a\n", "\n  line 1, column 1: the file: expected a mapping of keys to values"),
        (f"{BASE}train:\n  steps: ten\n", "line 4, column 10: train.steps: expected a whole num"),
        (f"{BASE}train:\n  step: 9\n", "line 4, column 3: train.step: .* did you mean 'steps'"),
        ("seed_dataset: local/x\n", "line 1, column 1: run_name: expected a value, got none"),
        # of our own rules, which name the key of their section
        (
            f"{BASE}eval: {{n_episodes: 9,\n  max_episodes: 8}}\n",
            "line 4, column 17: eval.max_episodes: expected at least n_episodes = 9, got 8",
        ),
        # a list that holds itself
        (f"{BASE}train: &t {{steps: *t}}\n", "line 3, column 8: train.steps: expected a whole nu"),
    ],
)
def test_problem_in_a_file_is_told_with_its_place(text, message, tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        LoopConfig.from_yaml(path)


def test_every_key_stands_in_the_documentation():
    page = Path(__file__).parents[3].joinpath("docs", "loop.md").read_text("utf-8")
    table = page.partition("## Configuration\n")[2].partition("\n## ")[0]
    named, section = set(), ""
    for row in (line for line in table.splitlines() if line.startswith("| `")):
        for word in re.findall(r"`([a-z_.*]+)`", row.split("|")[1]):
            section = word.rpartition(".")[0] if not word.startswith(".") else section
            named.add(f"{section}{word}" if word.startswith(".") else word)
    keys = {key.partition("[]")[0] for key in dotted_keys(LoopConfig)}
    assert {key for key in keys if f"{key.rpartition('.')[0]}.*" not in named} <= named
    assert {name for name in named if not name.endswith("*")} <= keys
