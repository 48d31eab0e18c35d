"""The chat-completions protocol over the wire: requests, replies, replay."""
