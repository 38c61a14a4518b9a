"""A trained model at work: detection, tiles, videos, results, export."""
