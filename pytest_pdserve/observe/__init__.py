"""What the services say meanwhile."""
