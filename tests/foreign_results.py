"""Files of evaluation results, laid out as the tools document them.

`fieldtrial_csv`, `orbit_csv`, `robostats_jsonl` and `robo_evals` have fields and form of what the
releases write (fieldtrial 0.3.0, orbit-eval 0.17.0, robostats 0.2.0, robo-evals 0.2.1).
`lerobot` follows LeRobot 0.5 and, with ``counts``, what its pull request 4628 added.
Made by the documented schema alone, as no release at hand writes them: `lerobot_single`, and
``training_seed`` as a column of a CSV.
"""

import json

PUSHT = "pusht"


def outcomes(successes, n):
    """Return ``n`` outcomes, successes spread evenly."""
    return [(i * successes) // n != ((i + 1) * successes) // n for i in range(n)]


def lerobot(successes, *, group=PUSHT, counts=False, scores=None):
    """Return an ``eval_info.json``; ``successes`` is a list of outcomes per task."""

    def told(outcomes):
        percent = {"pc_success": 100.0 * sum(outcomes) / len(outcomes)}
        more = {"n_success": sum(outcomes), "pc_success_ci95": [0.0, 100.0]} if counts else {}
        return percent | {"n_episodes": len(outcomes)} | more

    tasks = [
        {
            "task_group": group,
            "task_id": i,
            "metrics": {
                "sum_rewards": [1.0] * len(task),
                "max_rewards": scores or [float(x) for x in task],
                "successes": task,
                "video_paths": [],
            },
        }
        | (told(task) if counts else {})
        for i, task in enumerate(successes)
    ]
    every = [x for task in successes for x in task]
    rewards = {"avg_sum_reward": 1.0, "avg_max_reward": 0.5}
    return json.dumps(
        {
            "per_task": tasks,
            "per_group": {group: rewards | told(every)},
            "overall": rewards | told(every) | {"eval_s": 3.0, "eval_ep_s": 0.1},
        },
        indent=2,
    )


def lerobot_single(successes, *, first_seed=1000):
    """Return the ``eval_info.json`` of one environment; without a first seed, seeds are null."""
    episodes = [
        {"episode_ix": i, "sum_reward": 1.0, "max_reward": float(x), "success": x}
        | {"seed": None if first_seed is None else first_seed + i}
        for i, x in enumerate(successes)
    ]
    percent = 100.0 * sum(successes) / len(successes)
    return json.dumps({"per_episode": episodes, "aggregated": {"pc_success": percent}}, indent=2)


def robo_evals(successes, *, max_steps=None, mujoco="3.3.0"):
    episodes = [
        {"task": "reach", "episode": i, "seed": 7 * i, "success": x, "steps": 10, "video": None}
        for i, x in enumerate(successes)
    ]
    counts = {"episodes": len(successes), "successes": sum(successes)}
    task = {"task": "reach", "instruction": "reach the goal", **counts}
    versions = {"robo_evals": "0.2.1", "mujoco": mujoco, "python": "3.11"}
    config = {"suite": "core", "seed": 0, "max_steps": max_steps, "image_obs": False}
    head = {"schema": "robo-evals/report/1", "policy": "scripted", "config": config}
    tasks = [task | {"episode_results": episodes}]
    return json.dumps(head | {"environment": versions, "tasks": tasks}, indent=2)


def robostats_jsonl(successes, *, policy="a"):
    return "".join(
        json.dumps({"policy_id": policy, "task_id": "lift", "scenario_id": f"{i}", "success": x})
        + "\n"
        for i, x in enumerate(successes)
    )


def fieldtrial_csv(arms, *, invalid=()):
    """Return an export; ``arms`` maps names to outcomes, ``invalid`` holds voided (arm, trial)."""
    head = "trial_id,seq,block,replicate,condition,arm,status,attempt,stage_index,success,notes\n"
    lines = [
        f'{arm}{i},{i},{i},1,slot {i},{arm},invalid,1,,,"fell, again"\n'
        if (arm, i) in invalid
        else f"{arm}{i},{i},{i},1,slot {i},{arm},completed,1,2,{success},\n"
        for arm, given in arms.items()
        for i, success in enumerate(given)
    ]
    return head + "".join(lines)


def orbit_csv(arms, *, blocks=("",)):
    head = "version,skill,episode,success,reason,block,started_utc\n"
    return head + "".join(
        f"{arm},pick,{i},{int(success)},,{blocks[i % len(blocks)]},2026-01-01T00:00:00Z\n"
        for arm, given in arms.items()
        for i, success in enumerate(given)
    )
