"""Starts the ranks of a run on the machines of a cluster, watches them and ends them; Ray places them.

    launcher (launch.py) ─▶ driver (driver.py, with Ray) ─▶ agent a node (agent.py) ─▶ keeper (keeper.py) ─▶ its ranks
             ◀──────────── events, a line of JSON each (events.py) ◀──────────────────────────┘

| process | is of its own because |
|---|---|
| launcher | it outlives what Ray does to a process that has lost the head, and keeps Ray's prints from the terminal |
| driver | Ray ends all that it has placed for a driver when that ends, also by SIGKILL |
| agent | Ray's actor on the node |
| keeper | it outlives the agent: its ranks get SIGTERM and time to save before they are killed |

``cluster.launcher=local`` has launcher and ranks alone. Ranks are the processes that torchrun would start, with the
same variables. This room is the only one that imports ray.
"""
