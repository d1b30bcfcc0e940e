"""`cadenza loop run | resume`: real runs in small form, stopped, answered, refused."""

import signal

import pytest

from cadenza.loop.store import JobStore
from tests.campaigns import size
from tests.e2e.commands import LIMIT_S, REPOSITORY, Started, cadenza, wait_for, wait_until_held
from tests.e2e.in_process import here

TINY = """
run_name: tiny
seed_dataset: local/crossing
data: {initial_episodes: 4}
train: {steps: 20, batch_size: 32}
eval: {n_episodes: 6, max_episodes: 6}
thresholds: {min_promote: 0.0}
budgets: {max_cycles: 1}
"""
SHIPPED = ("native_crossing", "lerobot_pusht", "native_failures", "demo")
#: What is said of a harvest without adaptation.
NOTE = (
    "note: improve.adapt_steps is 0: successes are collected, and no training reads them; set "
    "improve.adapt_steps, or improve.enabled: false"
)


def loop(*words, cwd):
    """Run a command that runs jobs, or could."""
    return cadenza("loop", *words, cwd=cwd, timeout=LIMIT_S)


def ask(*words, cwd):
    """Run a command that only reads, records or refuses."""
    return here("loop", *words, cwd=cwd)


def configured(folder, more=""):
    """Write the tiny configuration, ``more`` appended, and return its path."""
    path = folder / "tiny.yaml"
    path.write_text(TINY + more)
    return path


@pytest.mark.parametrize("name", size(SHIPPED[:2], SHIPPED))
def test_dry_run_of_a_shipped_configuration_shows_its_commands_and_keeps_nothing(
    name, tmp_path, monkeypatch
):
    config = REPOSITORY / "configs" / "loop" / f"{name}.yaml"
    words = ("run", "--config", config, "--dry-run", "--run-id", "dry", "--json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # a LeRobot makes no difference here
    done = ask(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["dry_run"]
    assert (done.json["constitution"], len(done.json["constitution_sha256"])) == (None, 64)
    assert done.json["decisions"][0] == "promote"
    programs = {"lerobot-train", "lerobot-eval"} if name == "lerobot_pusht" else {"cadenza"}
    assert programs <= {line.split()[0] for line in done.json["commands"]}
    assert not [line for line in done.json["commands"] if "cadenza-dry-run" in line]
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "workdir: /proc": "/proc: expected a folder to write to",
    "workdir: tiny.yaml/runs": "expected a folder for it, or room for one, got the file",
    "store: 'mysql://host/db'": "expected sqlite:///... or postgresql+psycopg://...",
    "store: 'sqlite:///:memory:'": "expected a file, got a database in memory",
    "store: 'sqlite:////proc/store.db'": "/proc: expected a folder to write to",
    "store: postgresql://127.0.0.1:1/db": "127.0.0.1",
    "knowledge: {root: /proc/pages}": "/proc/pages: expected a folder to write to",
    "llm: 'gemini:m'": "expected GEMINI_API_KEY or GOOGLE_API_KEY",
    "jobs: {runner: ray, ray_address: '127.0.0.1:1'}": "127.0.0.1:1: no answer",
    "reference: nobody": "expected weights, or a run of the store",
    "data: {initial_episodes: 4000000}": "max_collect_episodes",
}


@pytest.mark.parametrize("more", REFUSED)
def test_dry_run_refuses_what_a_run_refuses_and_neither_leaves_anything(
    more, tmp_path, monkeypatch
):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    text = TINY.replace("data: {initial_episodes: 4}\n", "") if more.startswith("data") else TINY
    config = tmp_path / "tiny.yaml"
    config.write_text(f"{text}{more}\n")
    words = ("run", "-c", config, "--run-id", "new")
    dry, real = ask(*words, "--dry-run", cwd=tmp_path), ask(*words, cwd=tmp_path)
    for done in (dry, real):
        assert done.code not in (0, 1), done.err
        assert REFUSED[more] in done.err
    assert (dry.code, dry.err.splitlines()[0]) == (real.code, real.err.splitlines()[0])
    assert list(tmp_path.iterdir()) == [config]


def test_dry_run_refuses_an_id_that_the_store_or_a_log_has(tmp_path):
    config = configured(tmp_path)
    with JobStore(tmp_path / "runs" / "cadenza.db") as store:
        store.create_run("old", "{}")
    for more in ((), ("--dry-run",)):
        again = ask("run", "-c", config, "--run-id", "old", *more, cwd=tmp_path)
        assert (again.code, "got one that the store has" in again.err) == (2, True)
    assert ask("run", "-c", config, "--run-id", "new", "--dry-run", cwd=tmp_path).code == 0
    log = tmp_path / "runs" / "new" / "events.jsonl"
    log.parent.mkdir()
    log.write_text('{"seq": 3}\n')
    for more in ((), ("--dry-run",)):
        lost = ask("run", "-c", config, "--run-id", "new", *more, cwd=tmp_path)
        assert "got the 3 events of a run that the store does not know" in lost.err


@pytest.mark.slow
def test_a_run_waits_for_an_answer_goes_on_with_it_and_ends(tmp_path):
    gate = "approval: {gates: [promote], timeout_s: 0.01, on_timeout: stop}"
    config = configured(tmp_path, gate)
    done = loop("run", "-c", config, "--run-id", "asks", "--resume", cwd=tmp_path)
    assert done.code == 130, done.err
    assert "stopped; finished work is kept, continue with: cadenza loop resume asks" in done.err
    assert "[cycle 0] decide/approval_requested" in done.err
    assert "answer with: cadenza loop approve asks --by NAME --reason TEXT [--reject]" in done.err
    assert "waits for approval: promote in cycle 0" in ask("status", cwd=tmp_path).out
    again = ask("run", "-c", config, "--run-id", "asks", cwd=tmp_path)
    assert again.code == 2
    assert "expected a new id, got one that the store has" in again.err
    ask("approve", "asks", "--by", "Ada", "--reason", "fine", cwd=tmp_path)
    done = loop("resume", "asks", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.err == ""
    assert (done.json["status"], done.json["decisions"]) == ("finished", ["promote"])
    shown = ask("status", cwd=tmp_path).out
    assert "Run asks: finished (budget: max_cycles)" in shown
    assert "Approved: fine" in shown
    for words in (("resume", "asks"), ("run", "-c", config, "--run-id", "asks", "--resume")):
        ended = ask(*words, cwd=tmp_path)
        assert ended.code == 0
        assert "run asks: finished (budget: max_cycles)" in ended.out


@pytest.fixture
def collecting(tmp_path):
    """A run that has begun to collect a lot."""
    config = configured(tmp_path, "jobs: {grace_s: 5.0}\nimprove: {enabled: true}")
    config.write_text(config.read_text().replace("episodes: 4", "episodes: 4000"))
    words = ("loop", "run", "-c", config, "--run-id", "long")
    started = Started("cadenza", *words, cwd=tmp_path, new_session=True)
    events = tmp_path / "runs" / "long" / "events.jsonl"
    wait_for(lambda: events.exists() and b"job_started" in events.read_bytes(), started.process)
    yield started
    if started.process.poll() is None:
        started.process.kill()


@pytest.mark.parametrize(
    ("signals", "codes"),
    [
        ([signal.SIGHUP], {129}),
        ([signal.SIGTERM, signal.SIGINT], {130, 143}),  # at once, so either may be the first
    ],
)
def test_signals_stop_the_run_so_that_it_can_be_resumed(collecting, signals, codes, tmp_path):
    collecting.process.send_signal(signal.SIGSTOP)  # so that all find it at work
    wait_until_held(collecting)
    for number in (*signals, signal.SIGCONT):
        collecting.process.send_signal(number)
    done = collecting.outcome(LIMIT_S)
    assert done.code in codes
    assert "stopping: what is at work is ended first; Ctrl-C again kills it" in done.err
    assert ("what is at work is killed" in done.err) == (len(set(signals)) == 2)
    assert "continue with: cadenza loop resume long" in done.err.splitlines()[-1]
    assert "\nrules: the shipped ones, SHA-256 " in done.err
    assert done.err.splitlines()[0] == NOTE
    assert "run long: stopped (stop requested)" in done.out
    [run] = ask("status", "--json", cwd=tmp_path).json["runs"]
    assert (run["status"], run["jobs"]) == ("stopped", [])


def test_a_live_run_is_stopped_from_outside_and_not_run_twice(collecting, tmp_path):
    second = ask("resume", "long", cwd=tmp_path)
    assert second.code == 13
    assert "expected a free run, got one that process " in second.err
    assert " was asked to stop it" in ask("stop", "long", cwd=tmp_path).out
    assert collecting.outcome(LIMIT_S).code == 130


def test_a_failing_job_ends_with_its_code_its_log_and_the_way_on(tmp_path):
    config = configured(tmp_path, "jobs: {max_attempts: 1}")
    in_its_way = tmp_path / "runs" / "fails" / "cycle_0" / "data"
    in_its_way.parent.mkdir(parents=True)
    in_its_way.write_text("no folder")
    done = loop("run", "-c", config, "--run-id", "fails", "-q", cwd=tmp_path)
    assert done.code == 17
    assert "\nerror: job fails/0/data: expected an end with exit code 0" in done.err
    log = tmp_path / "runs" / "fails" / "cycle_0" / "data.log"
    told, _, rest = done.err.partition(f"\n{log} ends with:\n")
    assert told.splitlines()[-1].endswith(f"got exit code 11; see its log {log}")
    assert "expected a folder" not in told  # what the job said is in the log alone
    assert "expected a folder" in rest
    assert len(rest.splitlines()) <= 15 + 1
    assert done.err.splitlines()[-1] == (
        "after correcting that, continue with: cadenza loop resume fails"
    )
    shown = ask("status", cwd=tmp_path).out.splitlines()
    assert shown[0].startswith("Run fails: failed, begun ")
    [failed] = [line for line in shown if line.startswith("failed: ")]
    assert failed == (
        "failed: DataError: job fails/0/data: expected an end with exit code 0, got exit code 11; "
        f"see its log {log}; fix the cause and resume the run."
    )
    assert shown[-1] == "continue with: cadenza loop resume fails"
    unknown = ask("resume", "other", cwd=tmp_path)
    assert (unknown.code, "expected a run of this store" in unknown.err) == (2, True)
    config.write_text(config.read_text().replace("steps: 20", "steps: 21"))
    changed = ask("resume", "fails", "--config", config, cwd=tmp_path)
    assert changed.code == 2
    assert "got other values for train.steps" in changed.err
