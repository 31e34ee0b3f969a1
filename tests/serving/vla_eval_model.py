"""A model server of vla-eval, run by the Python of an environment of its own. Its actions are sums of what it sees, so
that a test can compute them; it gives them one by one, from chunks of three.

    python vla_eval_model.py PORT
"""

from __future__ import annotations

import sys

import numpy as np
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import serve


class Sums(PredictModelServer):
    """Action i of a chunk: mean brightness of both pictures, sum of the state, length of the instruction, i."""

    def __init__(self) -> None:
        super().__init__(chunk_size=3)

    def predict(self, obs, ctx):
        if "break" in obs["task_description"]:
            raise ValueError("no such task")
        pictures = [obs["images"][name] for name in ("agentview", "wrist")]
        seen = [float(one.mean()) / 255 for one in pictures]
        rest = [float(obs["states"].sum()) / 100, len(obs["task_description"]) / 100]
        return {"actions": np.array([[*seen, *rest, step / 10, 0, 0] for step in range(3)])}


if __name__ == "__main__":
    serve(Sums(), "127.0.0.1", int(sys.argv[1]))
