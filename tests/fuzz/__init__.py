"""Fuzzing: every reader gets damaged inputs, and ends with a checked success or with one clean error. See harness.py."""
