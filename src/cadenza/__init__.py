"""cadenza: robot policies that work with partners they have never met.

Start at:    `cadenza quickstart` (the whole idea in minutes) or `cadenza.aht` (training).
Floors:      `cli > web > loop > benchmark > aht > envs, partners, stream, evaluation > comm >
             learn, safety > core`; a folder imports only from lower floors.
"""

__version__ = "0.1.0"
