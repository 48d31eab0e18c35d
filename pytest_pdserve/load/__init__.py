"""Many chats at once, and how many at most."""

from pytest_pdserve.load.sends import Sends
from pytest_pdserve.load.together import together

__all__ = ["Sends", "together"]
