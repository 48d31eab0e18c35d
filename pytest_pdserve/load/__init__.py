"""Many chats at once."""
