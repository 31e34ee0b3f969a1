# verl, examples: PPO with a critic; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=gae \
    algorithm.gamma=0.99 \
    algorithm.lam=0.95 \
    data.train_batch_size=64 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.rollout.name=vllm \
    critic.optim.lr=3e-5 \
    critic.cliprange_value=0.4 \
    trainer.critic_warmup=2 \
    algorithm.use_kl_in_reward=True
