"""What keeps a streamed table fast to read: settle, compact, expire. After the publish, never in its way."""
