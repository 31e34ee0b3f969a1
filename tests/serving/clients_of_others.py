"""Run by the Python of another environment: asks a server with the clients that its users have, and prints the answers.

    python clients_of_others.py PORT TOKEN

numpy is older than 2 there. Nothing of ``embodied`` can be imported.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

import json_numpy
import numpy as np
from openpi_client import action_chunk_broker, image_tools, websocket_client_policy

PORT, TOKEN = int(sys.argv[1]), sys.argv[2]
random = np.random.default_rng(0)
PICTURES = random.integers(0, 256, (2, 16, 16, 3), np.uint8)
STATE = random.standard_normal(8)


def openpi() -> dict:
    client = websocket_client_policy.WebsocketClientPolicy("127.0.0.1", PORT, api_key=TOKEN)
    pictures = [image_tools.convert_to_uint8(image_tools.resize_with_pad(one, 16, 16)) for one in PICTURES]
    obs = {
        "observation/image": pictures[0], "observation/wrist_image": pictures[1], "observation/state": STATE,
        "prompt": "move the point to goal 1",
    }  # fmt: skip
    answers = [client.infer(obs) for _ in range(2)]
    try:
        client.infer({**obs, "observation/state": STATE[:3]})
        error = ""
    except RuntimeError as failure:
        error = str(failure)
    broker = action_chunk_broker.ActionChunkBroker(client, 4)
    steps = [broker.infer(obs)["actions"] for _ in range(5)]
    return {
        "numpy": np.__version__,
        "metadata": client.get_server_metadata()["action_shape"],
        "actions": [answer["actions"].tolist() for answer in answers],
        "timing": sorted(answers[1]["server_timing"]),
        "policy_timing": sorted(answers[1]["policy_timing"]),
        "error": error,
        "steps": [step.tolist() for step in steps],
    }


def openvla() -> dict:
    message = {
        "full_image": PICTURES[0], "left_wrist_image": PICTURES[1], "state": STATE,
        "instruction": "move the point to goal 1", "unnorm_key": "libero_spatial",
    }  # fmt: skip
    twice = json_numpy.loads(json_numpy.loads(post(json_numpy.dumps({"encoded": json_numpy.dumps(message)}))))
    return {
        "actions": np.array(json_numpy.loads(post(json_numpy.dumps(message)))).tolist(),
        "twice": np.array(twice).tolist(),
    }


def post(body: str) -> str:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/act", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read().decode()


if __name__ == "__main__":
    print(json.dumps({"openpi": openpi(), "openvla": openvla()}))
