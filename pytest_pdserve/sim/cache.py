"""A prefix cache: which leading pages of a prompt were computed before and need not be computed again."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixCache:
    """Remembers prompts by the pages they begin with, the least recently used forgotten first.

    It holds only what nobody runs on, so it takes no room from running requests and shows in no gauge of used
    KV, as with SGLang's evictable and vLLM's free blocks.
    """

    def __init__(self, page_tokens: int, capacity_tokens: int) -> None:
        self._page = page_tokens
        self._pages = max(1, capacity_tokens // page_tokens)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def match(self, prompt: Sequence[bytes]) -> int:
        """How many of a prompt's first tokens are cached: whole pages, and never its last token."""
        found = 0
        for end, key in self._keys(prompt):
            if end == len(prompt) or key not in self._known:
                break
            self._known.move_to_end(key)
            found = end
        return found

    def keep(self, prompt: Sequence[bytes]) -> None:
        """Remember a computed prompt's whole pages."""
        for _, key in self._keys(prompt):
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self._pages:
            self._known.popitem(last=False)

    def _keys(self, prompt: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """For each whole page, where it ends and what names it together with all pages before it."""
        keys, name = [], b""
        for end in range(self._page, len(prompt) + 1, self._page):
            page = b"\x01".join(prompt[end - self._page : end])
            name = blake2b(name + page, digest_size=16).digest()
            keys.append((end, name))
        return keys
