"""Behaviour cloning on crossing from two producers that go on simulating an expert meanwhile.

python examples/crossing_behaviour_cloning.py

Each of two processes steps 32 environments in which the scripted ego ``swerve`` crosses behind the
safety filter; every episode draws another partner (goal seekers and wanderers of several speeds).
Noise on what it wants shows how to get back. A perceptron learns the executed action from the ego's
state by least squares, each step being equally likely, while the producers replace the oldest
episodes. ``--steps`` counts updates.

The clone then plays through the benchmark's evaluation beside all five partners of the task, three
of which the stream never showed, with the filter and without. The score is the success rate with
the filter, over the partners that leave a way to the goal, which the hunting one does not. The
folder of the seed gets the checkpoint ``policy.pt``, which any evaluation can name, and the sealed
results. When episodes arrive depends on the machine, so equal seeds do not give equal bits here.
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
#: Entries of the ego's action.
ACTION_DIM = 2
#: Largest acceleration of the ego per component, m/s^2.
ACTION_BOUND = 2.0
#: Widths of the hidden layers.
HIDDEN = (128, 128)
#: Chunks of a batch, and steps of each.
BATCH_SIZE = 64
CHUNK_SIZE = 8
#: Standard deviation of what disturbs the expert's wanted acceleration, m/s^2.
NOISE = 0.5
CURVE_POINTS = 50
#: Evaluation seeds: the clusters of the intervals.
SEEDS = (100, 101, 102, 103, 104)
CONDITION = "filter_on"
#: Partners beside whom the score is taken.
SCORED = {name for name in get_task(TASK).partners if partner_card(name).leaves_way}


def clone_expert(run: Run) -> tuple[Clone, int]:
    """Return a clone of the streamed expert, and the steps simulated for it."""
    config = stream_config(
        TASK,
        producers=2,
        num_envs=32,
        buffer_size=64,
        mode="continuous",
        noise=NOISE,
        seed=run.seed,
    )
    stream = derive_substream("examples.clone", root_seed=run.seed)
    generator = torch.Generator().manual_seed(stream.integer_seed())
    with OnlineDataEngine(config) as engine:
        batches = iter(
            OnlineDataset(
                engine,
                CHUNK_SIZE,
                BATCH_SIZE,
                weighting="step",
                select=["obs", "actions", "valid"],
                seed=run.seed,
            )
        )
        first = engine.sample_batch(1024, 1, weighting="window", generator=generator)
        clone = Clone(state_moments(first["obs"]), HIDDEN, ACTION_DIM, generator)
        optimizer = torch.optim.Adam(clone.parameters(), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.steps)
        for update, batch in zip(range(run.steps), batches, strict=False):
            loss = cloning_loss(clone(batch["obs"]), batch["actions"], batch["valid"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if update % max(1, run.steps // CURVE_POINTS) == 0:
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
    bound = torch.full((ACTION_DIM,), ACTION_BOUND)
    save_checkpoint(
        state_dict={MLP_POLICY_KEY: clone.portable(-bound, bound).state_dict()},
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
