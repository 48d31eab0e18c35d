"""One module an engine family: its paths, its names and its error texts."""
