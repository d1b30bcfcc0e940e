"""The demonstration: a small native run from nothing to a good policy."""

from pathlib import Path
from typing import Any, Final

import yaml

from cadenza.core.files import atomic_write_text, make_folder
from cadenza.core.shipped_configs import shipped_config
from cadenza.core.yaml_files import read_yaml
from cadenza.loop.config import LoopConfig

#: Always the same, so that running the demonstration again goes on with it.
RUN_ID: Final = "demo"
#: The configuration, written into the folder of all runs for people to change.
CONFIG_FILE: Final = "demo.yaml"
_SHIPPED: Final = "loop/demo.yaml"


def write_demo_config(workdir: Path, knowledge: Path) -> LoopConfig:
    """Write the demonstration's configuration into ``workdir`` and return it.

    Args:
        workdir: Folder of its runs.
        knowledge: Folder of its pages.

    Raises:
        ConfigurationError: The package was installed without its configurations.
        StorageError: The file system refused.
    """
    document: dict[str, Any] = dict(read_yaml(shipped_config(_SHIPPED)))
    document |= {"workdir": str(workdir), "knowledge": {"root": str(knowledge)}}
    make_folder(workdir)
    path = workdir / CONFIG_FILE
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    atomic_write_text(path, f"# Run it with: cadenza loop run --config {path}\n{text}")
    return LoopConfig.from_yaml(path)
