"""The pytest plugin: hooks and options."""
