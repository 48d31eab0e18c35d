"""Acceptance tests for prefill-decode deployments of language models, as a pytest plugin."""

__version__ = "0.1.0"
