"""TensorBoard: its curves (`scalars`), its directory (`log_directory`), its process (`server`)."""
