"""Compile probes/kernels.cu into probes/kernels.ptx with NVRTC; needs no GPU.

    pip install "nvidia-cuda-nvrtc-cu12==12.1.105"
    python benchmarks/compile_kernels.py PATH/TO/libnvrtc.so.12

An old compiler and an old target are used on purpose. PTX code runs on every later GPU, but only with a driver that
supports the code's PTX version. CUDA 12.1's PTX 8.1 needs driver 530, about the oldest that cuda-bindings still
supports; compute_60 is Pascal.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path

TARGET = b"--gpu-architecture=compute_60"


def compile_ptx(library: str, source: str) -> str:
    """Compile CUDA C++ `source` to PTX with the NVRTC library at path `library`.

    Raises RuntimeError with the compiler's log.
    """
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(TARGET))
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value.decode()


def main() -> None:
    """Write probes/kernels.ptx. The first line of the PTX contains the digest of the source, which a test compares."""
    probes = Path(__file__).resolve().parents[1] / "probes"
    source = (probes / "kernels.cu").read_text()
    digest = hashlib.sha256(source.encode()).hexdigest()
    code = compile_ptx(sys.argv[1], source)
    # This compiler adds constants that describe its targets; no kernel uses these constants.
    unused = ".global .align 8 .u64"
    lines = [line.rstrip() for line in code.splitlines() if line.strip() and not line.startswith(unused)]
    (probes / "kernels.ptx").write_text(f"// kernels.cu sha256 {digest}\n" + "\n".join(lines) + "\n")
    print(f"kernels.ptx: {len(lines)} lines")


if __name__ == "__main__":
    main()
