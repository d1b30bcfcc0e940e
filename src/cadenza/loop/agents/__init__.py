"""Agents: workers of the steps of a cycle, and the plain runners they can take.

Start at:    `Runner` (how a command is run), `TrainAgent`, `EvalAgent`.
Promise:     a worker runs nothing that the constitution does not allow, and says in events what
             it ran and how it ended.
Adding one:  a runner is any callable ``(command, log_path) -> RunResult``;
             `cadenza.loop.agents.base` makes it run the jobs of a loop.
Import time: names are imported at first use.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import Runner as Runner
    from .base import RunResult as RunResult
    from .base import dry_runner as dry_runner
    from .base import subprocess_runner as subprocess_runner
    from .data_agent import DataAgent as DataAgent
    from .eval_agent import EvalAgent as EvalAgent
    from .eval_agent import EvalError as EvalError
    from .improve_agent import ImproveAgent as ImproveAgent
    from .improve_agent import ImproveError as ImproveError
    from .knowledge_agent import KnowledgeAgent as KnowledgeAgent
    from .train_agent import TrainAgent as TrainAgent
    from .train_agent import TrainError as TrainError
else:
    __dir__, __getattr__ = lazy_names(__name__)
