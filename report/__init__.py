"""Results to look at: curves, contact sheets, the evaluation report."""
