"""Folders of LeRobot and of openpi: their tensors' names, what these say of sizes, statistics, reading and saving."""
