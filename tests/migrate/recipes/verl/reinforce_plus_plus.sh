# verl, examples: REINFORCE++; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=reinforce_plus_plus \
    data.train_batch_size=16 \
    actor_rollout_ref.rollout.n=2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.optim.lr=3e-6 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.kl_coef=0.02 \
    algorithm.kl_penalty=k1
