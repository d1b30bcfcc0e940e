from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from cadenza.cli.main import app
from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.constitution import (
    Constitution,
    ConstitutionError,
    Roots,
    Verdict,
    load_constitution,
)
from cadenza.loop.constitution.constitution import Rules
from cadenza.loop.constitution.flags import fold
from cadenza.loop.constitution.typed_jobs import (
    PROGRAMS,
    LeRobotHarvest,
    LeRobotMerge,
    LeRobotSelect,
    LeRobotTrain,
    NativeCollect,
    NativeMerge,
    NativeTrain,
)
from cadenza.loop.orchestrator import constitution as promised

RUN = Path("/srv/runs/friday").resolve()
ROOTS = Roots(write=(RUN,), read=(Path("/srv/seed"),))
OUTPUT = f"{RUN}/cycle_0"
COLLECTING = ["--task=crossing", "--episodes=16", "--seed-start=268435456", "--seed-count=64"]


def clear(*words):
    return load_constitution(None).clear(words, ROOTS)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.title())
def test_every_program_is_consistent(program):
    kinds = program.kinds()
    assert len({fold(key) for key in kinds}) == len(kinds)
    fields = set(program.model_fields) - {"more", "extra"}
    assert len(kinds) == len(fields) + len(program.FURTHER)
    beside = [group | {key} for key, group in program.BESIDE]
    for group in (*program.required(), *program.AT_MOST_ONE, *beside):
        assert group <= set(kinds)


def test_native_commands_become_typed_jobs():
    end = [f"--out={OUTPUT}/out", f"--result-json={OUTPUT}/result.json"]
    collect = clear(
        *("cadenza", "job", "collect", *COLLECTING, "--repo-id=local/seed", *end),
        *("--partners=crossing_chaser,crossing_stationary", "--expert=planner", "--focus=a"),
    )
    assert isinstance(collect, NativeCollect)
    assert (collect.env_type, collect.episodes) == ("crossing", 16)
    assert (collect.seed_start, collect.seed_count) == (2**28, 64)
    assert dict(collect.flags)["out"] == str(RUN / "cycle_0" / "out")
    train = clear(
        *("cadenza", "job", "train", "--rung=bc", "--dataset=/srv/seed", "--episodes=0,3,4"),
        *(f"--mix={OUTPUT}/mix", "--mix-ratio=0.5", "--steps=2000", "--batch-size=256"),
        *("--max-epochs=50", f"--init={OUTPUT}/last", "--seed=0", *end),
    )
    assert isinstance(train, NativeTrain)
    assert (train.steps, train.dataset_root) == (2000, Path("/srv/seed"))
    assert dict(train.flags)["init"] == str(RUN / "cycle_0/last")
    merge = clear(
        *("cadenza", "job", "merge", f"--sources={OUTPUT}/a,{OUTPUT}/b", "--repo-id=local/m", *end)
    )
    assert isinstance(merge, NativeMerge)
    assert merge.sources == (RUN / "cycle_0/a", RUN / "cycle_0/b")


def test_lerobot_commands_become_typed_jobs():
    train = clear(
        *("lerobot-train", "--policy.path=lerobot/smolvla_base", "--policy.push_to_hub=false"),
        *("--dataset.repo_id=local/x", "--dataset.root=/srv/seed", f"--output_dir={OUTPUT}/t"),
        *("--dataset.episodes=[0, 1]", "--steps=20", "--policy.optimizer_lr=1e-4"),
        *("--policy.down_dims=[32,64]", '--rename_map={"b": "c", "a.x": "d"}', "--env.type=pusht"),
        *(
            "--eval.n_episodes=3",
            "--eval_freq=10",
            "--wandb.enable=false",
            "--dataset.video_backend=pyav",
        ),
    )
    assert isinstance(train, LeRobotTrain)
    assert train.steps == 20
    assert (train.env_type, train.eval_episodes) == ("pusht", 3)
    flags = dict(train.flags)
    assert flags["policy.optimizer_lr"] == "0.0001"
    assert flags["policy.down_dims"] == "[32, 64]"
    assert flags["rename_map"] == '{"a.x": "d", "b": "c"}'
    harvest = clear(
        *("cadenza-lerobot-collect", f"--policy-path={OUTPUT}/t", "--env-type=pusht"),
        *("--task=PushT-v0", "--episodes=5", "--max-attempts=25", f"--out={OUTPUT}/r", "--seed=9"),
        *("--repo-id=local/r", "--device=cuda:0", "--task-text=push the T, please", "--fps=10"),
        "--keep-failures",
    )
    assert isinstance(harvest, LeRobotHarvest)
    assert (harvest.attempts, dict(harvest.flags)["device"]) == (25, "cuda:0")
    assert harvest.flags[-1] == ("keep-failures", None)
    select = clear("cadenza-lerobot-select", "--repo-id=lerobot/x", "--suite=libero_spatial")
    assert isinstance(select, LeRobotSelect)
    assert select.flags[1:] == (("suite", "libero_spatial"),)
    merge = clear(
        *("cadenza-lerobot-merge", "--repo-ids=local/a,local/b", f"--roots={OUTPUT}/a,{OUTPUT}/b"),
        *("--repo-id=local/mix", f"--out={OUTPUT}/mix"),
    )
    assert isinstance(merge, LeRobotMerge)
    assert merge.source_ids == ("local/a", "local/b")
    assert dict(merge.flags)["out"] == str(RUN / "cycle_0/mix")


def test_link_that_leads_to_an_odd_name_is_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "run" / "a,b").mkdir()
    (run / "link").symlink_to(run / "a,b")
    (run / "blank").symlink_to(run / "ends ")
    words = ["cadenza", "job", "merge", "--repo-id=x", f"--out={run}/o", f"--result-json={run}/r"]
    roots = Roots(write=(run,))
    with pytest.raises(ConstitutionError, match="rule list: expected plain items"):
        load_constitution(None).clear([*words, f"--sources={run}/link,{run}/b"], roots)
    with pytest.raises(ConstitutionError, match=r"rule malformed_path: .* to lead to a plain path"):
        load_constitution(None).clear([*words, f"--sources={run}/blank,{run}/b"], roots)


def test_promised_checks_answer_with_verdicts():
    constitution = promised.Constitution.from_yaml(shipped_config("loop/constitution.yaml"))
    assert promised.Verdict is Verdict
    assert promised.ConstitutionError is ConstitutionError
    assert constitution.check_train(200_000) == Verdict(allowed=True)
    assert constitution.check_train(200_001).rule == "max_train_steps"
    assert constitution.check_train(200_001).reason == "expected at most 200000, got 200001"
    assert constitution.check_eval("libero", 500) == Verdict(allowed=True)
    assert constitution.check_eval("libero", 501).rule == "max_eval_episodes"
    assert constitution.check_eval("aloha", 1).rule == "allowed_env_types"
    assert "expected one of ['" in constitution.check_eval("aloha", 1).reason
    assert constitution.check_command(["lerobot-record"]).rule == "forbidden_commands"
    allowed = ["lerobot-eval", "--policy.path=x", "--env.type=pusht", "--eval.n_episodes=1"]
    assert constitution.check_command([*allowed, "--output_dir=anywhere"]) == Verdict(allowed=True)
    assert constitution.check_command([*allowed, "--output_dir=~/x"]).rule == "malformed_path"


def test_digest_depends_on_what_the_rules_say_and_on_nothing_else(tmp_path):
    content = yaml.safe_load(shipped_config("loop/constitution.yaml").read_text())
    shipped = load_constitution(None)
    turned = {name: content[name] for name in reversed(content)}
    turned["allowed_env_types"] = turned["allowed_env_types"][::-1]
    assert Constitution(turned).sha256 == shipped.sha256
    assert len(shipped.sha256) == 64
    for change in ({"max_train_steps": 200_001}, {"forbidden_args": ["--robot"]}):
        assert Constitution({**content, **change}).sha256 != shipped.sha256


def test_page_of_the_loop_tells_every_rule():
    page = (Path(__file__).parents[4] / "docs" / "loop.md").read_text()
    section = page.partition("\n## Rules\n")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in Rules.model_fields)


def test_file_without_later_rules_keeps_the_digest_that_runs_have_stored():
    """Taken before there was a rule for data of a hub."""
    old = {"allowed_programs": ["cadenza"], "max_train_steps": 7}
    before = "9fa46a270c9f73a20d9c9cc6f9fa2be9d66b1f5145b1ff36a5b5bbd695343811"
    assert Constitution(old).sha256 == before
    assert Constitution({**old, "allowed_hub_datasets": []}).sha256 == before
    assert Constitution({**old, "allowed_hub_datasets": ["a/b"]}).sha256 != before


@pytest.mark.parametrize(
    ("entry", "good", "bad"),
    [
        ({"kind": "integer", "low": 2, "high": 8}, "8", "9"),
        ({"kind": "number", "high": 1.5}, "1.5", "1.6"),
        ({"kind": "boolean"}, "true", "1"),
        ({"kind": "name"}, "a-b", "a b"),
        ({"kind": "text"}, "a b", "x" * 501),
        ({"kind": "choice", "choices": ["a", "b"]}, "b", "c"),
        ({"kind": "read_path"}, "/srv/seed/x", "/srv/other"),
    ],
)
def test_file_of_rules_can_add_a_flag(entry, good, bad):
    content = yaml.safe_load(shipped_config("loop/constitution.yaml").read_text())
    content["extra_keys"] = {"lerobot-eval": {"policy.my_option": entry}}
    words = ["lerobot-eval", f"--policy.path={OUTPUT}/t", "--env.type=pusht"]
    words += ["--eval.n_episodes=1", f"--output_dir={OUTPUT}/e"]
    constitution = Constitution(content)
    job = constitution.clear([*words, f"--policy.my_option={good}"], ROOTS)
    assert dict(job.flags)["policy.my_option"] == good
    with pytest.raises(ConstitutionError, match=r"expected --policy\.my_option"):
        constitution.clear([*words, f"--policy.my_option={bad}"], ROOTS)
    with pytest.raises(ConstitutionError, match="unknown_flag"):
        load_constitution(None).clear([*words, f"--policy.my_option={good}"], ROOTS)


@pytest.mark.parametrize("name", ["collect", "train", "evaluate", "harvest", "merge"])
def test_table_lists_the_flags_of_the_command_itself(name):
    options = get_command(app).commands["job"].commands[name].params
    flags = {option.opts[0].removeprefix("--") for option in options}
    program = PROGRAMS["cadenza", "job", name]
    assert set(program.kinds()) == flags
    required = {option.opts[0].removeprefix("--") for option in options if option.required}
    assert {key for group in program.required() for key in group} == required
