"""Command line: one Typer application, each command a few lines over a library call.

Start at:    `main.py` (the list of commands), then the module named after the command.
Promise:     results on stdout, progress and errors on stderr, `--json` for machines, one exit code
             per kind of failure (`output.ExitCode`), and `cadenza --help` within half a second.
May import:  every folder, but only inside the functions that run: start-up stays light.
Adding one:  one function in the module of its group, registered in `main.py`, one test in
             `tests/e2e`.
"""
