"""Timeline and Attribution → what other tools open: XSpace, Chrome's and Perfetto's traces, CSV, TensorBoard."""
