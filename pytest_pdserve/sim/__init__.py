"""A simulated prefill-decode deployment on loopback, with faults on request."""
