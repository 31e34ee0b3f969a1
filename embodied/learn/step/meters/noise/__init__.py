"""Measures how noisy the gradient of an update is: sketches of single groups' gradients, and what they amount to."""
