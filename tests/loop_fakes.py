"""A training stack that takes microseconds, for tests of the loop.

`FakeBackend` plans commands of our own programs, so that the shipped constitution clears them;
`FakeStack` runs them in this process. How good a policy is comes from a script by cycle and stage.
Success on a seed is nested: a better policy solves all that a worse one solves, and more.
"""

import json
from pathlib import Path

from cadenza.core.errors import IntegrityError
from cadenza.core.files import atomic_write_json, sha256_file, tree_digest
from cadenza.loop.agents.base import RunResult
from cadenza.loop.constitution.kinds import Given
from cadenza.loop.constitution.typed_jobs import PROGRAMS, JobPlan
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EpisodeOutcome,
    EvalReport,
    Harvest,
)
from cadenza.loop.orchestrator.decision import SEEN_DELTAS, Shown, judge

TASKS = ("easy", "hard")
_GOLDEN = 0.6180339887498949


def solves(rate, seed):
    """Whether a policy that solves a share ``rate`` of the seeds solves this one."""
    return (seed % 2**16 * _GOLDEN) % 1.0 < rate


class FakeStack:
    """A runner whose commands are function calls.

    Attributes:
        rates: Success of the policy trained by (cycle, stage); see `rate_of` for others.
        kept: Episodes that the harvest of a cycle keeps; all wanted ones by default.
        failing: (cycle, stage) of jobs that end with exit code 1.
        seconds: Duration that each job reports.
        commands: Commands run so far, in order.
    """

    def __init__(self, rates=(), *, kept=None, failing=(), seconds=1.0):
        self.rates = {(cycle, "train"): rate for cycle, rate in enumerate(rates)}
        self.kept = kept or {}
        self.failing = set(failing)
        self.seconds = seconds
        self.commands = []

    def __call__(self, cmd, log_path):
        cycle = int(log_path.parent.name.removeprefix("cycle_"))
        stage = log_path.stem
        flags = dict(word.removeprefix("--").split("=", 1) for word in cmd[3:])
        self.commands.append((cycle, stage, cmd[2], flags))
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_text(" ".join(cmd))
        if (cycle, stage) in self.failing:
            return RunResult(list(cmd), 1, self.seconds, log_path)
        out = Path(flags["out"])
        out.mkdir(parents=True, exist_ok=True)
        result = getattr(self, f"_{cmd[2]}")(cycle, stage, out, flags)
        atomic_write_json(Path(flags["result-json"]), result)
        return RunResult(list(cmd), 0, self.seconds, log_path)

    def stages(self, cycle):
        return [stage for number, stage, _, _ in self.commands if number == cycle]

    def flags(self, cycle, stage):
        return next(f for n, s, _, f in self.commands if (n, s) == (cycle, stage))

    def _collect(self, cycle, stage, out, flags):
        (out / "data.json").write_text(json.dumps({"episodes": flags["episodes"]}))
        return {"episodes": int(flags["episodes"])}

    def _train(self, cycle, stage, out, flags):
        rate = self.rates.get((cycle, stage), 0.5)
        atomic_write_json(out / "policy.json", {"rate": rate, "cycle": cycle, "stage": stage})
        return {"rate": rate}

    def _evaluate(self, cycle, stage, out, flags):
        rate = json.loads(Path(flags["policy"]).read_text())["rate"]
        start, count = int(flags["seed-start"]), int(flags["episodes"])
        episodes = [
            {"task": TASKS[seed % 2], "seed": seed, "success": solves(rate, seed), "score": rate}
            for seed in range(start, start + count)
        ]
        return {"episodes": episodes}

    def _harvest(self, cycle, stage, out, flags):
        wanted = int(flags["episodes"])
        kept = self.kept.get(cycle, wanted)
        (out / "data.json").write_text(json.dumps({"cycle": cycle, "kept": kept}))
        return {"kept": kept, "successes": kept, "attempts": 2 * wanted}

    def _merge(self, cycle, stage, out, flags):
        sources = flags["sources"].split(",")
        parts = [json.loads((Path(s.strip()) / "data.json").read_text()) for s in sources]
        total = sum(part["kept"] for part in parts)
        (out / "data.json").write_text(json.dumps({"parts": parts, "kept": total}))
        return {"episodes": total}


class FakeBackend:
    """Plans the commands of `FakeStack` and reads what they leave."""

    name = "fake"
    capabilities = {"version": "1"}  # noqa: RUF012 - a constant

    def __init__(self):
        self.checked = []

    def plan_data(self, request):
        return self._plan(
            request.folder, "collect", task="crossing", episodes=request.proposal.num_episodes or 8,
            seed_start=request.seeds.start, seed_count=request.seeds.count,
            repo_id=request.proposal.dataset,
        )  # fmt: skip

    def read_data(self, request):
        count = _result(request.folder)["episodes"]
        return _dataset(request.proposal.dataset, request.folder, count)

    def plan_train(self, request):
        extra = {} if request.init is None else {"init": request.init}
        if request.learning_rate is not None:
            extra["learning_rate"] = request.learning_rate
        if request.mix is not None:
            extra |= {"mix": request.mix.root, "mix_ratio": request.mix_ratio}
        return self._plan(
            request.folder, "train", rung=request.rung, dataset=request.dataset.root,
            steps=request.steps, batch_size=request.batch_size, seed=0, **extra,
        )  # fmt: skip

    def read_train(self, request):
        _result(request.folder)
        path = request.folder / "policy.json"
        return CheckpointRecord(
            policy_type=request.rung, path=str(path), cycle=request.cycle, sha256=sha256_file(path)
        )

    def plan_eval(self, request):
        return self._plan(
            request.folder, "evaluate", policy=request.checkpoint.path, task="crossing",
            seed_start=request.seeds.start, episodes=request.seeds.count,
            batch_size=request.batch_size,
        )  # fmt: skip

    def read_eval(self, request):
        outcomes = tuple(
            EpisodeOutcome.model_validate(row) for row in _result(request.folder)["episodes"]
        )
        return EvalReport(
            checkpoint=request.checkpoint.path, env_type="crossing", task_suite="default",
            n_episodes=len(outcomes), raw={"kind": "fake"}, outcomes=outcomes,
            success_rate=sum(outcome.success for outcome in outcomes) / len(outcomes),
        )  # fmt: skip

    def plan_harvest(self, request):
        extra = {"starts": "failed"} if request.starts == "failed" else {}
        return self._plan(
            request.folder, "harvest", policy=request.checkpoint.path, task="crossing",
            episodes=request.episodes, seed_start=request.seeds.start,
            seed_count=request.seeds.count, repo_id=request.repo_id, **extra,
        )  # fmt: skip

    def read_harvest(self, request):
        result = _result(request.folder)
        dataset = None
        if result["kept"]:
            dataset = _dataset(request.repo_id, request.folder, result["kept"])
        return Harvest(**result, dataset=dataset)

    def plan_merge(self, request):
        roots = ",".join(source.root for source in request.sources)
        return self._plan(request.folder, "merge", sources=roots, repo_id=request.repo_id)

    def read_merge(self, request):
        count = _result(request.folder)["episodes"]
        return _dataset(request.repo_id, request.folder, count)

    def check_features(self, dataset, checkpoint):
        self.checked.append((dataset.root, None if checkpoint is None else checkpoint.path))

    def _plan(self, folder, program, **flags):
        result_path = folder / "result.json"
        job = PROGRAMS["cadenza", "job", program]
        words = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
        words += [f"--out={folder}", f"--result-json={result_path}"]
        kinds = job.kinds()
        read = job.read({}, words, kinds)
        made = job.of({key: kinds[key](text, Given(key)) for key, text in read.items()})
        return JobPlan(job=made, output_dir=folder, result_path=result_path)


def _result(folder):
    path = folder / "result.json"
    if not path.exists():
        raise IntegrityError(f"{path}: expected the result of the job, got nothing.")
    return json.loads(path.read_text())


def _dataset(repo_id, folder, count):
    return DatasetRef(
        repo_id=repo_id, root=str(folder), num_episodes=count, sha256=tree_digest(folder)
    )


class FakeProposer:
    """Proposes the same again and again, and remembers what it was told."""

    def __init__(self, focus=()):
        self.focus = focus
        self.asked = []

    def propose(self, cycle, last_report):
        from cadenza.loop.contracts.records import Proposal

        self.asked.append((cycle, last_report))
        return Proposal(action="reuse_seed", dataset="local/fake", num_episodes=8, focus=self.focus)


class FakeKnowledge:
    """Pages in a folder, one line per run and cycle, written once."""

    def __init__(self, root, bus):
        self.root = root
        self.bus = bus

    def ingest(self, *, run_id, cycle, policy, report, decision, at):
        from cadenza.loop.events import Event

        page = self.root / f"{policy}.md"
        self.root.mkdir(parents=True, exist_ok=True)
        lines = page.read_text().splitlines() if page.exists() else []
        mark = f"{run_id}/{cycle}:"
        if not any(line.startswith(mark) for line in lines):
            lines.append(f"{mark} {decision} {report.success_rate:.3f}")
            page.write_text("\n".join(lines) + "\n")
        self.bus.emit(
            Event(run_id, "knowledge", "knowledge_updated", cycle, {"pages": [str(page)]})
        )
        return [page]


class ScriptedLLM:
    """Replies in turn, the last one again and again, or raises; keeps what it was asked."""

    def __init__(self, *replies):
        self.replies, self.prompts = list(replies), []

    def complete(self, prompt, *, system=None, max_tokens=1024):
        self.prompts.append(prompt)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, str) else json.dumps(reply)


def judged_by_bounds(evidence, history, thresholds, *, warm_up, looks_left, provisional=False):
    """Return the judgement if all that is shown is what the bounds of ``evidence`` say."""
    lower, upper, likely = evidence.lower, evidence.upper, evidence.likely_upper
    own_lower, own_upper = evidence.candidate_lower, evidence.candidate_upper
    gain_possible = upper is None or upper >= thresholds.promote_delta
    loss_possible = (lower is None or lower <= -thresholds.regression_delta) and not warm_up
    futile = likely is not None and likely < SEEN_DELTAS * thresholds.promote_delta
    shown = Shown(
        better=lower is not None and lower > 0.0,
        worse=upper is not None and upper < 0.0,
        open=not futile and (gain_possible or loss_possible),
        bar_reached=own_lower is not None and own_lower >= thresholds.min_promote,
        bar_open=own_upper is None or own_upper >= thresholds.min_promote,
    )
    more = {"warm_up": warm_up, "looks_left": looks_left, "provisional": provisional}
    return judge(evidence, history, thresholds, shown=shown, **more)


def logged(path):
    """Return the events of a log."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]
