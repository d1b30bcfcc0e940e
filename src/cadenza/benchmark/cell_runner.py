"""Runs the cells of a stored plan, one after the other, in whatever process it is built."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cadenza.benchmark.cell_files import write_cell
from cadenza.benchmark.cells import PLAN_NAME, Cell, EvaluationPlan, initial_state_seed
from cadenza.benchmark.episodes import (
    EpisodeTag,
    EpisodeWorld,
    Trajectory,
    record_episode,
    run_episode,
)
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, load_policy
from cadenza.benchmark.tasks import TaskSpec, adopt
from cadenza.benchmark.torch_threads import single_torch_thread
from cadenza.benchmark.worlds import open_world
from cadenza.core.errors import IntegrityError
from cadenza.evaluation.results import EpisodeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRunnerFactory:
    """Builds the runner of one process; travels to workers as plain values.

    Attributes:
        folder: Output folder; holds the plan and receives the cells.
        artifacts_root: Folder that checkpoint addresses are relative to.
        plan_sha256: Digest of the plan that is meant.
        task: The plan's task.
        modules: Modules that register the partners which other packages add.
    """

    folder: Path
    artifacts_root: Path
    plan_sha256: str
    task: TaskSpec
    modules: tuple[str, ...] = ()

    def __call__(self) -> "CellRunner":
        """Return a runner for the stored plan.

        Raises:
            IntegrityError: The folder holds another plan.
        """
        plan = EvaluationPlan.from_bytes((self.folder / PLAN_NAME).read_bytes())
        if plan.digest != self.plan_sha256:
            raise IntegrityError(
                f"{self.folder / PLAN_NAME}: expected plan {self.plan_sha256[:16]}, got "
                f"{plan.digest[:16]}; another run has replaced it."
            )
        adopt(self.task, self.modules)
        return CellRunner(plan=plan, folder=self.folder, artifacts_root=self.artifacts_root)


class CellRunner:
    """Plays the episodes of a cell and stores them; holds what cells of one process share."""

    def __init__(self, *, plan: EvaluationPlan, folder: Path, artifacts_root: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._artifacts_root = artifacts_root
        self._policies: dict[str, EgoPolicy] = {}

    def __call__(self, key: str, /) -> None:
        """Run the cell ``key`` and store it."""
        cell = self._plan.cells[key]
        write_cell(self._folder, key, cell, self.play(cell))

    def play(self, cell: Cell) -> list[EpisodeResult]:
        """Return the episodes of ``cell``."""
        indices = range(cell.first_episode, cell.first_episode + cell.n_episodes)
        with single_torch_thread(), self._world(cell) as world:
            return [run_episode(world, self._tag(cell, index)) for index in indices]

    def replay(self, cell: Cell, episode: int) -> tuple[EpisodeResult, Trajectory]:
        """Play one episode of ``cell`` again and also return where everyone was.

        Args:
            cell: Any cell of the plan.
            episode: Index within the seed.
        """
        with single_torch_thread(), self._world(cell) as world:
            return record_episode(world, self._tag(cell, episode))

    @contextmanager
    def _world(self, cell: Cell) -> Generator[EpisodeWorld]:
        partner = self._plan.partner(cell.partner)
        condition = self._plan.condition(cell.condition)
        with open_world(
            env=self._plan.env,
            partner=partner.partner,
            weights_sha256=partner.weights_sha256,
            safety=condition.safety,
            link=condition.link,
            root_seed=cell.seed,
            make_policy=lambda seat: self._policy(cell.policy, seat),
        ) as world:
            yield world

    def _policy(self, name: str, seat: EgoSeat) -> EgoPolicy:
        if name not in self._policies:
            entry = self._plan.policy(name)
            self._policies[name] = load_policy(
                entry.source,
                seat=seat,
                artifacts_root=self._artifacts_root,
                weights_sha256=entry.weights_sha256,
            )
        return self._policies[name]

    def _tag(self, cell: Cell, episode: int) -> EpisodeTag:
        return EpisodeTag(
            seed=cell.seed,
            episode_idx=self._plan.episode_idx(cell, episode),
            initial_state_seed=initial_state_seed(cell.seed, episode),
            policy=cell.policy,
            condition=cell.condition,
            partner=cell.partner,
        )
