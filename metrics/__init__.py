"""Detections compared with labeled boxes: COCO metrics, matches, confidence intervals, mistakes. It imports `utils` only."""
