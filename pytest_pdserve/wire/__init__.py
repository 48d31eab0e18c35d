"""Bytes, stamped as they arrive: the httpx transport, timelines, exchanges and server-sent events."""

from pytest_pdserve.wire.bridge import BridgeTransport
from pytest_pdserve.wire.exchange import MAX_BYTES, Exchange, Outcome, exchange
from pytest_pdserve.wire.failures import Ending
from pytest_pdserve.wire.loop import LoopThread
from pytest_pdserve.wire.pool import ConnectionLimits
from pytest_pdserve.wire.sse import Event, EventStream, SseLimits, read_events
from pytest_pdserve.wire.stamped import Stamped
from pytest_pdserve.wire.timeline import Phase, Timeline
from pytest_pdserve.wire.tls import tls_context
from pytest_pdserve.wire.transport import Transport

__all__ = [
    "MAX_BYTES",
    "BridgeTransport",
    "ConnectionLimits",
    "Ending",
    "Event",
    "EventStream",
    "Exchange",
    "LoopThread",
    "Outcome",
    "Phase",
    "SseLimits",
    "Stamped",
    "Timeline",
    "Transport",
    "exchange",
    "read_events",
    "tls_context",
]
