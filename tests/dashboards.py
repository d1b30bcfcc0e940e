"""Dashboards that really listen, for tests."""

import socket
import threading
from contextlib import contextmanager

from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.evaluation.report.view import Recordings, Rollout
from cadenza.web import create_app
from cadenza.web.server import server_of
from tests.loop_runs import begun_run

WORD = "correct-horse-battery-staple"
CANARY = "the-canary-that-nobody-may-read"


@contextmanager
def serving(workdir, knowledge, *, proxies=(), **options):
    """Serve a dashboard on a free port for the block; give its address."""
    app = create_app(workdir, knowledge, **options)
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = server_of(app, proxies=proxies)
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
