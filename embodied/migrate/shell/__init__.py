"""Reads the KEY=VALUE words of a shell's script, as the shell would hand them to the program; nothing is run.

script ─▶ syntax: its tree ─▶ run: every way it may go, with what its names stand for ─▶ keys: what its command is given
"""
