"""One policy loss a file; the file's name is the value of ``algorithm.loss_type``."""
