"""Show runs in TensorBoard: write its log directory (`log_directory`), and run its process (`server`, `serve`)."""
