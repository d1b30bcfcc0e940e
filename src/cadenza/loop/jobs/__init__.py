"""Jobs: commands in processes of their own, each run to its end at most once.

Start at:    `cadenza.loop.contracts.records.JobSpec` (what to run), `durable_runner` (runs it).
Promise:     whichever of controller, host and command is killed, the job goes on or starts over,
             a recorded end is never repeated, and no process is left behind; nothing that does
             not carry a job's mark is ever touched.
Adding one:  where hosts run is one file with a subclass of `durable_runner.Hosts`, like
             `slurm_runner`, and a line in `cadenza.loop.orchestrator.assembly`.
"""
