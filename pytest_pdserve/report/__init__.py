"""Judgements to people and machines."""
