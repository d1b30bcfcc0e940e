"""Loop: collect, train, evaluate, decide, improve; again and again, unattended.

Start at:    `LoopConfig`, `LoopController`, `JobStore`; `cadenza loop run` for the command line.
Promise:     whatever process is killed, a resumed run ends with the store, the blessed policy, the
             events and the pages of an undisturbed one; no command runs that the constitution does
             not allow; no decision is made on noise.
May import:  `core`, `evaluation`, and any folder below `benchmark`.  Must not import: `benchmark`,
             `web`, `cli`: work is done by commands in processes of their own.
Floors:      from below: `contracts` (records), `constitution`, `config`, `state`, `store`,
             `events` and `jobs` (runners), `llm`, `backends` (native, LeRobot) and `knowledge`,
             `agents` (workers of the steps), `orchestrator` (decision, state machine, controller,
             proposers); on top what commands show and ask. `lint-imports` checks them.
Import time: names are imported at first use.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .config import LoopConfig as LoopConfig
    from .constitution import Constitution as Constitution
    from .events.bus import Event as Event
    from .events.bus import EventBus as EventBus
    from .orchestrator.assembly import build_loop as build_loop
    from .orchestrator.decision import decide as decide
    from .orchestrator.loop import LoopController as LoopController
    from .orchestrator.loop import RunSummary as RunSummary
    from .store.jobstore import JobStore as JobStore
else:
    __dir__, __getattr__ = lazy_names(__name__)
