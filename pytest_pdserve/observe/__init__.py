"""What the services say meanwhile."""

from pytest_pdserve.observe.services import Observer, ServiceState

__all__ = ["Observer", "ServiceState"]
