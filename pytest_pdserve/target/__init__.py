"""What is under test: from a host to a `Target` with its services; asking a router for its workers."""

from pytest_pdserve.target.inquiry import resolve
from pytest_pdserve.target.target import Role, Service, Target, TargetError

__all__ = ["Role", "Service", "Target", "TargetError", "resolve"]
