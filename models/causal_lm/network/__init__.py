"""Runs the layers of a network on tokens laid end to end."""
