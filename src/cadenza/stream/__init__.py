"""Stream: simulation keeps producing episodes while training keeps drawing chunks of them.

Start at:    `OnlineDataEngine`, `OnlineDataEngineCfg` and `OnlineDataset`.
Promise:     a chunk is never torn, and neither drawing nor writing waits for the other; nothing
             is left in shared memory, however the processes end.
May import:  `core`, `learn`, `safety`.  Must not import: any other folder of the package.
Layout:      `shared_file`, `layout`, `slots` (the store), `slot_writer`, `slot_reader`;
             `engine` (what users call), `live_draws`, `config`, `back_pressure`;
             `supervisor`, `producer`, `environment`, `policies` (the processes that simulate);
             `dataset`, `chunk_samplers`, `batch_ring` (what trainers call), `batches`;
             `recorded_draws`, `recording_files` (repeating a training).
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ChunkSizeSampler": "chunk_samplers",
    "GMMChunkSampler": "chunk_samplers",
    "OnlineDataEngine": "engine",
    "OnlineDataEngineCfg": "config",
    "OnlineDataEngineState": "slots",
    "OnlineDataWorkerError": "engine",
    "OnlineDataset": "dataset",
    "StaleDataError": "back_pressure",
    "UniformChunkSampler": "chunk_samplers",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
