"""Readers of annotation formats: one module per format, what they share, and read.py, which decides which one reads."""
