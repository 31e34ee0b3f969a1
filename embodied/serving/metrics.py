"""Metrics of the server, as Prometheus reads them at ``/metrics``. Each server has a registry of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from embodied.errors import ConfigError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily
except ImportError as error:
    raise ConfigError(
        "the Python package 'prometheus-client' is not installed", "pip install 'embodied-rl[serve]'"
    ) from error

PREFIX = "embodied_serve_"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
QUANTILES = (0.5, 0.9, 0.95, 0.99)
RECENT = 2048  # latencies from which the quantiles are taken

METRICS: Mapping[str, str] = {
    "requests": "Requests that were answered with actions, by protocol",
    "errors": "Requests that were answered with an error, by kind",
    "latency_seconds": "From the last byte of a request to its answer, without the network",
    "latency_quantile_seconds": f"Quantiles of the last {RECENT} latencies",
    "decode_seconds": "Reading a request: its frame, its pictures, its checks",
    "queue_seconds": "Waiting of a request for the policy",
    "inference_seconds": "A call of the policy for a batch",
    "batch_size": "Requests in a batch",
    "waiting": "Requests that wait for the policy",
    "connections": "Open connections",
    "refused_connections": "Connections that were refused, by reason",
    "slowed": "Requests that were held back because their address sends too many",
    "received_bytes": "Bytes of requests",
    "client_delay_steps": "Delay that clients have measured, in control steps",
    "ready": "1 if requests are answered, else 0",
}
"""Names without the prefix, and what they count. docs/serving.md has the same table."""


class RecentLatencies:
    """Prometheus collector of the quantiles of the last latencies, computed when they are read."""

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=RECENT)

    def collect(self) -> Iterable[Any]:
        """Yields the quantiles as Prometheus metrics."""
        family = GaugeMetricFamily(
            f"{PREFIX}latency_quantile_seconds", METRICS["latency_quantile_seconds"], labels=["quantile"]
        )
        values = [*self.values]
        for quantile in QUANTILES if values else ():
            family.add_metric([f"{quantile:g}"], float(np.quantile(values, quantile)))
        yield family


class BufferedValues:
    """Prometheus collector that buffers values, and counts them when the metrics are read: counting would slow requests
    down.

    Args:
        most: values that may wait; above that, each new one works in the two oldest, so that no request waits for many.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._values: deque[tuple[Callable[[float], None], float]] = deque()

    def __call__(self, count: Callable[[float], None], value: float) -> None:
        """Note a value for ``Histogram.observe`` or ``Counter.inc``. From any thread."""
        self._values.append((count, value))
        if len(self._values) > self._most:
            self._work_in(2)

    def collect(self) -> Iterable[Any]:
        """Counts the buffered values. The registry calls it before the metrics that were registered later."""
        self._work_in(len(self._values))
        return ()

    def _work_in(self, most: int) -> None:
        with suppress(IndexError):  # all are worked in, perhaps by another thread
            for _ in range(most):
                count, value = self._values.popleft()
                count(value)


class Metrics:
    """The metrics of one server; the names of attributes are those of :data:`METRICS`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.note = BufferedValues()
        self.registry.register(self.note)
        self.requests = self._make(Counter, "requests", ["protocol"])
        self._requests: dict[str, Any] = {}  # protocol → its counter
        self.errors = self._make(Counter, "errors", ["kind"])
        self.latency = self._make(Histogram, "latency_seconds", buckets=SECONDS)
        self.decode = self._make(Histogram, "decode_seconds", buckets=SECONDS)
        self.queue = self._make(Histogram, "queue_seconds", buckets=SECONDS)
        self.inference = self._make(Histogram, "inference_seconds", buckets=SECONDS)
        self.batch_size = self._make(Histogram, "batch_size", buckets=(1, 2, 4, 8, 16, 32, 64))
        self.waiting = self._make(Gauge, "waiting")
        self.connections = self._make(Gauge, "connections")
        self.refused_connections = self._make(Counter, "refused_connections", ["reason"])
        self.slowed = self._make(Counter, "slowed")
        self.received_bytes = self._make(Counter, "received_bytes")
        self.client_delay_steps = self._make(Histogram, "client_delay_steps", buckets=(0, 1, 2, 3, 4, 5, 8, 12, 16, 25))
        self.ready = self._make(Gauge, "ready")
        self._recent = RecentLatencies()
        self.registry.register(self._recent)

    def _make(self, kind: Callable[..., Any], name: str, labels: Iterable[str] = (), **options: Any) -> Any:
        return kind(PREFIX + name, METRICS[name], labelnames=[*labels], registry=self.registry, **options)

    def answered(self, protocol: str, seconds: float) -> None:
        """Count a request that got its actions."""
        if protocol not in self._requests:
            self._requests[protocol] = self.requests.labels(protocol)
        self.note(self._requests[protocol].inc, 1)
        self.note(self.latency.observe, seconds)
        self._recent.values.append(seconds)

    def text(self) -> bytes:
        """Formats all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
