"""What is going to be sent at most: counted before a run, enforced while it runs."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """What a probe sends at most."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    at_once: int = 1

    def __add__(self, other: Sends) -> Sends:
        """Both, one after the other."""
        return Sends(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            at_once=max(self.at_once, other.at_once),
        )

    def at_level(self, level: int) -> Sends:
        """As much for each of `level` at once."""
        return Sends(
            requests=self.requests * level,
            prompt_tokens=self.prompt_tokens * level,
            output_tokens=self.output_tokens * level,
            at_once=self.at_once * level,
        )

    def beyond(self, allowance: Sends) -> str:
        """What exceeds `allowance`, in words; empty when nothing does."""
        return ", ".join(
            f"{getattr(self, limit.name)} {limit.name.replace('_', ' ')} of {getattr(allowance, limit.name)}"
            for limit in fields(self)
            if getattr(self, limit.name) > getattr(allowance, limit.name)
        )
