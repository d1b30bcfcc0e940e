"""Jobs: commands in processes of their own, each run to its end at most once."""
