"""Bytes, stamped as they arrive: the httpx transport, timelines, exchanges and server-sent events."""
