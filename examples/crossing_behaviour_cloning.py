"""Behaviour cloning on crossing from two producers that go on simulating an expert meanwhile.

python examples/crossing_behaviour_cloning.py

Each of two processes steps 32 environments in which the scripted ego ``swerve`` crosses behind the
safety filter, beside another partner every episode; noise on what it wants shows how to get back. A
perceptron learns the executed action from the ego's state by least squares. ``--steps`` counts
updates. The clone then plays through the benchmark's evaluation, with the filter and without,
beside all five partners of the task, three of which the stream never showed. The score is the
success rate with the filter beside those that leave a way to the goal. The folder of the seed gets
the checkpoint ``policy.pt`` and the sealed results. When episodes arrive depends on the machine, so
equal seeds do not give equal bits here.
"""

from pathlib import Path

import torch
from harness import Outcome, Run, main

from cadenza.benchmark.cells import PolicyChoice
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    EvaluationOutcome,
    PartnerChoice,
    run_evaluation,
)
from cadenza.benchmark.jobs.cloning import LEARNING_RATE, Clone, cloning_loss, state_moments
from cadenza.benchmark.stream_tasks import stream_config, stream_partners
from cadenza.benchmark.tasks import get_task
from cadenza.core.checkpoints import LOCAL_URI_SCHEME, CheckpointMetadata, save_checkpoint
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.seeding import derive_substream
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY
from cadenza.partners.registry import partner_card
from cadenza.stream import OnlineDataEngine, OnlineDataset

TASK = "crossing"
#: Largest acceleration of the ego per component, m/s^2.
BOUND = torch.full((2,), 2.0)
#: Standard deviation of what disturbs the expert's wanted acceleration, m/s^2.
NOISE = 0.5
#: Evaluation seeds: the clusters of the intervals.
SEEDS = (100, 101, 102, 103, 104)
CONDITION = "filter_on"
#: Partners beside whom the score is taken.
SCORED = {name for name in get_task(TASK).partners if partner_card(name).leaves_way}


def clone_expert(run: Run) -> tuple[Clone, int]:
    """Return a clone of the streamed expert, and the steps simulated for it."""
    size = {"producers": 2, "num_envs": 32, "buffer_size": 64}
    config = stream_config(TASK, **size, mode="continuous", noise=NOISE, seed=run.seed)
    stream = derive_substream("examples.clone", root_seed=run.seed)
    generator = torch.Generator().manual_seed(stream.integer_seed())
    chunk_size, batch_size, fields = 8, 64, ["obs", "actions", "valid"]
    with OnlineDataEngine(config) as engine:
        batches = OnlineDataset(
            engine, chunk_size, batch_size, weighting="step", select=fields, seed=run.seed
        )
        first = engine.sample_batch(1024, 1, weighting="window", generator=generator)
        clone = Clone(state_moments(first["obs"]), (128, 128), len(BOUND), generator)
        optimizer = torch.optim.Adam(clone.parameters(), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.steps)
        for update, batch in zip(range(run.steps), batches, strict=False):
            loss = cloning_loss(clone(batch["obs"]), batch["actions"], batch["valid"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if update % max(1, run.steps // 50) == 0:
                run.report(simulated_steps(engine), loss.item(), done=update)
        return clone, simulated_steps(engine)


def simulated_steps(engine: OnlineDataEngine) -> int:
    """Return the environment steps of the episodes that producers have published."""
    return sum(producer["frames"] for producer in engine.status()["producers"])


def save(clone: Clone, run: Run) -> str:
    """Save the clone under the run's folder and return its address."""
    context = compute_run_metadata(
        seed=run.seed, run_kind="behaviour_cloning", repo_root=Path(__file__).parents[1]
    )
    address = f"{LOCAL_URI_SCHEME}policy.pt"
    save_checkpoint(
        state_dict={MLP_POLICY_KEY: clone.portable(-BOUND, BOUND).state_dict()},
        uri=address,
        metadata=CheckpointMetadata(
            run_id=context.run_id,
            seed=run.seed,
            step=run.steps,
            git_sha=context.git_sha,
            pyproject_hash=context.pyproject_hash,
            extra={"task": TASK},
        ),
        artifacts_root=run.out,
    )
    return address


def evaluate(address: str, run: Run) -> EvaluationOutcome:
    """Play the clone beside every partner of the task, with the filter and without."""
    met = {partner.class_name for partner in stream_partners(TASK)}
    partners = get_task(TASK).partners[: run.episodes]
    per_seed = max(1, run.episodes // (len(partners) * len(SEEDS)))
    config = EvaluationConfig(
        task=TASK,
        policies=(PolicyChoice(name="clone", source=address),),
        partners=tuple(PartnerChoice(name=p, class_name=p, seen=p in met) for p in partners),
        seeds=SEEDS[:1] if run.smoke else SEEDS,
        episodes_per_seed=per_seed,
        artifacts_root=run.out,
    )
    return run_evaluation(config, out=run.out / "evaluation", workers=1, overwrite=True)


def train(run: Run) -> Outcome:
    """Clone the expert of one seed and evaluate the clone."""
    clone, env_steps = clone_expert(run)
    outcome = evaluate(save(clone, run), run)
    successes = [
        float(e.success)
        for e in outcome.episodes["clone"]
        if e.condition == CONDITION and e.partner in SCORED
    ]
    return Outcome(returns=successes, env_steps=env_steps, updates=run.steps)


if __name__ == "__main__":
    main(
        train,
        name="crossing_behaviour_cloning",
        steps=4_000,
        smoke_steps=100,
        episodes=500,
        measure="squared error of the cloned action (m²/s⁴)",
    )
