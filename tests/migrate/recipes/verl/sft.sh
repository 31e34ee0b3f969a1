# verl, examples/sft: supervised training of texts; values of our own.
torchrun -m verl.trainer.sft_trainer \
    data.train_files=train.jsonl data.val_files=test.jsonl data.messages_key=messages data.train_batch_size=24 \
    data.micro_batch_size_per_gpu=3 data.max_length=640 model.path=models/text optim.lr=2e-5 optim.weight_decay=0.1 \
    optim.lr_warmup_steps_ratio=0.1 optim.lr_scheduler_type=cosine optim.min_lr_ratio=0.2 'optim.betas=[0.9,0.95]' \
    optim.clip_grad=0.5 engine=fsdp trainer.total_epochs=2 trainer.seed=31
