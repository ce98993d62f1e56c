"""What timed steps tell besides their length: of the host, and of the cores that it had."""
