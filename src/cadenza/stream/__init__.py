"""Stream: simulation keeps producing episodes while training keeps drawing chunks of them.

Start at:    `SlotStore` and its `EpisodeWriter` and `SlotReader`.
Promise:     a chunk is never torn, and neither drawing nor writing waits for the other; nothing
             is left in shared memory, however the processes end.
May import:  `core`, `learn`, `safety`.  Must not import: any other folder of the package.
Layout:      `shared_file`, `fences`, `layout`, `slots` (the store), `slot_writer`, `slot_reader`.
"""
