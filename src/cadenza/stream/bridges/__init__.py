"""Bridges: whole episodes out of the stream, into a memory or into files.

Start at:    `episodes.EpisodeReader` (every published episode, once, in order); then
             `memory.StreamToMemory` (trains off-policy from live producers),
             `lerobot.LeRobotWriter` and `minari.export_to_minari` (datasets).
Promise:     an episode is copied whole and never torn; producers never wait for a bridge.
May import:  `core`, `learn` and the trajectory store.
Layout:      `lerobot_files` and `lerobot_stats` say what a LeRobotDataset v3.0 consists of.
"""
