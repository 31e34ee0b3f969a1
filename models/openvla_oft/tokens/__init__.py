"""Actions, prompts and pictures as the network takes them, and the statistics that they are scaled by."""
