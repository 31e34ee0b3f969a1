"""Generates texts, token by token."""
