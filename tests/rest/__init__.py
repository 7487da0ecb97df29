"""The commit channel itself: a real REST catalog behind a fault proxy, and the embedded catalog by its own means."""
