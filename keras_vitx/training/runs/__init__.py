"""Long runs: the folder of a run, checkpoints, resuming, progress."""
