"""Benchmark: tasks, evaluation runs and sealed results.

Start at:    `quickstart.run_quickstart` (everything), `evaluation_run.run_evaluation` (one plan).
Promise:     results are a pure function of the plan: workers, order and restarts change no byte.
May import:  everything below `loop`.
Adding one:  a task is one entry in `tasks.py` plus its environment in `envs`.
"""
