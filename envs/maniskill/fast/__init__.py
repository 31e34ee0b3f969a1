"""ManiSkill's control step for one scene on the CPU, without its tensors of one row: equal results for less time."""
