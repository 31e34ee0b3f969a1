"""The recipes of a run (``rl``, ``sft``, ``evaluate``), and what they are made of.

| object | does |
|---|---|
| :class:`~embodied.run.training.collector.Collector` | runs an iteration's plan: rollouts, refills, greedy episodes |
| a learner (:mod:`embodied.learn`) | turns an iteration's records or demonstrations into optimizer steps |
| :class:`~embodied.run.evaluation.evaluator.EvaluationRunner` | runs the plan of an evaluation |
| :class:`~embodied.run.folder.reporter.Reporter` | speaks: console, trackers, times |
| :class:`~embodied.run.folder.saves.Saves` | resumes, and saves when it is due |

A recipe checks, opens a session (:mod:`embodied.run.session`), builds, and hands each part the values that it needs.
"""
