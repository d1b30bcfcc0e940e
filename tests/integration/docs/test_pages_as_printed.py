"""The programs of the pages run as printed, in an empty folder, and do what the text says."""

import json
import re
import threading
from contextlib import chdir
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from pydantic import ValidationError

from cadenza.aht.algorithms import list_algorithms
from cadenza.aht.config import load_config
from cadenza.benchmark.evaluation_run import EvaluationConfig
from cadenza.benchmark.policies import trained_with
from cadenza.benchmark.zoo.events import events_of
from cadenza.partners.registry import isolated_registry
from cadenza.safety.verifier.config import AttackConfig, VerifierConfig, configured
from tests.campaigns import nightly, size
from tests.e2e.commands import warm
from tests.integration.docs.pages import ROOT, blocks, execute, text


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


#: Sizes of pages, and those that serve outside of `make nightly`.
SMALLER = {
    "learn(20_000)": "learn(2_500)",
    "learn(50_000, folder": "learn(6_000, folder",
    "agent.learn(2_000": "agent.learn(300",
    "learn(200, progress": "learn(120, progress",
    "learn(2_000, progress": "learn(500, progress",  # HAPPO updates once in 400
    "again.learn(500)": "again.learn(40)",
    "learn(500, callbacks": "learn(40, callbacks",
    "% 500 == 0": "% 20 == 0",  # what it prints is printed in 40 steps, too
    "ego.learn(300,": "ego.learn(120,",
    "own.learn(200,": "own.learn(120,",
    "learn(1_000, ": "learn(200, ",
    "total, last = 1_000": "total, last = 300",
    "learn(10_000, ": "learn(500, ",
    "evaluate_every=500": "evaluate_every=100",
    "steps=5000": "steps=2000",
}


def sized(page: str) -> str:
    """Return the programs of a page as printed, or smaller ones."""
    program = "\n".join(blocks(page))
    for printed, smaller in SMALLER.items():
        program = program.replace(printed, size(smaller, printed))
    return program


def run(page: str, folder: Path) -> str:
    """Run a page's programs in a process of their own and return what they print."""
    (folder / "page.py").write_text(sized(page), encoding="utf-8")
    done = warm(folder / "page.py", cwd=folder, timeout=800.0)
    assert done.code == 0, done.err
    return done.out


def test_conformal_page_brakes_an_ego_that_would_meet_its_partner(tmp_path):
    printed = run("conformal.md", tmp_path)
    assert float(printed.strip("[]\n").split()[0]) < 0.0


def test_page_on_safety_reports_writes_the_two_files_it_reads(tmp_path):
    assert r"\toprule" in run("reference/safety-report.md", tmp_path)
    written = {path.name for path in (tmp_path / "runs/report").iterdir()}
    assert written == {"three_tables.json", "three_tables.md"}


def test_page_on_demonstrations_reads_what_it_wrote(tmp_path):
    printed = run("how-to/learn-from-demonstrations.md", tmp_path).splitlines()
    assert printed[0] == "reaching.npz: 3 episodes, 75 steps"
    assert "(30, 3) (30, 2) True" in printed


def test_oscbf_page_runs(tmp_path):
    pytest.importorskip("mujoco")
    run("oscbf.md", tmp_path)


def test_co_carry_page_carries_the_bar(tmp_path):
    pytest.importorskip("mjbatch")
    assert run("co-carry.md", tmp_path).startswith("True 4.7 s, 5 N")


def test_handover_page_seats_the_peg(tmp_path):
    pytest.importorskip("mjbatch")
    assert run("handover.md", tmp_path).startswith("True 8.0 s, 30 mm")


ROBOTS = "which-robot.md"


def test_page_on_robots_guards_each_of_them_and_prints_what_it_says(tmp_path, capsys):
    Path("room.yaml").write_text(blocks(ROBOTS, "yaml")[0], encoding="utf-8")
    execute(ROBOTS, *[program for program in blocks(ROBOTS) if "arm" not in program])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    for line in printed:
        assert f"prints `{line}`" in " ".join(text(ROBOTS).split())
        assert " 0 of 100 steps uncertified" in line


def test_page_on_robots_keeps_the_arm_above_the_table(capsys):
    pytest.importorskip("mujoco")
    arm = [program for program in blocks(ROBOTS) if "arm" in program]
    execute(ROBOTS, "import numpy as np", *arm)
    assert f"prints `{capsys.readouterr().out.strip()}`" in text(ROBOTS)


def test_guards_on_the_page_on_robots_have_ten_lines_at_most():
    guards = [
        program for program in blocks(ROBOTS) if re.search(r"cadenza\.guard|OSCBF\(", program)
    ]
    lines = [len([line for line in guard.splitlines() if line.strip()]) for guard in guards]
    assert len(lines) == 7
    assert max(lines) <= 10


def test_doorway_page_keeps_a_blind_ego_from_contacts(tmp_path):
    printed = run("doorway.md", tmp_path).splitlines()
    assert printed == [
        "no filter: 18 contacts, 2 of 20 succeed",
        "filter: 0 contacts, 7 of 20 succeed",
    ]


def test_page_on_logs_writes_them_where_it_says_and_goes_on(tmp_path):
    printed = run("how-to/log-a-training.md", tmp_path)
    assert re.search(r"^\d+ \d+\.\d+ \d", printed, re.MULTILINE)
    (log,) = tmp_path.glob("logs/DQN-CartPole-v1-0-*/log.jsonl")
    steps = [json.loads(line)["step"] for line in log.read_text("utf-8").splitlines()]
    assert steps == sorted(set(steps))
    assert list(log.parent.glob("tensorboard/events*"))


def test_page_on_gpus_learns_where_one_is_and_where_none_is(tmp_path):
    printed = run("how-to/learn-on-a-gpu.md", tmp_path)
    assert printed.splitlines()[-1] in ("cpu", "cuda:0")


def test_page_on_agents_trains_keeps_guards_and_judges_them(tmp_path):
    printed = run("how-to/train-an-agent.md", tmp_path)
    assert "SACConfig.tau" in printed
    assert re.search(r"^\d+ 1\.0 \d", printed, re.MULTILINE)  # steps, reward, mean return
    assert (tmp_path / "runs/kept/best").is_file()


def test_page_on_imitation_trains_pupils_that_come_close_to_their_experts(tmp_path):
    balanced, *beside = run("how-to/imitate-an-expert.md", tmp_path).splitlines()
    assert float(balanced.split()[0]) > 200.0  # the expert gets 500
    counts = {name: int(count) for name, count, *_ in map(str.split, beside)}
    assert list(counts) == ["crossing_goal_seeker", "crossing_late_braker"]


def test_home_page_runs(tmp_path):
    mean, interval = run("index.md", tmp_path).split(" ", 1)
    assert size(20.0, 200.0) < float(mean) <= 500.0
    assert interval[0] in "[("


def test_task_of_the_page_is_trained_and_judged(tmp_path):
    module, program = blocks("how-to/add-a-task.md")
    (tmp_path / "meeting.py").write_text(module, encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = warm(tmp_path / "program.py", cwd=tmp_path, timeout=600.0)  # with worker processes
    assert done.code == 0, done.err
    zero, ego = done.out.splitlines()
    assert zero == "zero 0 of 40"
    assert int(ego.split()[1]) > 0


ALGORITHMS = "how-to/train-with-another-algorithm.md"


def test_program_on_algorithms_trains_beside_a_population_and_goes_on(capsys):
    execute(ALGORITHMS, blocks(ALGORITHMS)[0])
    assert re.match(r"\S+ \[\S+, \S+\]", capsys.readouterr().out)


def test_programs_on_egos_that_bring_their_own_partner_train_them(tmp_path):
    pytest.importorskip("lbforaging")
    execute(ALGORITHMS, *blocks(ALGORITHMS)[1:4])
    assert {trained_with(tmp_path / name) for name in ("e3t", "upd", "cec")} == {()}


def test_program_on_algorithms_trains_and_gives_the_policy_away(capsys):
    names = execute(ALGORITHMS, blocks(ALGORITHMS)[4])
    assert capsys.readouterr().out == "8 episodes\n"  # 400 frames, 50 steps each
    assert names["policy"].observation_dim == 10


def test_program_on_algorithms_trains_any_agent_beside_a_partner_behind_the_filter(capsys):
    execute(ALGORITHMS, blocks(ALGORITHMS)[5])
    printed = r"\S+ \[\S+, \S+\]; success \d+ % \[\d+, \d+\]\n"
    assert re.fullmatch(printed, capsys.readouterr().out)


def test_table_names_every_built_in_algorithm():
    named = set(re.findall(r"^\| `(\w+)` \|", text(ALGORITHMS), flags=re.MULTILINE))
    named -= {"algo", "sampler", "uniform", "rank", "maximin", "learnability"}
    alias = "ego_aht_hatd3"
    assert f"(`{alias}` means the same)" in text(ALGORITHMS)
    assert named | {alias} == set(list_algorithms())


def test_message_on_the_page_is_the_real_one():
    (message,) = blocks(ALGORITHMS, "text")
    config = ROOT / "configs" / "train" / "mpe_cooperative_push_sac.yaml"
    with pytest.raises(ValidationError, match=re.escape(message.strip())):
        load_config(config_path=config, overrides=["+happo.lr=0.1"])


def collect(folder, *, steps=200):
    """Run the page on collecting with another number of updates."""
    page = "how-to/collect-from-gymnasium.md"
    program = "\n".join(blocks(page)).replace("state = train(200)", f"state = train({steps})")
    folder.mkdir(exist_ok=True)
    with chdir(folder):
        return execute(page, program)


def test_collecting_page_counts_transitions(tmp_path):
    names = collect(tmp_path)
    # 100 calls of warm-up and one in every fourth step, each with 4 environments.
    assert names["state"]["inf_step"] == 4 * 100 + 4 * 200 // 4
    assert names["state"]["bp_step"] == 200


@nightly
def test_collecting_page_goes_on_as_the_unbroken_run(tmp_path):
    unbroken = collect(tmp_path / "unbroken")
    collect(tmp_path / "broken", steps=120)  # its last checkpoint is that of step 100
    resumed = collect(tmp_path / "broken")
    assert resumed["state"]["inf_step"] == unbroken["state"]["inf_step"]
    weights = [list(names["q_net"].parameters()) for names in (resumed, unbroken)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*weights, strict=True))


def test_export_page_gives_a_file_that_agrees_with_the_policy():
    names = execute("how-to/export-a-policy.md")
    assert names["actions"].shape == (5, 2)
    sent = [told[1] for told in names["sent"]]  # by the robot's loop, with the package and without
    np.testing.assert_allclose(sent, names["moved"], atol=1e-5)
    exporter = names["exporter"]
    assert [(p.key, p.value) for p in onnx.load(names["item"].filepath).metadata_props] == [
        ("task", "cooperative push"),
        ("comment", "before training"),
    ]
    items = []
    thread = threading.Thread(target=lambda: items.append(names["ask"](exporter)), daemon=True)
    thread.start()
    while thread.is_alive():
        exporter.process_pending_exports()
    assert items == [exporter.latest()]
    assert exporter.cycle == 1000


def test_examples_of_the_replay_memory_print_what_they_say(capsys):
    execute("replay-memory.md")
    printed = ["4 torch.Size([4, 3])", "5 memproxy", "True"]
    assert capsys.readouterr().out.splitlines() == printed


def test_front_page_trains_judges_and_goes_on_from_what_was_saved():
    names = execute("../README.md", sized("../README.md"))
    assert names["agent"].steps >= size(6_000, 50_000)  # the last rollout is completed
    assert names["agent"].evaluate(5).mean > 100.0  # of 500; an untrained one keeps the pole for 10
    assert names["safe"].reset(seed=0)


def test_tour_keeps_the_ego_from_touching_the_chaser_and_adds_a_partner(capsys):
    with isolated_registry():
        names = execute("tour.md")
    assert names["closest"] > 0.4
    assert names["changed"] > 0
    printed = capsys.readouterr().out
    assert printed.startswith("closest 0.4")
    assert "\npolite: [" in printed


def test_partner_of_the_tour_has_the_twenty_lines_that_the_front_page_promises():
    assert "your own partner in 20 lines" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert len([line for line in blocks("tour.md")[1].splitlines() if line.strip()]) <= 20


def test_tour_shows_an_evaluation_that_is_accepted():
    (document,) = blocks("tour.md", "yaml")
    config = EvaluationConfig.model_validate(yaml.safe_load(document))
    assert [policy.name for policy in config.policies] == ["goal_pd", "ego"]


def test_verification_passes_the_filter_and_catches_the_careless_one(capsys):
    execute("how-to/verify-a-filter.md", sized("how-to/verify-a-filter.md"))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "True"
    assert "episodes with one partner had an overlap" in second


def test_every_key_of_the_page_on_verification_is_one_of_the_configuration():
    commands = "".join(blocks("how-to/verify-a-filter.md", "console")).replace("\\\n", "")
    for kind, lines in (
        (VerifierConfig, [line for line in commands.splitlines() if "--robot" not in line]),
        (AttackConfig, [line for line in commands.splitlines() if "--robot" in line]),
    ):
        words = re.findall(r" ([a-z_]+)=(\S+)", "\n".join(lines))
        assert len(words) > 4
        configured(kind, {key: yaml.safe_load(value) for key, value in words})


def test_views_of_our_environments_work_as_printed():
    pytest.importorskip("stable_baselines3")
    names = execute("how-to/use-our-envs-elsewhere.md")
    assert names["push"].unwrapped.partners["partner"].spec.class_name == "constant_action"
    assert list(names["env"].group_map) == ["ego", "partner", "robot_2"]
    file = yaml.safe_load(blocks("how-to/use-our-envs-elsewhere.md", "yaml")[0])
    assert EvaluationConfig.model_validate(file).task.startswith("pettingzoo:")


def test_page_on_populations_chooses_what_it_says_and_counts_an_event(capsys):
    execute("how-to/train-partner-populations.md")
    assert capsys.readouterr().out == "('passes', 'waits')\n"
    standing = np.zeros((2, 3, 4))
    standing[1, 0, 2] = 1.0
    counted = events_of("my_task").count(standing, (), standing)
    assert counted.tolist() == [[0.0], [1.0], [1.0]]


def test_answers_of_the_faq_are_what_its_programs_print(tmp_path):
    walked, guarded, same, algorithm = run("faq.md", tmp_path).splitlines()
    assert walked.startswith("-5.0 ")  # five steps to the end of the corridor
    changed, uncovered = (int(count) for count in re.findall(r"^\d+|\d+(?= steps)", guarded))
    assert changed > 0
    assert uncovered == 0
    assert (same, algorithm) == ("True", "PPO")
