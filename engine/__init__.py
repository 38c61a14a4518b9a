"""A training: one epoch, evaluation, schedule, optimizer, several processes, the run folder, resuming."""
