"""Hours of faults: trainings that are killed and resumed must end with the bits of undisturbed ones. See __main__.py."""
