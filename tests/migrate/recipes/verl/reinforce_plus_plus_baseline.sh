# verl, examples: REINFORCE++ with the mean of the group; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=reinforce_plus_plus_baseline \
    data.train_batch_size=16 \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.005 \
    actor_rollout_ref.actor.kl_loss_type=k2
