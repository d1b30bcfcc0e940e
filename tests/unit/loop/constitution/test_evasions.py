"""Commands that try to get around the rules; each must be refused by the rule that is meant."""

import json
import logging

import pytest

from cadenza.loop.constitution import Constitution, ConstitutionError, Roots, load_constitution


@pytest.fixture
def roots(tmp_path):
    run = tmp_path / "run"
    (run / "cycle_0").mkdir(parents=True)
    (tmp_path / "seed").mkdir()
    (tmp_path / "other").mkdir()
    (run / "way_out").symlink_to(tmp_path / "other")
    (run / "way_in").symlink_to(run / "cycle_0")
    (tmp_path / "run_of_somebody_else").mkdir()
    for name, settings in (("groot", '{"type": "groot"}'), ("torn", '{"type": ')):
        (tmp_path / "seed" / name).mkdir()
        (tmp_path / "seed" / name / "config.json").write_text(settings)
    (tmp_path / "seed" / "there" / "meta").mkdir(parents=True)
    (tmp_path / "seed" / "there" / "meta" / "info.json").write_text("{}")
    return Roots(write=(run,), read=(tmp_path / "seed",))


def words_of(text, more, without):
    return [word for word in text.split() if word.partition("=")[0] not in without] + [*more]


def train(*more, without=()):
    """A training command of LeRobot; ``{tmp}`` stands for the test's folder."""
    return words_of(
        "lerobot-train --policy.type=act --policy.push_to_hub=false --dataset.repo_id=local/x "
        "--dataset.root={tmp}/seed --output_dir={tmp}/run/cycle_0/train --steps=20",
        more,
        without,
    )


def evaluate(*more, without=()):
    return words_of(
        "lerobot-eval --policy.path={tmp}/run/cycle_0/train/last --env.type=pusht "
        "--eval.n_episodes=10 --output_dir={tmp}/run/cycle_0/eval",
        more,
        without,
    )


def native(*more, without=()):
    return words_of(
        "cadenza job train --rung=bc --dataset={tmp}/run/cycle_0/data --steps=20 "
        "--batch-size=32 --seed=1 --out={tmp}/run/cycle_0/train "
        "--result-json={tmp}/run/cycle_0/train.json",
        more,
        without,
    )


COLLECT = [
    *("cadenza-lerobot-collect", "--policy-path={tmp}/run/cycle_0/train", "--env-type=pusht"),
    *("--task=PushT-v0", "--out={tmp}/run/cycle_0/harvest", "--repo-id=local/harvest", "--seed=7"),
]
HARVEST = [*COLLECT, "--max-attempts=25"]
UNGUARDED = [
    *("cadenza", "job", "evaluate", "--policy={tmp}/run/cycle_0/train/policy.pt"),
    *("--task=crossing", "--seed-start=0", "--episodes=5", "--out={tmp}/run/cycle_0/eval"),
    *("--result-json={tmp}/run/cycle_0/eval/result.json", "--filter=off"),
]
SELECT = ["cadenza-lerobot-select", "--suite=libero_10", "--result-json={tmp}/run/cycle_0/x.json"]
PLAYING = ("--env.type=pusht", "--eval_freq=10", "--eval.n_episodes=5")


def libero(*more, env="libero"):
    """An evaluation in suites of tasks."""
    return evaluate(f"--env.type={env}", *more, without=("--env.type",))


def collect(*more, without=()):
    return words_of(
        "cadenza job collect --task=crossing --episodes=5 --seed-start=0 --seed-count=5 "
        "--repo-id=local/d --out={tmp}/run/cycle_0/data "
        "--result-json={tmp}/run/cycle_0/data/result.json",
        more,
        without,
    )


EVASIONS = [
    # programs
    ("interpreter", ["python", "-m", "lerobot.scripts.train"]),
    ("program_path", ["/usr/bin/lerobot-train", *train()[1:]]),
    ("unknown_program", ["lerobot-train.py", *train()[1:]]),
    ("look_alike", ["lerobot‐train", *train()[1:]]),  # U+2010 HYPHEN
    ("look_alike", ["cаdenza", "job", "train"]),  # Cyrillic a
    ("forbidden_commands", ["lerobot-record", "--steps=1"]),
    ("unknown_subcommand", ["cadenza", "loop", "run"]),
    # words
    ("empty_command", []),
    ("empty_command", "lerobot-train --steps=1"),
    ("not_text", [*train(), 7]),
    ("control_character", train("--job_name=a\u202eb")),  # right-to-left override
    ("too_long", train("--job_name=" + "x" * (131_072 - 11))),
    ("forbidden_args", train("--robot.type=so100")),
    ("positional", train("cycle_1")),
    ("look_alike", train("--ѕteps=9")),  # Cyrillic dze
    ("response_file", train("@more_flags")),
    ("end_of_flags", train("--")),
    ("short_flag", train("-s=9")),
    # flags
    ("repeated_flag", train("--steps=300000")),
    ("repeated_flag", evaluate("--env_type=aloha")),
    ("spelling", train("--batch-size=9")),
    ("abbreviation", evaluate("--policy={tmp}/evil.yaml")),
    ("malformed_flag", train("--=9")),
    ("unknown_flag", evaluate("--env.hub_path=somebody/code")),
    ("plugin", train("--env.discover_packages_path=evil")),
    ("no_value", train("--seed")),
    ("empty_value", train("--seed=")),
    ("blank_value", train("--seed= 7")),
    ("hyphen_value", train("--seed=-1")),
    ("switch_value", [*HARVEST, "--episodes=5", "--keep-failures=true"]),
    ("missing_flag", train(without=("--policy.push_to_hub",))),
    ("conflicting_flags", train("--policy.path={tmp}/seed")),
    ("config_path", evaluate("--config_path={tmp}/run/cycle_0/eval.yaml")),
    # values
    ("whole_number", train("--seed=1_000")),
    ("whole_number", train("--seed=１００")),  # fullwidth digits, which int() reads
    ("range", train("--seed=4294967296")),
    ("number", train("--policy.dropout=nan")),
    ("range", native("--mix={tmp}/run/cycle_0/mix", "--mix-ratio=1.5")),
    ("boolean", train("--save_checkpoint=yes")),
    ("push_to_hub", train("--policy.push_to_hub=true", without=("--policy.push_to_hub",))),
    ("choice", train("--policy.type=sac", without=("--policy.type",))),
    ("wandb", train("--wandb.enable=true")),
    ("remote_code", evaluate("--trust_remote_code=true")),
    ("name", train("--dataset.repo_id=../../etc", without=("--dataset.repo_id",))),
    ("name", train("--policy.device=cuda;rm")),
    ("list", train("--dataset.episodes=0,1")),
    ("whole_number", train("--dataset.episodes=[0, 1_0]")),
    ("renaming", train('--rename_map={"a": 1}')),
    ("long_text", [*HARVEST, "--episodes=5", "--task-text=" + "x" * 501]),
    # paths
    ("path_outside_roots", train("--output_dir=/etc/x", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/run", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/run/../other", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/run/way_out/x", without=("--output_dir",))),
    (
        "path_outside_roots",
        train("--output_dir={tmp}/run_of_somebody_else/x", without=("--output_dir",)),
    ),
    ("path_outside_roots", evaluate("--policy.path={tmp}/other/w", without=("--policy.path",))),
    ("malformed_path", train("--output_dir=~/x", without=("--output_dir",))),
    ("allowed_hub_policies", evaluate("--policy.path=evil/w", without=("--policy.path",))),
    # limits
    ("max_train_steps", train("--steps=200001", without=("--steps",))),
    ("max_eval_episodes", evaluate("--eval.n_episodes=501", without=("--eval.n_episodes",))),
    ("max_collect_episodes", [*COLLECT, "--episodes=5", "--max-attempts=65537"]),
    ("allowed_env_types", evaluate("--env.type=gym_manipulator", without=("--env.type",))),
    # what a program does without being told
    ("missing_flag", train("--env.type=pusht", "--eval_freq=1")),  # 50 episodes each time
    ("missing_flag", [*COLLECT, "--episodes=10"]),  # five attempts for each
    ("missing_flag", native("--mix-ratio=0.5")),
    # episodes that are played again and again
    ("max_eval_episodes", train("--env.type=pusht", "--eval_freq=1", "--eval.n_episodes=26")),
    ("max_eval_episodes", train("--env.task=libero_90", "--env.type=libero", *PLAYING[1:])),
    ("max_eval_episodes", libero("--env.task=libero_10,libero_90")),
    ("unknown_suite", libero()),
    # what makes a policy look better than it is
    ("allowed_args", UNGUARDED),
    ("allowed_args", libero("--env.task=libero_10", "--env.init_states=true")),
    ("allowed_args", [*HARVEST, "--episodes=5", "--env.init_states=true"]),
    # other people's code and data
    ("unknown_program", ["lerobot-edit-dataset", "--operation.type=merge", "--repo_id=lerobot/x"]),
    ("choice", train("--policy.type=groot", without=("--policy.type",))),
    ("policy_type", evaluate("--policy.path={tmp}/seed/groot", without=("--policy.path",))),
    ("weights_file", evaluate("--policy.path={tmp}/seed/torn", without=("--policy.path",))),
    (
        "allowed_hub_datasets",
        train("--dataset.repo_id=evil/x", without=("--dataset.repo_id", "--dataset.root")),
    ),
    ("allowed_hub_datasets", train("--dataset.repo_id=evil/x", without=("--dataset.repo_id",))),
    (
        "allowed_hub_datasets",
        train("--mix.repo_id=evil/x", "--mix.root={tmp}/run/cycle_0/none", "--mix.ratio=0.5"),
    ),
    ("allowed_hub_datasets", [*SELECT, "--repo-id=evil/data"]),
    # settings from files
    ("config_path", train("--config_path={tmp}/run/cycle_0/train/train_config.json")),
    ("unknown_flag", train("--resume=true")),
    # places of the loop, and of what is read
    *(
        (
            "file_of_the_loop",
            native(f"--result-json={{tmp}}/run/{place}", without=("--result-json",)),
        )
        for place in ("events.jsonl", "cycle_0", "cycle_0/train.log", "way_in/jobs/train/end.json")
    ),
    ("overlapping_paths", native("--out={tmp}/run/cycle_0/train.json", without=("--out",))),
    ("overlapping_paths", native("--init={tmp}/run/cycle_0/train/policy")),
    (
        "overlapping_paths",
        [
            *("cadenza", "job", "merge", "--sources={tmp}/run/cycle_0/a,{tmp}/run/cycle_0/b"),
            *("--out={tmp}/run/cycle_0/b", "--repo-id=local/m"),
            "--result-json={tmp}/run/cycle_0/m.json",
        ],
    ),
    # seeds beyond the last, and letters that nobody sees
    ("range", collect(f"--seed-start={2**63 - 4}", without=("--seed-start",))),
    ("range", evaluate(f"--seed={2**32 - 9}")),
    ("range", [*HARVEST[:-2], f"--seed={2**32 - 24}", "--max-attempts=25", "--episodes=5"]),
    ("control_character", [*HARVEST, "--episodes=5", "--task-text=a\u3164b"]),  # HANGUL FILLER
    ("control_character", train("--output_dir={tmp}/run/\ufe00/x", without=("--output_dir",))),
]


@pytest.mark.parametrize(("rule", "command"), EVASIONS)
def test_evasion_is_refused_by_its_rule_and_logged(rule, command, roots, tmp_path, caplog):
    if isinstance(command, list):
        command = [
            word.replace("{tmp}", str(tmp_path)) if isinstance(word, str) else word
            for word in command
        ]
    with (
        caplog.at_level(logging.WARNING, "cadenza.loop"),
        pytest.raises(ConstitutionError, match=f"refused by the rule {rule}: expected") as caught,
    ):
        load_constitution(None).clear(command, roots)
    assert caught.value.verdict.allowed is False
    assert caught.value.verdict.rule == rule
    assert caught.value.verdict.reason.isprintable()
    assert rule in caplog.text


@pytest.mark.parametrize(
    "command",
    [
        train(),
        evaluate(),
        native(),
        [*HARVEST, "--episodes=5"],
        [*HARVEST, "--episodes=5", "--keep-failures"],
        evaluate("--policy.path=lerobot/smolvla_base", without=("--policy.path",)),
        [*HARVEST, "--episodes=5", "--task-text=schiebe das Stück, bitte"],
        train("--dataset.episodes=" + str(list(range(18_000)))),
        train("--output_dir={tmp}/run/way_in/x", without=("--output_dir",)),
        train("--output_dir={tmp}/run/cycle_1/../cycle_2/x", without=("--output_dir",)),
        train("--env.type=pusht", "--eval_freq=1", "--eval.n_episodes=25"),
        [*UNGUARDED[:-1], "--filter=on"],
        libero("--env.task=libero_10", "--env.init_states=false"),
        libero("--env.task=easy,medium,hard,very_hard", env="metaworld"),
        train("--dataset.repo_id=lerobot/x", without=("--dataset.repo_id", "--dataset.root")),
        train(
            *("--dataset.repo_id=any/x", "--dataset.root={tmp}/seed/there"),
            without=("--dataset.repo_id", "--dataset.root"),
        ),
        [*SELECT, "--repo-id=lerobot/x"],
        collect(),
        collect(
            f"--seed-start={2**63 - 5}", "--seed-count=5", without=("--seed-start", "--seed-count")
        ),
        evaluate(f"--seed={2**32 - 10}"),
    ],
)
def test_command_beside_the_evasions_is_allowed(command, roots, tmp_path):
    command = [word.replace("{tmp}", str(tmp_path)) for word in command]
    job = load_constitution(None).clear(command, roots)
    assert load_constitution(None).clear(job.argv(), roots) == job


PROGRAMS = (
    *("cadenza", "lerobot-train", "lerobot-eval"),
    *("cadenza-lerobot-collect", "cadenza-lerobot-select"),
)
FULL = {
    "allowed_programs": [*PROGRAMS],
    "allowed_hub_datasets": ["owner/data"],
    "allowed_env_types": ["pusht"],
    "max_train_steps": 100,
    "max_eval_episodes": 10,
    "max_collect_episodes": 10,
}


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("allowed_programs", train()),
        ("max_train_steps", train()),
        ("max_eval_episodes", evaluate()),
        ("allowed_env_types", evaluate()),
        ("max_eval_episodes", train(*PLAYING)),
        ("max_collect_episodes", [*COLLECT, "--episodes=2", "--max-attempts=10"]),
        ("allowed_hub_datasets", [*SELECT, "--repo-id=owner/data"]),
    ],
)
def test_rule_that_the_file_lacks_permits_nothing(missing, command, roots, tmp_path):
    command = [word.replace("{tmp}", str(tmp_path)) for word in command]
    Constitution(FULL).clear(command, roots)
    rules = {name: value for name, value in FULL.items() if name != missing}
    with pytest.raises(ConstitutionError, match=f"refused by the rule {missing}: "):
        Constitution(rules).clear(command, roots)


def extra(key, **entry):
    return {"extra_keys": {"lerobot-eval": {key: entry}}}


@pytest.mark.parametrize(
    ("rule", "change", "message"),
    [
        ("unknown_rule", {"max_trainsteps": 5}, "did you mean 'max_train_steps'"),
        ("malformed_rule", {"max_train_steps": "100"}, "expected a whole number, got '100'"),
        ("malformed_rule", {"allowed_env_types": "pusht"}, "expected a list, got 'pusht'"),
        ("malformed_rule", {"allowed_hub_datasets": ["data"]}, r"allowed_hub_datasets\[0\]"),
        ("malformed_rule", extra("eval.n_episodes", kind="name"), "expected new flags"),
        ("malformed_rule", extra("x", kind="integer", low=3, high=2), r"low: expected .* 3\.0 > 2"),
        ("malformed_rule", extra("x", kind="choice"), "choices: expected for the kind"),
        *(
            ("malformed_rule", extra(key, kind="text"), "expected the name of a flag that can be")
            for key in ("config_path", "resume", "env.kwargs", "policy.base_model_path")
        ),
    ],
)
def test_malformed_rule_is_refused_with_its_name(rule, change, message):
    with pytest.raises(ConstitutionError, match=message) as caught:
        Constitution({**FULL, **change})
    assert caught.value.verdict.rule == rule


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("malformed_rule", ""),
        ("malformed_rule", "- lerobot-train\n"),
        ("unreadable_rules", "a: [\n"),
        ("unreadable_rules", "max_train_steps: 5\nmax_train_steps: 500000\n"),
        ("unreadable_rules", None),
    ],
)
def test_file_that_holds_no_rules_is_refused(rule, text, tmp_path):
    path = tmp_path / "constitution.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConstitutionError, match="expected") as caught:
        Constitution.from_yaml(path)
    assert caught.value.verdict.rule == rule


def test_forbidden_argument_is_found_in_both_forms_of_a_flag():
    rules = Constitution({**FULL, "forbidden_args": ["--policy.type=act"]})
    split = train("--policy.type", "act", without=("--policy.type",))
    assert rules.check_command(train()).rule == "forbidden_args"
    assert rules.check_command(split).rule == "forbidden_args"


def test_job_writes_in_its_own_folder_alone(roots, tmp_path):
    """Not into another stage's, such as the one that holds the blessed policy."""
    own = Roots(write=roots.write, read=roots.read, job=tmp_path / "run" / "cycle_0" / "train")
    words = [word.replace("{tmp}", str(tmp_path)) for word in native()]
    with pytest.raises(ConstitutionError, match="rule path_outside_job: expected --result-json in"):
        load_constitution(None).clear(words, own)
    inside = [word.replace("train.json", "train/result.json") for word in words]
    load_constitution(None).clear(inside, own)
    elsewhere = [word.replace("/cycle_0/train", "/cycle_0/data2") for word in inside]
    with pytest.raises(ConstitutionError, match="rule path_outside_job: expected --out in"):
        load_constitution(None).clear(elsewhere, own)


def test_suite_that_the_run_describes_is_counted(roots, tmp_path):
    command = [word.replace("{tmp}", str(tmp_path)) for word in libero("--env.task=mine")]
    rules = load_constitution(None).with_suites({"mine": 50})
    assert rules.sha256 == load_constitution(None).sha256
    rules.clear(command, roots)
    with pytest.raises(ConstitutionError, match=r"rule max_eval_episodes: .* got 510"):
        load_constitution(None).with_suites({"mine": 51}).clear(command, roots)


@pytest.mark.parametrize(
    ("task", "env", "known", "message"),
    [
        ("libero_90", "libero", {"libero_90": 1}, "max_eval_episodes: .* got 900"),
        ("easy,hard", "metaworld", {"easy": 1, "hard": 1}, "max_eval_episodes: .* got 340"),
        ("eazy", "metaworld", {"eazy": 1}, "unknown_suite: .* did you mean 'easy'?"),
        ("Push-V3", "metaworld", {}, "unknown_suite: .* did you mean 'push-v3'?"),
        ("ML10", "metaworld", {}, "unknown_suite: .* correct it"),
    ],
)
def test_descriptions_of_suites_cannot_make_them_smaller_nor_new_ones_of_meta_world(
    task, env, known, message, roots, tmp_path
):
    words = libero(f"--env.task={task}", env=env)
    command = [word.replace("{tmp}", str(tmp_path)) for word in words]
    rules = Constitution({**load_constitution(None).rules.model_dump(), "max_eval_episodes": 300})
    with pytest.raises(ConstitutionError, match=message):
        rules.with_suites(known).clear(command, roots)
    one = [word.replace(f"={task}", "=metaworld-push-v3") for word in command]
    if env == "metaworld":
        rules.with_suites(known).clear(one, roots)


#: A folder as LeRobot saves it: what matters of each file.
SAVED = {
    "config.json": {
        "type": "act",
        "input_features": {"class": {"type": "STATE"}},
        "hub_path": None,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",  # LeRobot's own
        "pretrained_path": "/where/it/was/trained",  # LeRobot takes the flag's instead
        "repo_id": None,
        "vision_backbone": "resnet18",
    },
    "train_config.json": {"dataset": {"repo_id": "me/data", "root": "/data"}},
    "policy_preprocessor.json": {
        "steps": [
            {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
            {"registry_name": "normalizer_processor", "state_file": "normalizer.safetensors"},
            {
                "registry_name": "tokenizer_processor",
                "config": {"tokenizer_name": "lerobot/smolvla_base", "padding": "longest"},
            },
        ]
    },
    "policy_postprocessor.json": {"steps": [{"registry_name": "unnormalizer_processor"}]},
    "adapter_config.json": {
        "base_model_name_or_path": "lerobot/smolvla_base",
        "auto_mapping": {"parent_library": "lerobot.policies.smolvla.modeling_smolvla"},
    },
    "normalizer.safetensors": {},
    "README.md": {},
    ".cache/huggingface/lock.metadata": {},
}


def saved_weights(folder, changed):
    for name, content in {**SAVED, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return evaluate(f"--policy.path={folder}", without=("--policy.path",))


def steps(**entry):
    return {"steps": [{"registry_name": "device_processor"}, entry]}


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("policy_preprocessor.json", steps(**{"class": "os.system"}), "class = 'os.system'"),
        ("policy_preprocessor.json", steps(registry_name="mine"), "registry_name = 'mine'"),
        (
            "policy_preprocessor.json",  # fetches code of the hub, unless told otherwise
            steps(registry_name="action_tokenizer_processor"),
            "registry_name = 'action_tokenizer_processor'",
        ),
        ("config.json", {"type": "act", "trust_remote_code": True}, "trust_remote_code = "),
        ("train_config.json", {"env": {"hub_path": "evil/env"}}, "hub_path = 'evil/env'"),
        ("adapter_config.json", {"base_model_name_or_path": "evil/base"}, "'evil/base'"),
        ("adapter_config.json", {"base_model_name_or_path": "a\0b"}, "null byte"),
        ("config.json", {"type": "groot"}, "'groot'"),
        ("config.json", {"vlm_model_name": "evil/vlm"}, "vlm_model_name = 'evil/vlm'"),
        ("config.json", {"vlm_model_name": "/etc"}, "vlm_model_name = '/etc'"),
        ("config.json", {"a": [{"b": ["x", "evil/vlm"]}]}, "b = 'evil/vlm'"),
        ("config.json", {"vlm": {"model_name": "gpt2"}}, "model_name = 'gpt2'"),
        ("config.json", {"rtc": {"pretrained_path": "evil/w"}}, "pretrained_path = 'evil/w'"),
        ("config.json", {"x": "https://evil/x"}, "x = 'https://evil/x'"),
        ("config.json", {"x": "a/../../b"}, "x = 'a/../../b'"),
        (
            "policy_preprocessor.json",
            steps(registry_name="tokenizer_processor", config={"tokenizer_name": ["evil/t"]}),
            "tokenizer_name = 'evil/t'",
        ),
        ("inner/policy_preprocessor.json", {"tokenizer_name": "../tokens"}, "'../tokens'"),
        ("tokens/tokenizer_config.json", {"auto_map": {"A": ["evil/t--t.T"]}}, "'evil/t--t.T'"),
        ("adapter_config.json", {"x_name_or_path": "evil/base"}, "'evil/base'"),
        ("adapter_model.bin", {}, "adapter_model.bin"),
    ],
)
def test_folder_of_weights_that_could_run_programs_is_refused(
    name, content, shown, roots, tmp_path
):
    folder = tmp_path / "seed" / "weights"
    argv = saved_weights(folder, {name: content})
    argv = [word.replace("{tmp}", str(tmp_path)) for word in argv]
    with pytest.raises(ConstitutionError) as caught:
        load_constitution(None).clear(argv, roots)
    assert shown in str(caught.value)
    assert name in str(caught.value) or "base_model_name_or_path" in content


def test_folder_of_weights_as_lerobot_saves_it_is_cleared(roots, tmp_path):
    itself = {"base_model_name_or_path": str(tmp_path / "seed" / "weights")}  # LeRobot's trouble
    argv = saved_weights(tmp_path / "seed" / "weights", {"x/adapter_config.json": itself})
    argv = [word.replace("{tmp}", str(tmp_path)) for word in argv]
    job = load_constitution(None).clear(argv, roots)
    assert dict(job.flags)["policy.path"] == str(tmp_path / "seed" / "weights")


def test_rule_allows_what_weakens_an_evaluation(roots, tmp_path):
    rules = load_constitution(None).rules.model_dump(mode="json")
    easier = libero("--env.task=libero_90", "--env.task_ids=" + str([*range(50)]))
    longer = libero("--env.task=libero_90", "--env.task_ids=" + str([*range(51)]))
    constitution = Constitution({**rules, "allowed_args": ["--filter=off", "--env.task_ids="]})
    for command in (UNGUARDED, easier):
        constitution.clear([word.replace("{tmp}", str(tmp_path)) for word in command], roots)
    with pytest.raises(ConstitutionError, match="max_eval_episodes"):
        constitution.clear([word.replace("{tmp}", str(tmp_path)) for word in longer], roots)
