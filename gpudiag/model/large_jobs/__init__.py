"""Hold and analyse the ranks of large jobs in little memory."""
