"""Commands that try to get around the rules; each must be refused by the rule that is meant."""

import logging

import pytest

from cadenza.loop.constitution import Constitution, ConstitutionError, Roots, load_constitution
from cadenza.loop.constitution.shipped import LEAGENTS_PATH


@pytest.fixture
def roots(tmp_path):
    run = tmp_path / "run"
    (run / "cycle_0").mkdir(parents=True)
    (tmp_path / "seed").mkdir()
    (tmp_path / "other").mkdir()
    (run / "way_out").symlink_to(tmp_path / "other")
    (run / "way_in").symlink_to(run / "cycle_0")
    (tmp_path / "run_of_somebody_else").mkdir()
    return Roots(write=(run,), read=(tmp_path / "seed",))


def train(*more, without=()):
    """A training command of LeRobot; ``{tmp}`` stands for the test's folder."""
    words = [
        "lerobot-train",
        "--policy.type=act",
        "--policy.push_to_hub=false",
        "--dataset.repo_id=local/x",
        "--dataset.root={tmp}/seed",
        "--output_dir={tmp}/run/cycle_0/train",
        "--steps=20",
    ]
    return [word for word in words if word.partition("=")[0] not in without] + list(more)


def evaluate(*more, without=()):
    words = [
        "lerobot-eval",
        "--policy.path={tmp}/run/cycle_0/train/last",
        "--env.type=pusht",
        "--eval.n_episodes=10",
        "--output_dir={tmp}/run/cycle_0/eval",
    ]
    return [word for word in words if word.partition("=")[0] not in without] + list(more)


def native(*more, without=()):
    words = [
        "cadenza",
        "job",
        "train",
        "--rung=bc",
        "--dataset={tmp}/run/cycle_0/data",
        "--steps=20",
        "--batch-size=32",
        "--seed=1",
        "--out={tmp}/run/cycle_0/train",
        "--result-json={tmp}/run/cycle_0/train.json",
    ]
    return [word for word in words if word.partition("=")[0] not in without] + list(more)


def resume(*more, path="{tmp}/run/cycle_0/train/train_config.json"):
    return [
        "lerobot-train",
        f"--config_path={path}",
        "--resume=true",
        "--steps=20",
        "--policy.push_to_hub=false",
        *more,
    ]


HARVEST = [
    "cadenza-lerobot-collect",
    "--policy-path={tmp}/run/cycle_0/train",
    "--env-type=pusht",
    "--task=PushT-v0",
    "--out={tmp}/run/cycle_0/harvest",
    "--repo-id=local/harvest",
    "--seed=7",
]
MERGE = [
    "lerobot-edit-dataset",
    "--operation.repo_ids=[local/a, local/b]",
    "--repo_id=local/mix",
]

EVASIONS = [
    # programs
    ("interpreter", ["python", "-m", "lerobot.scripts.train"]),
    ("interpreter", ["python3.11", "-c", "print()"]),
    ("interpreter", ["bash", "-c", "lerobot-train"]),
    ("interpreter", ["sh", "run.sh"]),
    ("interpreter", ["env", "X=1", "lerobot-train"]),
    ("interpreter", ["sudo", "lerobot-train"]),
    ("interpreter", ["PYTHON.EXE", "-m", "lerobot"]),
    ("program_path", ["/usr/bin/lerobot-train", *train()[1:]]),
    ("program_path", ["./lerobot-train", *train()[1:]]),
    ("program_path", ["bin/lerobot-train", *train()[1:]]),
    ("program_path", ["../bin/lerobot-train", *train()[1:]]),
    ("program_path", ["~/lerobot-train", *train()[1:]]),
    ("program_path", ["C:\\lerobot-train", *train()[1:]]),
    ("unknown_program", ["lerobot-train.py", *train()[1:]]),
    ("unknown_program", ["LEROBOT-TRAIN", *train()[1:]]),
    ("unknown_program", [" lerobot-train", *train()[1:]]),
    ("unknown_program", ["lerobot-find-port"]),
    ("unknown_program", ["rm", "-rf", "x"]),
    ("unknown_program", ["", *train()[1:]]),
    ("look_alike", ["lerobot‐train", *train()[1:]]),  # U+2010 HYPHEN
    ("look_alike", ["ⅼerobot-train", *train()[1:]]),  # U+217C, an l under NFKC
    ("look_alike", ["cаdenza", "job", "train"]),  # Cyrillic a
    ("forbidden_commands", ["lerobot-record", "--steps=1"]),
    ("forbidden_commands", ["lerobot-teleoperate"]),
    ("forbidden_commands", ["lerobot-async-inference"]),
    ("unknown_subcommand", ["cadenza", "loop", "run"]),
    ("unknown_subcommand", ["cadenza", "job", "tr"]),
    ("unknown_subcommand", ["cadenza", "--help"]),
    ("unknown_subcommand", ["cadenza", "--version", *native()[1:]]),
    # words
    ("empty_command", []),
    ("empty_command", "lerobot-train --steps=1"),
    ("not_text", [*train(), 7]),
    ("not_text", [*train(), b"--seed=1"]),
    ("control_character", train("--job_name=a\x00b")),
    ("control_character", train("--job_name=a\nb")),
    ("control_character", train("--job_name=a\u202eb")),  # right-to-left override
    ("control_character", train("--job\u200b_name=a")),  # zero-width space
    ("control_character", train("--job_name=a\udcffb")),  # a byte that is not UTF-8
    ("control_character", train("--job_name=a\u2028b")),
    ("too_long", train(*[f"--job_name={number}" for number in range(600)])),
    ("too_long", train("--job_name=" + "x" * (131_072 - 11))),
    ("forbidden_args", train("--robot.type=so100")),
    ("forbidden_args", train("--teleop")),
    ("forbidden_args", train("--job_name", "--robot")),
    ("positional", train("cycle_1")),
    ("positional", ["cadenza", "job", "train", "now", *native()[3:]]),
    ("look_alike", train("—steps=9")),  # EM DASH
    ("look_alike", train("--ѕteps=9")),  # Cyrillic dze
    ("look_alike", train("--steps\uff1d9")),  # FULLWIDTH EQUALS SIGN
    ("response_file", train("@more_flags")),
    ("response_file", train("--job_name", "@more_flags")),
    ("response_file", train("--job_name=@more_flags")),
    ("end_of_flags", train("--")),
    ("short_flag", train("-s=9")),
    ("short_flag", train("-c", "x")),
    # flags
    ("repeated_flag", train("--steps=300000")),
    ("repeated_flag", train("--steps", "300000")),
    ("repeated_flag", train("--dataset.root={tmp}/run/cycle_0")),
    ("repeated_flag", train("--output-dir={tmp}/run/cycle_1")),
    ("repeated_flag", train("--output.dir={tmp}/run/cycle_1")),
    ("repeated_flag", train("--STEPS=300000")),
    ("repeated_flag", native("--batch_size=9")),
    ("repeated_flag", evaluate("--env_type=aloha")),
    ("spelling", train("--batch-size=9")),
    ("spelling", train("--Seed=9")),
    ("spelling", evaluate("--eval.batch-size=9")),
    ("spelling", native("--mix_ratio=0.5")),
    ("abbreviation", train("--batch=9")),
    ("abbreviation", native("--max=3")),
    ("abbreviation", evaluate("--policy={tmp}/evil.yaml")),
    ("abbreviation", train("--env={tmp}/evil.yaml")),
    ("malformed_flag", train("--=9")),
    ("malformed_flag", train("--steps+=9")),
    ("malformed_flag", train("--ste ps=9")),
    ("spelling", train("---job_name=9")),
    ("unknown_flag", train("--hub_token=x")),
    ("unknown_flag", evaluate("--env.hub_path=somebody/code")),
    ("unknown_flag", train("--policy.pretrained_path={tmp}/other")),
    ("unknown_flag", native("--wandb.enable=false")),
    ("plugin", train("--env.discover_packages_path=evil")),
    ("plugin", train("--job_name=discover_packages_path")),
    ("positional", [*HARVEST, "--episodes=5", "--keep-failures", "true"]),
    ("no_value", train("--seed")),
    ("no_value", train("--seed", "--job_name=a")),
    ("empty_value", train("--seed=")),
    ("empty_value", train("--job_name=  ")),
    ("blank_value", train("--seed= 7")),
    ("hyphen_value", train("--seed=-1")),
    ("hyphen_value", train("--seed", "-1")),
    ("switch_value", [*HARVEST, "--episodes=5", "--keep-failures=true"]),
    ("missing_flag", train(without=("--steps",))),
    ("missing_flag", train(without=("--policy.push_to_hub",))),
    ("missing_flag", train(without=("--output_dir",))),
    ("missing_flag", evaluate(without=("--env.type",))),
    ("missing_flag", native(without=("--result-json",))),
    ("conflicting_flags", train("--policy.path={tmp}/seed")),
    ("conflicting_flags", train("--eval_freq=1", "--env_eval_freq=1")),
    ("config_path", evaluate("--config_path={tmp}/run/cycle_0/eval.yaml")),
    ("config_path", native("--config={tmp}/run/cycle_0/eval.yaml")),
    ("config_path", train("--resume=true")),
    ("config_path", resume()[:2] + resume()[3:]),  # without --resume=true
    ("config_path", [*resume()[:2], "--resume=false", *resume()[3:]]),
    ("conflicting_flags", resume("--output_dir={tmp}/run/cycle_1/train")),
    ("path_outside_roots", resume(path="{tmp}/seed/train_config.json")),
    # values
    ("whole_number", train("--seed=1_000")),
    ("whole_number", train("--seed=１００")),  # fullwidth digits, which int() reads
    ("whole_number", train("--seed=٣")),  # Arabic-Indic digit
    ("whole_number", train("--seed=1e5")),
    ("whole_number", train("--seed=10.0")),
    ("whole_number", train("--seed=+10")),
    ("whole_number", train("--seed=010")),
    ("whole_number", train("--seed=0x10")),
    ("whole_number", train("--seed=true")),
    ("whole_number", train("--seed=" + "9" * 30)),
    ("range", train("--seed=4294967296")),
    ("range", train("--steps=0", without=("--steps",))),
    ("number", train("--policy.dropout=nan")),
    ("number", train("--policy.dropout=1e999")),
    ("range", native("--mix-ratio=1.5")),
    ("boolean", train("--save_checkpoint=yes")),
    ("push_to_hub", train("--policy.push_to_hub=true", without=("--policy.push_to_hub",))),
    ("push_to_hub", train("--policy.push_to_hub=False", without=("--policy.push_to_hub",))),
    ("push_to_hub", [*MERGE, "--operation.type=merge", "--push_to_hub=true"]),
    ("choice", [*MERGE, "--operation.type=delete_episodes", "--push_to_hub=false"]),
    ("choice", train("--policy.type=sac", without=("--policy.type",))),
    ("wandb", train("--wandb.enable=true")),
    ("remote_code", evaluate("--trust_remote_code=true")),
    ("name", train("--dataset.revision=a b")),
    ("name", train("--dataset.repo_id=../../etc", without=("--dataset.repo_id",))),
    ("name", train("--dataset.repo_id=local/..", without=("--dataset.repo_id",))),
    ("name", train("--dataset.revision=a..b")),
    ("name", train("--policy.device=cuda;rm")),
    ("list", train("--dataset.episodes=0,1")),
    ("list", train("--dataset.episodes=(0, 1)")),
    ("list", train("--dataset.episodes=[0, 1)")),
    ("list", train("--dataset.episodes=[]")),
    ("list", train("--dataset.episodes=[0,,1]")),
    ("list", train("--dataset.episodes=[[0]]")),
    ("whole_number", train("--dataset.episodes=[0, 1_0]")),
    ("renaming", train('--rename_map={"a": 1}')),
    ("renaming", train("--rename_map=[1]")),
    ("renaming", train('--rename_map={"a": "b", "a": "c"}')),
    ("long_text", [*HARVEST, "--episodes=5", "--task-text=" + "x" * 501]),
    # paths
    ("path_outside_roots", train("--output_dir=/etc/x", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/seed/x", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/run", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/run/../other", without=("--output_dir",))),
    ("path_outside_roots", train("--output_dir={tmp}/run/way_out/x", without=("--output_dir",))),
    (
        "path_outside_roots",
        train("--output_dir={tmp}/run_of_somebody_else/x", without=("--output_dir",)),
    ),
    ("path_outside_roots", train("--output_dir=x", without=("--output_dir",))),
    ("path_outside_roots", train("--dataset.root={tmp}/other", without=("--dataset.root",))),
    ("path_outside_roots", evaluate("--policy.path={tmp}/other/w", without=("--policy.path",))),
    ("malformed_path", train("--output_dir=~/x", without=("--output_dir",))),
    ("malformed_path", train("--output_dir=file:///x", without=("--output_dir",))),
    ("malformed_path", train("--output_dir=/" + "x/" * 3000, without=("--output_dir",))),
    ("allowed_hub_policies", evaluate("--policy.path=evil/w", without=("--policy.path",))),
    # limits
    ("max_train_steps", train("--steps=200001", without=("--steps",))),
    ("max_train_steps", train("--steps", "200001", without=("--steps",))),
    ("max_train_steps", native("--steps=200001", without=("--steps",))),
    ("max_train_steps", [*resume()[:3], "--steps=200001", "--policy.push_to_hub=false"]),
    ("max_eval_episodes", evaluate("--eval.n_episodes=501", without=("--eval.n_episodes",))),
    ("max_eval_episodes", train("--eval.n_episodes=501")),
    ("max_eval_episodes", [*HARVEST, "--episodes=501"]),
    ("max_collect_episodes", [*HARVEST, "--episodes=5", "--max-attempts=65537"]),
    ("allowed_env_types", evaluate("--env.type=gym_manipulator", without=("--env.type",))),
    ("allowed_env_types", train("--env.type=isaaclab_arena")),
]


def test_there_are_enough_different_evasions():
    assert len(EVASIONS) >= 60
    assert len({str(command) for _, command in EVASIONS}) == len(EVASIONS)
    assert len({rule for rule, _ in EVASIONS}) >= 35


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
        resume(),
        [*HARVEST, "--episodes=5"],
        [*HARVEST, "--episodes=5", "--keep-failures"],
        [*MERGE, "--operation.type=merge", "--push_to_hub=false"],
        train("--steps", "200000", without=("--steps",)),
        evaluate("--eval.n_episodes=500", without=("--eval.n_episodes",)),
        evaluate("--policy.path=lerobot/smolvla_base", without=("--policy.path",)),
        [*HARVEST, "--episodes=5", "--task-text=schiebe das Stück, bitte"],
        train("--dataset.episodes=" + str(list(range(18_000)))),
        train("--output_dir={tmp}/run/way_in/x", without=("--output_dir",)),
        train("--output_dir={tmp}/run/cycle_1/../cycle_2", without=("--output_dir",)),
    ],
)
def test_command_beside_the_evasions_is_allowed(command, roots, tmp_path):
    command = [word.replace("{tmp}", str(tmp_path)) for word in command]
    job = load_constitution(None).clear(command, roots)
    assert load_constitution(None).clear(job.argv(), roots) == job


FULL = {
    "allowed_programs": ["cadenza", "lerobot-train", "lerobot-eval"],
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
        ("max_train_steps", native()),
        ("max_eval_episodes", evaluate()),
        ("max_eval_episodes", train("--eval.n_episodes=1")),
        ("allowed_env_types", evaluate()),
        ("allowed_env_types", train("--env.type=pusht")),
    ],
)
def test_rule_that_the_file_lacks_permits_nothing(missing, command, roots, tmp_path):
    command = [word.replace("{tmp}", str(tmp_path)) for word in command]
    Constitution.from_rules(FULL).clear(command, roots)
    rules = {name: value for name, value in FULL.items() if name != missing}
    with pytest.raises(ConstitutionError, match=f"refused by the rule {missing}: "):
        Constitution.from_rules(rules).clear(command, roots)


@pytest.mark.parametrize(
    ("rule", "change", "message"),
    [
        ("unknown_rule", {"max_trainsteps": 5}, "did you mean 'max_train_steps'"),
        ("unknown_rule", {"forbiden_commands": ["x"]}, "did you mean 'forbidden_commands'"),
        ("malformed_rule", {"max_train_steps": "100"}, "expected a whole number, got '100'"),
        ("malformed_rule", {"max_train_steps": True}, "expected a whole number, got True"),
        ("malformed_rule", {"max_train_steps": 1.5}, "expected a whole number, got 1.5"),
        ("malformed_rule", {"max_train_steps": -1}, "expected greater than or equal to 0, got -1"),
        ("malformed_rule", {"allowed_env_types": "pusht"}, "expected a list, got 'pusht'"),
        ("malformed_rule", {"forbidden_args": [""]}, r"forbidden_args\[0\]: expected"),
        ("malformed_rule", {"allowed_hub_policies": ["*"]}, r"allowed_hub_policies\[0\]"),
        ("malformed_rule", {"extra_keys": {"rm": {}}}, "expected programs of"),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-train": {"steps": {"kind": "name"}}}},
            "expected new flags",
        ),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-train": {"Batch_size": {"kind": "name"}}}},
            "expected the name of a flag",
        ),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-train": {"batch-size": {"kind": "name"}}}},
            "expected new flags",
        ),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-eval": {"env.hub_path": {"kind": "name"}}}},
            "expected the name of a flag that can be allowed",
        ),
        (
            "unknown_rule",
            {"extra_keys": {"lerobot-eval": {"x": {"kind": "name", "hihg": 3}}}},
            r"lerobot-eval\.x\.hihg: expected a known key, got 'hihg'; remove it",
        ),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-eval": {"x": {"kind": "integer"}}}},
            r"eval\.x\.high: expected for a number",
        ),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-eval": {"x": {"kind": "integer", "low": 3, "high": 2}}}},
            r"low: expected at most high, got 3\.0 > 2\.0",
        ),
        (
            "malformed_rule",
            {"extra_keys": {"lerobot-eval": {"x": {"kind": "choice"}}}},
            "choices: expected for the kind",
        ),
    ],
)
def test_malformed_rule_is_refused_with_its_name(rule, change, message):
    with pytest.raises(ConstitutionError, match=message) as caught:
        Constitution.from_rules({**FULL, **change})
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


def test_leagents_path_is_obeyed_where_it_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_constitution(LEAGENTS_PATH).sha256 == load_constitution(None).sha256
    (tmp_path / "configs").mkdir()
    (tmp_path / LEAGENTS_PATH).write_text("max_train_steps: 7\n")
    assert load_constitution(LEAGENTS_PATH).rules.max_train_steps == 7


def test_forbidden_argument_is_found_in_both_forms_of_a_flag():
    rules = Constitution.from_rules({**FULL, "forbidden_args": ["--policy.type=act"]})
    split = train("--policy.type", "act", without=("--policy.type",))
    assert rules.check_command(train()).rule == "forbidden_args"
    assert rules.check_command(split).rule == "forbidden_args"
