"""Reads and loads folders of released checkpoints."""
