"""Tortures checkpoints of any format from outside; see README.md."""
