"""Derives values of keys from others, and refuses combinations that cannot work."""
