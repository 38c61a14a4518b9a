"""From files to batches. Knows nothing of models or processes."""
