"""The terms of the loss, one file each; :mod:`embodied.learn.step.objective` adds them up."""
