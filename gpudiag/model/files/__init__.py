"""Files and directories: who can change them."""
