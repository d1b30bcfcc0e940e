"""Scripts that run inside LeRobot's environment, which has no `cadenza`.

Start at:    `run.py`, the one file that is started: ``python run.py collect --policy-path=...``.
Promise:     each script can be killed at any point and started again with the same words; its
             result file is written last, all at once.
May import:  the standard library, numpy, pyarrow, LeRobot and what LeRobot needs; of `cadenza`
             nothing but the other scripts, relatively.
Adding one:  a module with ``main(words) -> int``, a line in `run.py`, an entry in the
             constitution's table of programs.
"""
