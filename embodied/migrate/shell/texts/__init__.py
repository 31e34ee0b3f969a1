"""Texts of a shell that need none of its names: where their parts end, patterns, and sums."""
