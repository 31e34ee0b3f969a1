"""Chains of denoising steps as pure functions: ordinary and stochastic, their densities, guidance in real time."""
