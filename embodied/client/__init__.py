"""What robot code needs to be served by a policy elsewhere: a client, a queue of chunks, a guard (docs/deploy.md)."""

from __future__ import annotations

from embodied.client.chunks import ChunkQueue as ChunkQueue
from embodied.client.client import Answer as Answer
from embodied.client.client import Client as Client
from embodied.client.guard import Guard as Guard
