"""Numbers to judgements: pure functions of data, no I/O."""
