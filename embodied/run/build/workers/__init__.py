"""Settings of pools of env workers, and what their workers take of host memory."""
