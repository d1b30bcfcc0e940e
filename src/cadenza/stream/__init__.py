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

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .back_pressure import StaleDataError as StaleDataError
    from .chunk_samplers import ChunkSizeSampler as ChunkSizeSampler
    from .chunk_samplers import GMMChunkSampler as GMMChunkSampler
    from .chunk_samplers import UniformChunkSampler as UniformChunkSampler
    from .config import OnlineDataEngineCfg as OnlineDataEngineCfg
    from .dataset import OnlineDataset as OnlineDataset
    from .engine import OnlineDataEngine as OnlineDataEngine
    from .engine import OnlineDataWorkerError as OnlineDataWorkerError
    from .slots import OnlineDataEngineState as OnlineDataEngineState
else:
    __dir__, __getattr__ = lazy_names(__name__)
