"""Texts and pictures as tokens."""
