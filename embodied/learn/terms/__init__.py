"""The terms of the loss, one file each; :mod:`embodied.learn.objective` adds them up."""
