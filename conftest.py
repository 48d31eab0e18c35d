"""For our own tests, wherever they are started from."""

import signal

from hypothesis import HealthCheck, settings

# A busy machine must not fail what Hypothesis draws.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# A shell ignores Ctrl-C for what it starts in the background, and so would every process that our tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
