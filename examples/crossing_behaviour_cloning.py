"""Behaviour cloning on crossing from two producers that go on simulating an expert meanwhile.

python examples/crossing_behaviour_cloning.py

Each of two processes steps 32 environments in which the scripted ego ``swerve`` crosses behind the
safety filter, beside another partner every episode; noise on what it wants shows how to get back. A
perceptron learns the executed action from the ego's state by least squares; the printed error is in
m^2/s^4. The clone then plays through the benchmark's evaluation, with the filter and without,
beside all five partners of the task, three of which the stream never showed. The score is the
success rate with the filter beside those that leave a way to the goal. The folder of the seed gets
``clone.policy.safetensors`` and the sealed results. When episodes arrive depends on the machine, so
equal seeds do not give equal bits here.
"""

from pathlib import Path

import torch
import typer

from cadenza.benchmark.cells import PolicyChoice
from cadenza.benchmark.evaluation_run import EvaluationConfig, PartnerChoice, run_evaluation
from cadenza.benchmark.jobs.cloning import (
    LEARNING_RATE,
    clone_policy,
    cloning_loss,
    cosine_rate,
    new_clone,
    state_scale,
)
from cadenza.benchmark.stream_tasks import stream_config, stream_partners
from cadenza.benchmark.tasks import get_task
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.imitation import TorchAdam
from cadenza.learn.agents.judging import Evaluation
from cadenza.learn.nn.portable import save_policy_file
from cadenza.partners.registry import partner_card
from cadenza.stream import OnlineDataEngine, OnlineDataset

TASK = "crossing"
#: Largest acceleration of the ego per component, m/s^2.
BOUND = torch.full((2,), 2.0)
#: Standard deviation of what disturbs the expert's wanted acceleration, m/s^2.
NOISE = 0.5
#: Evaluation seeds: the clusters of the intervals.
SEEDS = (100, 101, 102, 103, 104)


def clone_expert(seed: int, updates: int) -> torch.nn.Sequential:
    """Return a clone of the streamed expert."""
    size = {"producers": 2, "num_envs": 32, "buffer_size": 64}
    config = stream_config(TASK, **size, mode="continuous", noise=NOISE, seed=seed)
    stream = derive_substream("examples.clone", root_seed=seed)
    generator = torch.Generator().manual_seed(stream.integer_seed())
    chunk_size, batch_size, fields = 8, 64, ["obs", "actions", "valid"]
    with OnlineDataEngine(config) as engine:
        batches = OnlineDataset(
            engine, chunk_size, batch_size, weighting="step", select=fields, seed=seed
        )
        first = engine.sample_batch(1024, 1, weighting="window", generator=generator)
        clone = new_clone(state_scale(first["obs"]), (128, 128), len(BOUND), generator)
        optimizer = TorchAdam(LEARNING_RATE, clone.parameters())
        for update, batch in zip(range(updates), batches, strict=False):
            loss = cloning_loss(clone(batch["obs"]), batch["actions"], batch["valid"])
            optimizer.learning_rate = cosine_rate(update, updates)
            optimizer.step(policy=loss)
            if update % max(1, updates // 10) == 0:
                simulated = sum(each["frames"] for each in engine.status()["producers"])
                print(f"seed {seed}, {update} updates, {simulated} steps simulated: {loss:.3f}")
        return clone


def evaluate(address: str, episodes: int, out: Path) -> list[float]:
    """Play the clone beside every partner, with the filter and without; return the scored ones."""
    met = {partner.class_name for partner in stream_partners(TASK)}
    partners = get_task(TASK).partners
    config = EvaluationConfig(
        task=TASK,
        policies=(PolicyChoice(name="clone", source=address),),
        partners=tuple(PartnerChoice(name=p, class_name=p, seen=p in met) for p in partners),
        seeds=SEEDS,
        episodes_per_seed=max(1, episodes // (len(partners) * len(SEEDS))),
        artifacts_root=out,
    )
    outcome = run_evaluation(config, out=out / "evaluation", workers=1, overwrite=True)
    return [
        float(episode.success)
        for episode in outcome.episodes["clone"]
        if episode.condition == "filter_on" and partner_card(episode.partner).leaves_way
    ]


def main(
    seed: int = 0,
    seeds: int = 1,
    updates: int = 4_000,
    episodes: int = 500,
    out: Path = Path("runs/examples/crossing_behaviour_cloning"),
) -> None:
    """Clone the expert of every seed and evaluate the clone."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    rates: list[float] = []
    for root in range(seed, seed + seeds):
        folder = out / f"seed_{root}"
        network = clone_policy(clone_expert(root, updates), -BOUND, BOUND, task={"id": TASK})
        file = save_policy_file(network, folder / "clone.policy.safetensors")
        successes = evaluate(f"local://{file.name}", episodes, folder)
        rates.append(100.0 * sum(successes) / len(successes))
        print(f"seed {root}: {rates[-1]:.1f} % of {len(successes)} succeed", flush=True)
    if seeds > 1:
        print(f"success over seeds, %: {Evaluation.of(rates, [])}")


if __name__ == "__main__":
    typer.run(main)
