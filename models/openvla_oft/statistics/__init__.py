"""Statistics of a checkpoint's training data: what is looked at before a robot is moved by them."""
