# A script of TRL with what is not here: a loss, a reward that a call makes, values that only a run knows.
import os

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def make(strength):
    return lambda completions, **columns: [strength * len(one) for one in completions]


rows = load_dataset("owner/problems", split="train").map(lambda row: {"prompt": row["question"]})
training = GRPOConfig(
    loss_type="sapo",
    learning_rate=float(os.environ["RATE"]),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    steps_per_generation=6,
    num_generations=8,
    top_entropy_quantile=0.2,
)
GRPOTrainer("models/text", make(0.1), training, rows).train()
