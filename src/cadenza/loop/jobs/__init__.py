"""Jobs: commands in processes of their own, each run to its end at most once.

Start at:    `JobSpec` (what to run), `LocalJobRunner` (runs it), `ProgramTable`, `BudgetMeter`.
Promise:     whichever of controller, host and command is killed, the job goes on or starts over,
             a recorded end is never repeated, and no process is left behind; nothing that does
             not carry a job's mark is ever touched.
Layout:      `spec`; `durable_runner` (what all runners do), `local_runner`, `ray_runner`,
             `callable_runner`; `host` (the process that outlives its runner), `attempt_files`
             (how the two talk), `hosts`, `watching`, `outcomes`, `results`, `ends`; `processes`,
             `reaping`; `programs`, `budget`, `stopping`, `reports`.
Import time: names are imported at first use: a host must start fast.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "BudgetLimits": "budget",
    "BudgetMeter": "budget",
    "CallableRunner": "callable_runner",
    "JobEnd": "spec",
    "JobKey": "spec",
    "JobRunner": "spec",
    "JobSpec": "spec",
    "LocalJobRunner": "local_runner",
    "ProgramTable": "programs",
    "StopSignals": "stopping",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
