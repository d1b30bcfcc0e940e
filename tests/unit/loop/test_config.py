import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.config import EvalConfig, LoopConfig, PolicyRung, TrainConfig
from cadenza.loop.config_backends import LEROBOT_POLICIES
from cadenza.loop.config_sections import MAX_EPISODES
from cadenza.loop.constitution.lerobot_programs import POLICY_TYPES
from cadenza.loop.orchestrator.seeds import BLOCK
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


def value_at(config, key):
    for part in key.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("workdir", Path("runs")),
        ("llm", None),
        ("constitution", Path("configs/constitution.yaml")),
        ("knowledge.enabled", True),
        ("knowledge.root", Path("knowledge")),
        ("data.initial_episodes", None),
        ("data.growth", 2.0),
        ("data.max_episodes", None),
        ("data.task_filter", None),
        (
            "policy_ladder",
            (
                PolicyRung(name="smolvla", init="lerobot/smolvla_base"),
                PolicyRung(name="pi05", init="lerobot/pi05_base"),
            ),
        ),
        ("budgets.max_cycles", 3),
        ("budgets.max_gpu_hours", 24.0),
        ("thresholds.promote_delta", 0.05),
        ("thresholds.regression_delta", 0.05),
        ("thresholds.plateau_epsilon", 0.01),
        ("thresholds.plateau_cycles", 2),
        ("thresholds.escalate_floor", 0.05),
        ("train.steps", 20_000),
        ("train.batch_size", 64),
        ("train.continue_from_blessed", True),
        ("train.extra_args", ()),
        ("eval.env_type", "libero"),
        ("eval.task_suite", "libero_spatial"),
        ("eval.n_episodes", 10),
        ("eval.batch_size", 10),
        ("eval.extra_args", ()),
        ("improve.enabled", False),
        ("improve.episodes", 20),
        ("improve.adapt_steps", 0),
        ("improve.device", "cuda"),
        ("improve.task_text", None),
        ("improve.extra_args", ()),
        ("curation.enabled", False),
        ("curation.candidates", 3),
        ("curation.max_tokens", 8192),
    ],
)
def test_lerobot_backend_has_the_promised_default(key, default):
    assert value_at(load(LEROBOT), key) == default


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("backend", "native"),
        ("policy_ladder", (PolicyRung(name="bc"), PolicyRung(name="bc_large"))),
        ("eval.env_type", "crossing"),
        ("eval.task_suite", "default"),
        ("eval.n_episodes", 50),
        ("eval.max_episodes", 480),
        ("train.steps", 2000),
        ("train.batch_size", 256),
        ("improve.device", "cpu"),
        ("improve.episodes", 20),
        ("constitution", None),
        ("seed_root", None),
    ],
)
def test_native_backend_has_defaults_of_its_own(key, default):
    assert value_at(load(NATIVE), key) == default


def test_defaults_of_the_backend_fill_only_what_is_not_said():
    config = load({**NATIVE, "train": {"steps": 7}, "eval": {"n_episodes": 600}})
    assert (config.train.steps, config.train.batch_size) == (7, 256)
    assert (config.eval.n_episodes, config.eval.max_episodes) == (600, 600)
    assert load({**NATIVE, "eval": {"max_episodes": None}}).eval.max_episodes is None
    assert load({**LEROBOT, "constitution": "mine.yaml"}).constitution == Path("mine.yaml")


def test_sections_given_as_objects_are_filled_like_those_of_a_file():
    given = {"train": TrainConfig(steps=7), "eval": EvalConfig(n_episodes=3)}
    config = LoopConfig(run_name="r", seed_dataset="local/x", **given)
    assert (config.train.steps, config.train.batch_size) == (7, 256)
    assert (config.eval.env_type, config.eval.n_episodes) == ("crossing", 3)


def test_thresholds_of_scores_are_named_in_units_of_the_score():
    document = {**NATIVE, "eval": {"metric": "score"}}
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
        ({"run_name": None}, r"run_name: expected a text, got None\."),
        ({"run_name": "../x"}, "run_name: expected a text like"),
        ({"seed_dataset": "a/b/c"}, "seed_dataset: expected a text like"),
        ({"seed": -1}, r"seed: expected greater than or equal to 0, got -1\."),
        ({"seed": 2**31}, "seed: expected less than 2147483648"),
        ({"seed": True}, r"seed: expected a whole number, got True\."),
        ({"seed": "1"}, r"seed: expected a whole number, got '1'; write 1 without quotes\."),
        ({"seed": "one"}, r"seed: expected a whole number, got 'one'\."),
        ({"seed": float("nan")}, r"seed: expected a whole number, got nan\."),
        ({"budgets": {"max_gpu_hours": "1e3"}}, "got '1e3'; write 1000.0 without quotes"),
        ({"seed": 1.0}, "seed: expected a whole number, got 1.0"),
        ({"workdir": 3}, r"workdir: expected a path, got 3\."),
        ({"backend": "Lerobot"}, "backend: expected 'native' or 'lerobot', got 'Lerobot'"),
        ({"evall": {}}, r"evall: expected a known key, got 'evall'; did you mean 'eval'\?"),
        ({"zzz": 1}, "zzz: expected a known key, got 'zzz'; known keys are approval, backend"),
        ({"steps": 1}, r"steps: expected a known key, .* did you mean 'train\.steps'\?$"),
        ({"gates": []}, r"gates: expected a known key, .* did you mean 'approval\.gates'\?$"),
        ({"task_suite": "x"}, r"did you mean 'eval\.task_suite'\?$"),
        ({"train": {"root": 1}}, r"train\.root: .* did you mean 'knowledge\.root'\?$"),
        ({"extra_args": []}, "did you mean 'train.extra_args' or 'eval.extra_args' or 'improve.ex"),
        ({"a\nb": 1}, r"'a\\nb': expected a known key, got 'a\\nb'; known keys are approval"),
        ({7: 1}, r"the file: expected texts as keys, got 7; remove it\."),
        ({"train": {None: 1}}, r"train: expected texts as keys, got None; remove it\."),
        ({"train": {"step": 1}}, r"train\.step: .*; did you mean 'steps'\?"),
        ({"train": None}, "train: expected a mapping of keys to values, got None"),
        ({"train": {"steps": 0}}, r"train\.steps: expected greater than 0, got 0\."),
        ({"train": {"steps": True}}, r"train\.steps: expected a whole number, got True\."),
        ({"train": {"extra_args": "--x=1"}}, r"train\.extra_args: expected a list, got '--x=1'"),
        ({"train": {"extra_args": ["x\n"]}}, r"train\.extra_args\[0\]: expected a text like"),
        ({"train": {"continue_from_blessed": "no"}}, r"continue_from_blessed: expected true or fa"),
        ({"train": {"continue_from_blessed": "True"}}, r"got 'True'; write true without quotes"),
        ({"train": {"continue_from_blessed": 1}}, r"continue_from_blessed: expected true or false"),
        (
            {"improve": {"adapt_steps": 5}},
            r"improve\.enabled: expected true or false beside improve\.adapt_steps, got nothing",
        ),
        ({"train": {"max_epochs": 0}}, r"train\.max_epochs: expected greater than 0, got 0"),
        ({"policy_ladder": []}, r"policy_ladder: expected at least 1, got none\."),
        ({"policy_ladder": ["bc"]}, r"policy_ladder\[0\]: expected a mapping of keys to values"),
        ({"policy_ladder": [{}]}, r"policy_ladder\[0\]\.name: expected a value, got none; add"),
        ({"policy_ladder": [{"name": "bc", "inti": "x"}]}, "did you mean 'init'"),
        ({"policy_ladder": [{"name": "bc"}] * 2}, "policy_ladder: expected different rungs"),
        ({"thresholds": {"promote_delta": -0.1}}, r"promote_delta: expected greater than or equa"),
        ({"thresholds": {"promote_delta": float("nan")}}, r"promote_delta: expected a finite num"),
        ({"thresholds": {"promote_delta": "0.1"}}, r"promote_delta: expected a number, got '0.1'"),
        ({"thresholds": {"promote_delta": True}}, r"promote_delta: expected a number, got True"),
        ({"thresholds": {"plateau_cycles": 0}}, r"plateau_cycles: expected greater than 0, got 0"),
        (
            {"thresholds": {"plateau_epsilon": 0.2}},
            r"thresholds\.plateau_epsilon: expected at most promote_delta .* got 0\.2 > 0\.05\.",
        ),
        *(
            (
                {"thresholds": {name: value}},
                rf"thresholds\.{name}: expected a share of episodes in \[0, 1\], got {value}; mend",
            )
            for name, value in [
                ("promote_delta", 1.5),
                ("regression_delta", 2.0),
                ("escalate_floor", -0.1),
                ("min_promote", -2.5),
                ("min_promote", 1.01),
            ]
        ),
        (
            {"eval": {"metric": "score"}, "thresholds": {**OF_SCORES, "promote_delta": -1.0}},
            r"thresholds\.promote_delta: expected greater than or equal to 0",
        ),
        ({"thresholds": {"alpha": 0.5}}, r"thresholds\.alpha: expected less than 0\.5"),
        ({"data": {"growth": 0.5}}, r"data\.growth: expected greater than or equal to 1"),
        (
            {"data": {"initial_episodes": 9, "max_episodes": 8}},
            r"data\.initial_episodes: expected at most max_episodes = 8, got 9\.",
        ),
        ({"budgets": {"max_cycles": 5000}}, r"max_cycles: expected less than or equal to 4096"),
        ({"budgets": {"max_gpu_hours": float("inf")}}, "max_gpu_hours: expected a finite number"),
        (
            {"eval": {"n_episodes": 9, "max_episodes": 8}},
            r"eval\.max_episodes: expected at least n_episodes = 9, got 8\.",
        ),
        (
            {"eval": {"n_episodes": 65_537}},
            r"eval\.n_episodes: expected less than or equal to 65536",
        ),
        ({"eval": {"max_episodes": 65_537}}, r"eval\.max_episodes: expected less than or equal to"),
        ({"improve": {"episodes": 65_537}}, r"improve\.episodes: expected less than or equal to 6"),
        ({"eval": {"extension_growth": 1.0}}, r"extension_growth: expected greater than 1"),
        ({"eval": {"metric": "reward"}}, r"eval\.metric: expected 'success' or 'score'"),
        ({"eval": {"task_suite": ""}}, r"eval\.task_suite: expected at least 1 character"),
        ({"improve": {"device": "tpu"}}, r"improve\.device: expected a text like"),
        ({"improve": {"device": "cuda"}}, r"improve\.device: expected cpu with .* got 'cuda'; rem"),
        ({"improve": {"task_text": "x"}}, r"improve\.task_text: expected nothing with .* got 'x'"),
        ({"data": {"instructions": "a.json"}}, r"data\.instructions: expected nothing with .*json"),
        ({"improve": {"mix_ratio": 0.0}}, r"improve\.mix_ratio: expected greater than 0"),
        ({"curation": {"candidates": 21}}, r"curation\.candidates: expected less than or equal"),
        ({"curation": {"enabled": True}}, r"curation\.enabled: expected false without a lang.*llm"),
        ({"curation": {"enabled": True}, "llm": ""}, r"curation\.enabled: expected false without"),
        ({"llm": "gpt-5"}, "llm: expected provider:model with a provider of anthropic, gemini, op"),
        ({"llm": "openai:"}, "llm: expected provider:model, got no model after 'openai'; name one"),
        ({"llm_calls": {"timeout_s": 0}}, r"llm_calls\.timeout_s: expected greater than 0, got 0"),
        ({"llm_calls": {"retries": -1}}, r"llm_calls\.retries: expected greater than or equal to"),
        ({"llm_calls": {"max_prompt_chars": 7999}}, r"max_prompt_chars: expected .* equal to 8000"),
        (
            {"llm_calls": {"usd_per_million_input": 3}},
            r"llm_calls\.usd_per_million_output: expected a price beside the other one, got none",
        ),
        (
            {"llm_calls": {"usd_per_million_output": 3}},
            r"llm_calls\.usd_per_million_input: expected a price beside the other one, got none",
        ),
        (
            {"llm_calls": {"max_cost_usd": 5.0}},
            r"llm_calls\.max_cost_usd: expected usd_per_million_input and .*, got 5.0 without pri",
        ),
        ({"llm_calls": {"max_cost_usd": 0}}, r"llm_calls\.max_cost_usd: expected greater than 0"),
        ({"jobs": {"runner": "slurm"}}, r"jobs\.runner: expected 'local' or 'ray', got 'slurm'"),
        (
            {"jobs": {"ray_address": "auto"}},
            r"jobs\.ray_address: expected null with runner 'local', got 'auto'; set runner: ray\.",
        ),
        ({"approval": {"gates": ["merge"]}}, r"approval\.gates\[0\]: expected 'promote' or 'esc"),
        ({"approval": {"timeout_s": 0}}, r"approval\.timeout_s: expected greater than 0"),
        (
            {"approval": {"timeout_s": 60.0}},
            r"approval\.timeout_s: expected null where no decision waits, got 60.0; name decisions",
        ),
        (
            {"approval": {"gates": ["promote"], "on_timeout": "approve"}},
            r"approval\.on_timeout: expected a time beside it after which it counts, got 'approve'",
        ),
        (
            {"llm_calls": {"retries": 5}},
            r"llm_calls\.retries: expected nothing without a language model, got 5; name",
        ),
        (
            {
                "llm_calls": {
                    "usd_per_million_input": 1.0,
                    "usd_per_million_output": 1.0,
                    "max_cost_usd": 2.0,
                }
            },
            r"input: expected nothing .*\n.*\n  llm_calls\.max_cost_usd: expected nothing",
        ),
        ({"backend": "native", "policy_ladder": [{"name": "act"}]}, "expected one of bc, bc_large"),
        (
            {"policy_ladder": [{"name": "bc"}, {"name": "bc_lrage"}]},
            r"policy_ladder: .* of bc, bc_large, got 'bc_lrage'; did you mean 'bc_large'\?$",
        ),
        ({"policy_ladder": [{"name": "rocket"}]}, r"bc_large, got 'rocket'; correct it\.$"),
        (
            {"backend": "lerobot", "policy_ladder": [{"name": "smolvl"}]},
            r"policy types of LeRobot \(act, .*\), got 'smolvl'; did you mean 'smolvla'\?",
        ),
        ({"eval": {"env_type": "pusht"}}, r"eval\.env_type: .* got 'pusht'; set backend: lerobot"),
        (
            {"seed_dataset": "lerobot/pusht"},
            r"seed_dataset: .* set backend: lerobot, or ba",
        ),
        ({"backend": "lerobot", "policy_ladder": [{"name": "bc"}]}, "set backend: native"),
    ],
)
def test_problem_is_told_with_key_expectation_and_value(change, message):
    with pytest.raises(ConfigurationError, match=rf"^loop\.yaml: expected a .*\n  .*{message}"):
        load({**NATIVE, **change})


def test_named_native_backend_may_start_from_a_dataset_of_any_name():
    assert load({**NATIVE, "backend": "native", "seed_dataset": "a/b"}).seed_dataset == "a/b"


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_document_that_is_no_mapping_is_refused(document):
    with pytest.raises(ConfigurationError, match="the file: expected a mapping of keys to values"):
        load(document)


def test_every_problem_gets_a_line_of_its_own():
    document = {"seed_dataset": "local/x", "seed": -1, "train": {"steps": 0}, "x": 1}
    with pytest.raises(ConfigurationError) as caught:
        load(document)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "run_name",
        "seed",
        "train.steps",
        "x",
    ]
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "words", "message"),
    [
        ("train", "extra_args", ["--steps=9"], "no --steps, which is set from train.steps"),
        ("train", "extra_args", ["--dataset.root=/x"], "--dataset.root, which is set from seed_ro"),
        ("train", "extra_args", ["--policy.type", "act"], "set from policy_ladder"),
        ("train", "extra_args", ["--output-dir=/x"], "--output-dir, which is set from workdir"),
        ("train", "extra_args", ["--seed=3"], "set from seed"),
        ("train", "extra_args", ["--resume=true"], "resuming is the loop's"),
        ("train", "extra_args", ["--config_path=x"], "resuming is the loop's"),
        ("train", "extra_args", ["--policy.push_to_hub=true"], "it is always false"),
        ("train", "extra_args", ["--log_freq=1", "--log_freq=2"], "--log_freq once for a command"),
        ("train", "extra_args", ["steps"], "--key=value first, got 'steps'"),
        ("eval", "extra_args", ["--seed=1000"], "set from seed"),
        ("eval", "extra_args", ["--env.type=aloha"], "set from eval.env_type"),
        ("eval", "extra_args", ["--eval.n_episodes=1"], "set from eval.n_episodes"),
        ("improve", "extra_args", ["--seed=1000"], "set from seed"),
        ("improve", "extra_args", ["--max-attempts=9"], "set from improve.episodes"),
        ("improve", "extra_args", ["--task-text=x"], "set from improve.task_text"),
        ("eval", "env_args", ["--env.task=x"], "set from eval.task_suite"),
        ("eval", "env_args", ["--steps=9"], "set from train.steps"),
        ("eval", "env_args", ["x"], "--key=value first, got 'x'"),
    ],
)
def test_flag_that_the_loop_sets_is_refused_when_loading(section, key, words, message):
    document = {**LEROBOT, section: {key: words}}
    with pytest.raises(ConfigurationError, match=rf"{section}\.{key}: expected .*{message}"):
        load(document)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("eval.env_args", ["--env.init_states=true"]),
        ("eval.extra_args", ["--env.init-states=True"]),
        ("improve.extra_args", ["--env.init_states"]),
        ("train.extra_args", ["--env.type=libero", "--env.init_states=true"]),
    ],
)
def test_libero_that_would_ignore_its_seeds_is_refused_when_loading(section, words):
    name, key = section.split(".")
    with pytest.raises(
        ConfigurationError,
        match=rf"{name}\.{key}: expected --env.init_states=false or nothing with libero, got --.*"
        "whatever the seed, so that tests repeat and the harvest trains on the states",
    ):
        load({**LEROBOT, name: {key: words}})
    assert load({**LEROBOT, "eval": {"env_args": ["--env.init_states=false"]}})
    elsewhere = {"env_type": "pusht", "extra_args": ["--env.init_states=true"]}
    assert load({**LEROBOT, "eval": elsewhere})


@pytest.mark.parametrize("enabled", [True, False])
def test_steps_on_a_harvest_may_stay_where_the_harvest_is_switched_off(enabled):
    config = load({**NATIVE, "improve": {"enabled": enabled, "adapt_steps": 5}})
    assert (config.improve.enabled, config.improve.adapt_steps) == (enabled, 5)
    assert load(load(NATIVE).model_dump(mode="json")).improve.adapt_steps == 0


def test_flag_shared_and_given_again_is_refused():
    arguments = {"env_args": ["--env.obs_type=a"], "extra_args": ["--env.obs_type=b"]}
    with pytest.raises(ConfigurationError, match=r"eval\.extra_args: expected --env\.obs_type onc"):
        load({**LEROBOT, "eval": arguments})
    fine = {"env_args": ["--env.obs_type=a"], "extra_args": ["--policy.device", "cpu"]}
    assert load({**LEROBOT, "eval": fine}).eval.extra_args == ("--policy.device", "cpu")


@pytest.mark.parametrize(
    ("section", "word"),
    [("train", "--max-epochs=3"), ("eval", "--partners=a"), ("improve", "--seed-count=3")],
)
def test_flag_of_a_native_job_that_the_loop_sets_is_refused(section, word):
    with pytest.raises(ConfigurationError, match=f"expected no {word.partition('=')[0]}, which"):
        load({**NATIVE, section: {"extra_args": [word]}})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "train",
            r"train\.extra_args: expected no further argument with the native back end, got -",
        ),
        ("eval", r"eval\.extra_args: expected --filter with the native back end, got --device"),
        (
            "improve",
            r"improve\.extra_args: expected --filter with the native back end, got --device",
        ),
    ],
)
def test_flag_that_a_native_job_does_not_have_is_refused(section, message):
    with pytest.raises(ConfigurationError, match=message):
        load({**NATIVE, section: {"extra_args": ["--device=cpu"]}})
    if section != "train":
        load({**NATIVE, section: {"extra_args": ["--filter=off"]}})


def test_most_episodes_are_the_seeds_of_a_cycle():
    assert MAX_EPISODES == BLOCK


def test_flag_of_a_native_job_that_nothing_sets_is_passed_on():
    config = load({**NATIVE, "eval": {"env_args": ["--filter=off"]}})
    assert config.eval.env_args == ("--filter=off",)


def test_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        load(NATIVE).seed = 3


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="expected a YAML file, got none"):
        LoopConfig.from_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="expected a YAML file, got a folder; name a file"):
        LoopConfig.from_yaml(tmp_path)


BASE = "run_name: r\nseed_dataset: local/x\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a configuration of the loop, got an empty file; `cadenza configs"),
        ("# nothing\n", "got an empty file"),
        ("- a\n", "\n  line 1, column 1: the file: expected a mapping of keys to values"),
        (f"{BASE}train:\n  steps: ten\n", "line 4, column 10: train.steps: expected a whole num"),
        (f"{BASE}train:\n  step: 9\n", "line 4, column 3: train.step: .* did you mean 'steps'"),
        (f"{BASE}7: 9\n", "line 3, column 1: the file: expected texts as keys, got 7"),
        (f"{BASE}thresholds: {{alpha: .nan}}\n", r"line 3, column 21: .*alpha: .* finite number"),
        (f"{BASE}seed: 1\nseed: 2\n", "line 4, column 1: .* 'seed' again after line 3, column 1"),
        (f"{BASE}policy_ladder: [{{nme: bc}}]\n", r"line 3, column 17: policy_ladder\[0\].name: e"),
        ("seed_dataset: local/x\n", "line 1, column 1: run_name: expected a value, got none"),
        # of our own rules, which name the key of their section
        (
            f"{BASE}eval: {{n_episodes: 9,\n  max_episodes: 8}}\n",
            "line 4, column 17: eval.max_episodes: expected at least n_episodes = 9, got 8",
        ),
        (f"{BASE}eval: {{env_type: pusht}}\n", "line 3, column 18: eval.env_type: .* set backend"),
        # a list that holds itself
        (f"{BASE}train: &t {{steps: *t}}\n", "line 3, column 8: train.steps: expected a whole nu"),
    ],
)
def test_problem_in_a_file_is_told_with_its_place(text, message, tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        LoopConfig.from_yaml(path)


def test_policies_of_lerobot_are_known_to_the_configuration():
    assert set(POLICY_TYPES) <= LEROBOT_POLICIES


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
