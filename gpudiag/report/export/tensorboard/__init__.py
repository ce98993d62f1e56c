"""TensorBoard: its log directory (`log_directory`) and its process (`server`, which runs `serve`)."""
