"""Answer the questions of agents over the Model Context Protocol (`gpudiag mcp`)."""
