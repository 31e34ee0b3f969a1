"""Parts of several networks: LoRA, compiled blocks, activation offload, sampling from logits, checkpoint files."""
