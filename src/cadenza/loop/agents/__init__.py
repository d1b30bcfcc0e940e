"""Agents: workers of the steps of a cycle, and the plain runners they can take.

Start at:    `Runner` (how a command is run), `TrainAgent`, `EvalAgent`.
Promise:     a worker runs nothing that the constitution does not allow, and says in events what
             it ran and how it ended.
Adding one:  a runner is any callable ``(command, log_path) -> RunResult``;
             `cadenza.loop.agents.base` makes it run the jobs of a loop.
Import time: names are imported at first use.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "DataAgent": "data_agent",
    "EvalAgent": "eval_agent",
    "EvalError": "eval_agent",
    "ImproveAgent": "improve_agent",
    "ImproveError": "improve_agent",
    "KnowledgeAgent": "knowledge_agent",
    "RunResult": "base",
    "Runner": "base",
    "TrainAgent": "train_agent",
    "TrainError": "train_agent",
    "dry_runner": "base",
    "subprocess_runner": "base",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
