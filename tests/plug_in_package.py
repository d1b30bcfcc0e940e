"""Packages of other people, installed in a folder on the import path."""

from pathlib import Path

#: A partner of the push task that always does the same; ``{speed}`` stands for how fast.
STEADY_PARTNER = """\
import numpy as np

from cadenza.partners.interface import PartnerBase
from cadenza.partners.registry import register_partner


@register_partner("steady")
class Steady(PartnerBase):
    "Drives straight on."

    def reset(self, *, seed=None):
        pass

    def act(self, obs, *, deterministic=True):
        shape = obs["agent"][self.spec.extra["uid"]]["state"].shape[:-1]
        return self.checked(np.full((*shape, 2), {speed}, dtype=np.float32))
"""


def install(folder: Path, name: str, files: dict[str, str], *, group: str, version: str) -> None:
    """Write the package ``name`` and its metadata; a call with other files replaces it.

    Args:
        folder: Folder on the import path.
        name: Name of package and distribution; importing it registers.
        files: Source by file name inside the package.
        group: Entry-point group it is a plug-in of.
        version: Version of the distribution.
    """
    for file, text in files.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_text(text, encoding="utf-8")
    info = folder / f"{name}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
