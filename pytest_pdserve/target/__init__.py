"""What is under test: an entry URL and the services behind it."""
