"""Folders of released checkpoints: what is in them, and how it is loaded."""
