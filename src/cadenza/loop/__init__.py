"""Loop: collect, train, evaluate, decide, improve; again and again, unattended.

Start at:    `LoopConfig`, `LoopController`, `JobStore`; `cadenza loop run` for the command line.
Promise:     whatever process is killed, a resumed run ends with the store, the blessed policy, the
             events and the pages of an undisturbed one; no command runs that the constitution does
             not allow; no decision is made on noise.
May import:  `core`, `evaluation`, and any folder below `benchmark`.  Must not import: `benchmark`,
             `web`, `cli`: work is done by commands in processes of their own.
Layout:      `contracts` (records), `config`, `store`, `events`, `constitution`, `jobs` (runners),
             `backends` (native, LeRobot), `agents` (workers of the steps), `orchestrator`
             (decision, state machine, controller, proposers), `llm`, `knowledge`.
"""
