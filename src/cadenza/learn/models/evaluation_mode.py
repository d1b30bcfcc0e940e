"""Switch a module to evaluation mode for one block."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Generator[None]:
    """Run the block with batch-norm and dropout of ``module`` frozen, then restore each submodule.

    Predictions made while the model is being trained must not depend on the other rows of the batch
    or move the running statistics.
    """
    trained = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in trained:
            part.training = True
