"""What our wire costs beside others: `python -m bench`, from a checkout."""
