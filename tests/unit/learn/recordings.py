"""Where recorded updates lie."""

from pathlib import Path

HARL_UPDATES = Path(__file__).parents[2] / "data" / "harl" / "actor_updates.safetensors"
