"""What a user of TRL has: a Python script or a YAML file, and what its trainer leaves to code and to accelerate."""
