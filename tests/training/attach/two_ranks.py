"""Start two ranks of a program: `python two_ranks.py PROGRAM ARGUMENT...`.

The test does not use torchrun, because torchrun imports PyTorch too, which takes as long as one more rank.
`test_commands.py` tests jobs under torchrun.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(port)
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv[1:]], env={**shared, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    codes = [rank.wait() for rank in ranks]
    sys.exit(int(any(codes)))
