# A script of TRL: Dr. GRPO with adapters, and a reward of its own; values of our own.
from datasets import load_dataset
from peft import LoraConfig
from rewards import right
from trl import GRPOConfig, GRPOTrainer

SIZE = 4
RATE = 3e-6


def main():
    data = load_dataset("json", data_files="train.jsonl", split="train")
    data = data.shuffle(seed=7)
    config = GRPOConfig(
        "out", loss_type="dr_grpo", scale_rewards=False, per_device_train_batch_size=SIZE,
        gradient_accumulation_steps=2 * SIZE, num_generations=8, learning_rate=RATE, max_completion_length=64,
        num_train_epochs=3, delta=1.5, optim="adamw_torch", save_strategy="no", disable_dropout=True,
    )  # fmt: skip
    config.temperature = 0.7
    trainer = GRPOTrainer(
        model="models/text", reward_funcs=right, args=config, train_dataset=data,
        peft_config=LoraConfig(r=16, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM"),
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
