"""Off-policy learning of an actor with critics, from records that stay (``algorithm.learner=sac``).

| file | what it does |
|---|---|
| ``learner.py`` | an iteration: its records are remembered, then updates |
| ``update.py`` | the loss of one update, from a batch of remembered records |
| ``interventions.py`` | what is remembered where a human overrode the policy |
| ``memory.py`` | the records that may be drawn: a ring of files, and a copy of it |
| ``decided.py`` | demonstrations as decisions of the policy |
| ``shown.py`` | a process's part of the demonstrations |
| ``share.py`` | what a process reads of each update |
| ``transitions.py`` | entries as transitions |
"""
