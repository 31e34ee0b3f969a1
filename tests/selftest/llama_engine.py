"""An engine for tests, in a process of its own: transformers' own Llama, from the folder and the weights it is given.

``python llama_engine.py FAULT FD``; FAULT is ``none``, ``other`` (it takes the second likeliest token) or ``scaled``
(its log-probs are those of another temperature).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "embodied" / "runtime" / "engine" / "child"))

from serve import Answer, serve
from weights_file import read


class LlamaEngine:
    """See ``serve.Engine``. Writes one text a step, greedily."""

    version = "transformers"

    def __init__(self, setup, fault):
        self._fault, self._waiting, self._sampling = fault, [], {}
        config = AutoConfig.from_pretrained(setup["folder"])
        self._model = AutoModelForCausalLM.from_config(config).float().eval()

    def begin(self, sampling):
        self._sampling = sampling

    def add(self, number, prompt, seed):
        self._waiting.append((number, list(prompt)))

    def abort(self, number):
        self._waiting = [one for one in self._waiting if one[0] != number]

    @property
    def busy(self):
        return bool(self._waiting)

    @torch.inference_mode()
    def step(self):
        number, ids = self._waiting.pop(0)
        tokens, logprobs = [], []
        while len(tokens) < self._sampling["max_tokens"] and (not tokens or tokens[-1] not in self._sampling["ends"]):
            logits = self._model(torch.tensor([ids + tokens])).logits[0, -1].float()
            logp = (logits / (2.0 if self._fault == "scaled" else 1.0)).log_softmax(-1)
            token = int(logp.topk(2).indices[1 if self._fault == "other" else 0])
            tokens.append(token)
            logprobs.append(float(logp[token]))
        return [Answer(number, tokens, logprobs)]

    def load(self, path):
        found, state = [], {}
        for facts, numbers in read(path):
            found.append(facts)
            dtype = getattr(torch, facts["dtype"])
            state[facts["name"]] = torch.frombuffer(bytearray(numbers), dtype=dtype).view(facts["shape"])
        missing, unexpected = self._model.load_state_dict(state, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}, missing
        self._model.tie_weights()
        return found

    def sleep(self):
        pass

    def wake(self):
        pass


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[-1]), lambda setup: LlamaEngine(setup, sys.argv[1])))
