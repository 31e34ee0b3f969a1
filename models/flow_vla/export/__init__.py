"""Writes the policy for other programs: as LeRobot's folder, or as a program."""
