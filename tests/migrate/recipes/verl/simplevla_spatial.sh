# SimpleVLA-RL, examples: GRPO of OpenVLA-OFT on LIBERO; values of our own.
python -m verl.trainer.main_ppo \
    data.task_suite_name=libero_spatial data.num_trials_per_task=50 data.n_samples=4 data.filter_accuracy=True \
    data.accuracy_lower_bound=0.2 data.accuracy_upper_bound=0.8 data.train_batch_size=8 data.val_batch_size=40 \
    data.max_prompt_length=256 data.max_response_length=128 actor_rollout_ref.model.path=weights/oft \
    actor_rollout_ref.model.vla=openvla-oft actor_rollout_ref.model.action_token_len=7 \
    actor_rollout_ref.model.action_chunks_len=8 actor_rollout_ref.actor.optim.lr=4e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.grad_clip=1 \
    actor_rollout_ref.actor.clip_ratio_high=0.3 actor_rollout_ref.actor.entropy_coeff=0. \
    actor_rollout_ref.rollout.temperature=1.7 actor_rollout_ref.rollout.unnorm_key=libero_spatial \
    actor_rollout_ref.rollout.model_family=openvla actor_rollout_ref.rollout.task_suite_name=libero_spatial \
    algorithm.kl_ctrl.kl_coef=0.00 algorithm.adv_estimator=grpo trainer.total_epochs=7
