"""Jobs: the steps of an improvement loop as commands that can be killed and repeated.

Start at:    `cadenza job collect | train | evaluate | harvest | merge`; here, one module each:
             `collecting`, `cloning`, `encounters`, `dataset_files`.
Promise:     equal flags give equal bytes; killed at any point and started again with the same
             flags a job goes on where it was, or starts over, and ends with the same bytes. The
             result file is written last, in one step.
Layout:      ``<out>/job.json`` says what the folder is for, ``<out>/work`` holds what is
             unfinished, the product lies beside: ``dataset/``, ``policy.pt`` or ``blocks/``.
May import:  what `benchmark` may.
"""
