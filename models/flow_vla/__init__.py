"""Flow policies: SmolVLA, π0 and π0.5, which denoise a chunk of continuous actions."""
