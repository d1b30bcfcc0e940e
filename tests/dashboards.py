"""Dashboards that really listen, for tests."""

import json
import socket
import threading
from contextlib import contextmanager

from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.zoo.matrix import Matrix, write_matrix
from cadenza.evaluation.report.view import Recordings, Rollout
from cadenza.partners.zoo_manifest import Skill
from cadenza.web import create_app
from cadenza.web.server import make_server
from tests.loop_runs import begun_run

WORD = "correct-horse-battery-staple"
CANARY = "the-canary-that-nobody-may-read"


@contextmanager
def serving(workdir, knowledge, *, proxies=(), port=0, **options):
    """Serve a dashboard for the block, on a free port unless one is named; give its address."""
    app = create_app(workdir, knowledge, **options)
    listening = socket.create_server(("127.0.0.1", port), backlog=512)
    server = make_server(app, proxies=proxies)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join(30.0)
        listening.close()
    assert not thread.is_alive()


def furnished(folder):
    """Return the folders of runs and of knowledge: a run, a page, a film, links to a secret."""
    workdir, knowledge = folder / "runs", folder / "knowledge"
    begun_run(workdir, owner="someone").close()
    logs = workdir / "crossing-1" / "cycle_1"
    logs.mkdir(parents=True)
    (logs / "train.log").write_text("step 1\n")
    (workdir / "film.mp4").write_bytes(b"film")
    (knowledge / "tasks").mkdir(parents=True)
    (knowledge / "tasks" / "crossing.md").write_text("---\nname: crossing\n---\n# One\n\n- two\n")
    secret = folder / "secret"
    secret.mkdir()
    for name in ("secret.mp4", "secret.md", "secret.log"):
        (secret / name).write_text(CANARY)
    (workdir / "link.mp4").symlink_to(secret / "secret.mp4")
    (workdir / "linked").symlink_to(secret)
    (knowledge / "link.md").symlink_to(secret / "secret.md")
    (workdir / "crossing-1" / "cycle_0").mkdir()
    evaluated = workdir / "crossing-1" / "cycle_0" / "eval_candidate_0.log"
    evaluated.symlink_to(secret / "secret.log")
    (workdir / "cadenza.db.mp4").symlink_to("/dev/zero")
    return workdir, knowledge


def token_in(text):
    """Return the number that a page's forms hold."""
    return text.partition('name="form" value="')[2].partition('"')[0]


def evaluated(folder):
    """Return the folder of a small evaluation with two bundles."""
    config = EvaluationConfig.model_validate(
        {
            "task": "crossing",
            "policies": ["goal_pd", "zero"],
            "partners": ["crossing_goal_seeker", "crossing_chaser"],
            "seeds": [3, 4],
            "episodes_per_seed": 2,
        }
    )
    run_evaluation(config, out=folder, workers=1, repo_root=folder)
    return folder


def recorded(policy, partner="crossing_chaser", frames=4):
    """Return recorded episodes of a policy of `evaluated`."""
    path = tuple({"ego": (0.1 * k, 0.0), "partner": (1.0, 0.1 * k)} for k in range(frames))
    episode = Rollout(
        condition_id="filter_on",
        partner_id=partner,
        seed=3,
        initial_state_seed=5,
        control_timestep_s=0.05,
        frames=path,
        goals={"ego": (2.0, 0.0)},
        radii={"ego": 0.2, "partner": 0.2},
        contact_index=None,
        success=True,
        pick="typical",
        alike="2 of 4 starts",
    )
    picks = {"typical": "A start like most."}
    return Recordings(policy_id=policy, picks=picks, rollouts=(episode,))


def trained(folder, seed, *, finished=True):
    """Write what a run of `cadenza train` leaves, in the folder of its seed."""
    (folder / "artifacts").mkdir(parents=True)
    (folder / "logs").mkdir()
    run = f"{seed:016x}"
    config = {"seed": seed, "algo": "ego_aht_happo", "total_frames": 400, "env": {"task": "push"}}
    card = {"status": "finished" if finished else "running", "config": config}
    (folder / "artifacts" / f"{run}.run.json").write_text(json.dumps(card))
    result = {"n_episodes": 4.0, "mean_episode_reward": 1.5 + seed, "success_rate": 0.75}
    if finished:
        episodes = [
            {"episode_return": float(k + seed), "length": 9, "complete": True, "end_frame": 100 * k}
            for k in range(1, 5)
        ]
        evaluations = [{"frame": frame, "results": result} for frame in (200, 400)]
        curve = {"run_id": run, "episodes": episodes, "evaluations": evaluations}
        (folder / "artifacts" / f"{run}.curve.json").write_text(json.dumps(curve))
    else:
        events = [
            {"event": "scalar", "step": 100, "mean_episode_return": 0.5},
            {"event": "eval", "step": 200, "condition": "periodic", **result},
        ]
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (folder / "logs" / f"{run}.jsonl").write_text(lines + '{"event": "sca')
    return f"{folder.name}/artifacts/{run}.run.json"


def _skill(value):
    return Skill(metric="success", value=value, low=0.1, high=0.9, episodes=10)


def compared(folder):
    """Write the matrix of two egos with two partners."""
    folder.mkdir()
    skills = [[_skill(0.25), _skill(0.5)], [_skill(0.75), _skill(1.0)]]
    matrix = Matrix(
        egos=("first", "second"),
        policies={"first": ("first",), "second": ("second",)},
        partners=("<b>one</b>", "two"),
        families=("f", "f"),
        judged=("first",),
        seen={"first": ("two",)},
        guessed=(),
        condition="plain",
        guarded=(),
        cells=skills,
        by_family={},
        seeds=(0, 1),
        row_order=(1, 0),
        column_order=(0, 1),
        artifacts_root=".",
        pictures=True,
        diversity={"fcp": {"members": 2, "jsd": [0.1, 0.05, 0.2], "minus_fcp": None}},
    )
    write_matrix(folder, matrix)


def streamed(path):
    """Write the status of a stream with a producer that failed."""
    producer = {"producer": 0, "state": "ENDED", "pid": 41, "episodes": 6, "frames": 60}
    producer |= {"dropped": 0, "restarts": 2, "stalled_s": 0.5, "silent_s": 0.1, "error": "<b>x"}
    counts = ("owner_pid", "time_ns", "episodes", "frames", "dropped", "chunks", "redraws")
    counts += ("readable", "unread", "passed_over", "policy_version", "version_lag_p95")
    means = ("frozen_s", "frames_per_s", "chunks_per_s", "replay_ratio", "staleness_mean_s")
    means += ("staleness_p95_s", "version_lag_mean", "excluded_mean", "stalled_s", "blocked_s")
    status = dict.fromkeys(counts, 7) | dict.fromkeys(means, 0.0)
    status |= {"schema_version": 1, "state": "STOPPED", "fills_requested": 1}
    path.write_text(json.dumps(status | {"producers": [producer]}))
