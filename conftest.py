"""For our own tests: pytest's plugin that tests plugins."""

pytest_plugins = ["pytester"]
