"""What several networks use: LoRA, compiled blocks, activation offload, sampling from logits, checkpoint files."""
